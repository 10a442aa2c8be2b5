"""Plans of single ops that are cheaper than those of programs.

Elementwise ops whose operands lie alike need no search: each device computes with what it has. One
plan serves slices of one size wherever they begin, as loops take them from a table.
"""

from __future__ import annotations

from collections.abc import Sequence

from mithril.ir import Builder, Op
from mithril.mesh import Sharding, coarse
from mithril.ops.dynamic_slicing import DynamicSlice
from mithril.ops.elementwise import Elementwise
from mithril.ops.slicing import Slice
from mithril.plan import Plan, Port, Program
from mithril.runtime.array import Kind


def find_common_sharding(op: Op, kinds: Sequence[Kind]) -> Sharding | None:
    """Return how all operands of an elementwise op lie, scalars aside; None when they differ."""
    if not isinstance(op, Elementwise):
        return None
    tensors = [kind for kind in kinds if kind.type.shape]
    if not tensors or any(kind.type.shape != tensors[0].type.shape for kind in tensors):
        return None
    first = tensors[0].sharding
    return first if all(kind.sharding == first for kind in tensors) else None


def plan_in_place(op: Op, kinds: Sequence[Kind], lying: Sharding) -> Plan:
    """Return the plan of an elementwise op whose operands lie alike: each device for itself.

    It needs no search, and the result lies as the operands do whatever a plan would prefer.
    """
    builder = Builder()
    scalar = Sharding.replicated(lying.mesh, 0)
    inputs = [
        Port(f"operand_{i}", kind.type, kind.sharding if kind.type.shape else scalar)
        for i, kind in enumerate(kinds)
    ]
    local = [
        builder.input(p.type.with_shape(p.sharding.local_shape(p.type.shape)), p.name)
        for p in inputs
    ]
    results = builder.apply(op, *local)
    shape = next(kind.type.shape for kind in kinds if kind.type.shape)
    outputs = {f"result_{i}": x for i, x in enumerate(results)}
    ports = tuple(Port(name, x.type.with_shape(shape), lying) for name, x in outputs.items())
    program = Program(lying.mesh, builder.build(outputs), tuple(inputs), ports)
    return Plan.of_program(coarse(lying.mesh), program)


def take_positions(op: Slice, kind: Kind) -> tuple[Op, Sequence[int]] | None:
    """Return a slice as the op that takes where it begins as operands, and where that is.

    Returns:
        None for slices with gaps, and where a dimension is split that is cut.
    """
    if any(step != 1 for step in op.step):
        return None
    sizes = [stop - start for start, stop in zip(op.start, op.stop, strict=True)]
    cut = [axis for axis, size in enumerate(kind.type.shape) if sizes[axis] != size]
    if any(kind.sharding.dims[axis] for axis in cut):
        return None
    taken = DynamicSlice(tuple(cut), tuple(sizes[axis] for axis in cut))
    return taken, [op.start[axis] for axis in cut]


__all__ = ["find_common_sharding", "plan_in_place", "take_positions"]
