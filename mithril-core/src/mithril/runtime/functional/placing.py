"""reshard and constrain: the user's word for how arrays lie on the mesh; waiting for arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mithril.engine import Engine, Handle
from mithril.errors import BackendError, ShardingError, kind_of
from mithril.ir import Tensor
from mithril.mesh import PartitionSpec, Sharding, check_spec_mesh
from mithril.ops.constrain import apply_constraint
from mithril.runtime.array import Array
from mithril.runtime.functional.tracing import check_traced_spec
from mithril.trees import flatten, rebuild, spread


def reshard(x: Any, sharding: Any) -> Any:
    """Return an array laid out otherwise on its mesh, by the cheapest moves.

    Inside a function the value lies so from there on; its gradient may lie otherwise.

    Args:
        x: an array, or a tree of arrays.
        sharding: a `P` or the sharding of an array, or a tree of them and of None (as it lies).

    Raises:
        BackendError: `x` is no array.
        ShardingError: `sharding` is no spec, or longer than the array's rank.
        MeshError: the mesh lacks an axis, or a sharding is of another one.

    >>> import mithril as ml
    >>> x = ml.NumpyBackend(ml.Mesh(x=2)).ones(4, 2)
    >>> reshard(x, ml.P(None, "x")).sharding
    Sharding(P(None, 'x'))
    """
    return _place(
        x, sharding, "reshard", lambda t, spec: apply_constraint(t, spec, cotangent=False)
    )


def constrain(x: Any, sharding: Any) -> Any:
    """Return a value that lies on the mesh as a spec says, and so does its gradient.

    For use inside a function; an array is laid out so at once.

    Args:
        x: a value inside a function, an array, or a tree of them.
        sharding: a `P` or the sharding of an array, or a tree of them and of None (as it lies).

    Raises:
        BackendError: `x` is no array.
        ShardingError: `sharding` is no spec, or longer than the array's rank.
        MeshError: the mesh lacks an axis, or a sharding is of another one.

    >>> import mithril as ml
    >>> backend = ml.NumpyBackend(ml.Mesh(x=2))
    >>> ml.jit(lambda x: constrain(x + 1, ml.P("x")))(backend.ones(4)).sharding
    Sharding(P('x'))
    """
    return _place(x, sharding, "constrain", apply_constraint)


def block_until_ready(x: Any) -> Any:
    """Return arrays once their values are computed.

    Args:
        x: an array, or a tree of arrays; other leaves are there.

    Returns:
        The same object.

    Raises:
        BackendError: an array was donated or lost, or a process that computes is gone.

    >>> import mithril as ml
    >>> block_until_ready({"a": ml.NumpyBackend().ones(2)})["a"].numpy()
    array([1., 1.], dtype=float32)
    """
    leaves: list[Any] = []
    flatten(x, leaves)
    waiting: dict[Engine, list[Handle]] = {}
    for leaf in leaves:
        if isinstance(leaf, Array) and leaf.is_materialised:
            waiting.setdefault(leaf.engine, []).append(leaf.shards)
    for engine, handles in waiting.items():
        engine.wait_for(handles)
    return x


def _place(
    x: Any, sharding: Any, function: str, traced: Callable[[Tensor, PartitionSpec], Tensor]
) -> Any:
    leaves: list[Any] = []
    structure = flatten(x, leaves)
    if sharding is None or isinstance(sharding, str):
        raise ShardingError(
            f"{function}() takes a partition spec, not {sharding!r}; write P('x', None)"
        )
    what = f"the value given to {function}()"
    specs = spread(sharding, structure, what)
    placed = []
    for leaf, spec in zip(leaves, specs, strict=True):
        if spec is None:
            placed.append(leaf)
        elif isinstance(leaf, Tensor):
            check_traced_spec(leaf.builder, spec, what)
            placed.append(traced(leaf, spec))
        elif isinstance(leaf, Array):
            where = sharding if isinstance(sharding, Sharding) else spec
            if leaf.backend.mesh.size == 1:
                check_spec_mesh(spec, leaf.backend.mesh, what)
                placed.append(leaf)
            else:
                placed.append(leaf.backend.reshard(leaf, where))
        else:
            raise BackendError(
                f"{function}() is given {kind_of(leaf)}, not an array of a backend; write "
                f"backend.array(x, sharding={spec!r})"
            )
    return rebuild(structure, placed)
