"""DTensors as Mithril's arrays: as they lie where the meshes agree, otherwise gathered.

Importing `torch.distributed.tensor` takes seconds, so it is looked for only where it is loaded.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from mithril.spi import BackendError, Mesh, Shape, Sharding

from mithril_torch.executors.local import LocalExecutor

if TYPE_CHECKING:
    from mithril_torch.executors.executor import Executor

_MODULE = "torch.distributed.tensor"


def is_dtensor(x: object) -> bool:
    """Whether something is a DTensor."""
    module = sys.modules.get(_MODULE)
    return module is not None and isinstance(x, module.DTensor)


def unwrap(x: Any, mesh: Mesh, executor: Executor) -> tuple[torch.Tensor, Sharding | None]:
    """Return this rank's part of a DTensor and how it lies, or the whole of it and None.

    To gather it, all ranks of its mesh must ask.

    Args:
        x: a DTensor.
        mesh: of the backend.
        executor: where the backend's arrays lie.

    Raises:
        BackendError: it lies on other ranks than the backend's.
    """
    x = x.detach()
    if isinstance(executor, LocalExecutor) and mesh.size > 1:
        _check_ranks(x, mesh)
        sharding = _sharding_of(x, mesh)
        if sharding is not None:
            return _wait(x.to_local()), sharding
    if x.device_mesh.get_coordinate() is None:
        raise BackendError(
            f"DTensor lies on ranks {_ranks(x)}, and this process is none of them; redistribute "
            f"it over a mesh that has this process, or give the others the array"
        )
    return _wait(x.full_tensor()), None


def _ranks(x: Any) -> list[int]:
    ranks: list[int] = x.device_mesh.mesh.flatten().tolist()
    return ranks


def _check_ranks(x: Any, mesh: Mesh) -> None:
    if sorted(_ranks(x)) != list(range(mesh.size)):
        raise BackendError(
            f"DTensor lies on ranks {_ranks(x)}, the backend's {mesh!r} on 0 to {mesh.size - 1}; "
            f"redistribute it over a device mesh of all of them"
        )


def _wait(x: Any) -> torch.Tensor:
    """Return a tensor whose values have arrived."""
    waited: torch.Tensor = x.wait() if hasattr(x, "wait") else x
    return waited


def _sharding_of(x: Any, mesh: Mesh) -> Sharding | None:
    """Return the placements as a sharding, if both meshes number the devices alike."""
    kinds = sys.modules[_MODULE]
    axes = [axis for axis in mesh.axes if axis.size > 1]
    theirs = [
        (size, placement)
        for size, placement in zip(x.device_mesh.shape, x.placements, strict=True)
        if size > 1
    ]
    if [axis.size for axis in axes] != [size for size, _ in theirs]:
        return None
    if _ranks(x) != list(mesh.row_major):
        return None
    dims: list[tuple[str, ...]] = [()] * x.ndim
    for axis, (_, placement) in zip(axes, theirs, strict=True):
        if type(placement) is kinds.Shard:
            dims[placement.dim] += (axis.name,)
        elif type(placement) is not kinds.Replicate:
            return None
    sharding = Sharding(mesh, tuple(dims))
    return sharding if _splits_alike(sharding, tuple(x.shape)) else None


def _splits_alike(sharding: Sharding, shape: Shape) -> bool:
    """Whether DTensor cuts as Mithril does: uneven sizes it does not over several axes."""
    return all(
        len(axes) < 2 or size % sharding.shards_along(dimension) == 0
        for dimension, (axes, size) in enumerate(zip(sharding.dims, shape, strict=True))
    )
