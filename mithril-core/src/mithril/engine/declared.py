"""What an engine says of itself: looked at once, when its backend is opened."""

from __future__ import annotations

from mithril.engine.base import Engine
from mithril.errors import BackendError, kind_of, listing, nearest
from mithril.mesh import Mesh
from mithril.ops.collective import collectives
from mithril.types import DType


def check_declared(engine: Engine, name: str, mesh: Mesh) -> None:
    """Raise unless what an engine says of itself fits together.

    Args:
        engine: as a plugin opened it.
        name: of the backend.
        mesh: that it was opened on.

    Raises:
        BackendError: it has another name or mesh, names no device for one of the mesh, or by no
            text, lacks float32, or has a dtype or a collective that does not exist, or kernels
            that are not those of its table.
    """
    what = f"engine of backend '{name}'"
    if engine.name != name:
        raise BackendError(
            f"{what} is named {engine.name!r}, by which kernels of users are found; give the class "
            f"name = '{name}'"
        )
    if engine.mesh != mesh:
        raise BackendError(f"{what} has {engine.mesh!r}, opened on {mesh!r}; keep the mesh given")
    if len(engine.devices) != mesh.size:
        raise BackendError(
            f"{what} names {len(engine.devices)} devices of {mesh!r}; give a label for each of "
            f"the {mesh.size}"
        )
    for device in engine.devices:
        if not isinstance(device, str):
            raise BackendError(
                f"{what} names device {device!r}, which is {kind_of(device)}; give a text, such as "
                f"'npu:0'"
            )
    foreign = next((x for x in engine.dtypes if not isinstance(x, DType)), None)
    if foreign is not None:
        known = [dtype.value for dtype in DType]
        raise BackendError(
            f"{what} has {kind_of(foreign)} {str(foreign)!r} among its dtypes, which is no DType; "
            f"known: {listing(known)}{nearest(str(foreign), known)}"
        )
    if DType.float32 not in engine.dtypes:
        held = f"it has {listing(sorted(engine.dtypes))}" if engine.dtypes else "it has none"
        raise BackendError(
            f"{what} has no dtype float32, which parameters have unless told otherwise; {held}; "
            f"does the namespace have `float32`? hand it on under this name"
        )
    unknown = next(iter(sorted(engine.capabilities - collectives().keys())), None)
    if unknown is not None:
        hint = nearest(unknown, collectives())
        raise BackendError(f"{what} offers collective '{unknown}', which does not exist{hint}")
    has_table = type(engine).own_kernels is not Engine.own_kernels
    lacking = sorted(engine.kernels ^ frozenset(engine.kernel_table)) if has_table else []
    if lacking:
        raise BackendError(
            f"{what} has kernels that are not those of its table: they differ by "
            f"{listing(lacking)}; leave kernels out, which follows from own_kernels"
        )
