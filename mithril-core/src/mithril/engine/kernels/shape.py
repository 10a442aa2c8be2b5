"""Kernels of the ops that move elements."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from mithril import ops
from mithril.engine.kernels.registry import Run, Types, kernel


@kernel(ops.Reshape)
def reshape(op: ops.Reshape, types: Types, xp: ModuleType) -> Run:
    """A view where the layout allows it."""
    shape = op.shape
    return lambda x: x.reshape(shape)


@kernel(ops.Transpose)
def transpose(op: ops.Transpose, types: Types, xp: ModuleType) -> Run:
    """A view."""
    order = op.order
    return lambda x: x.transpose(order)


@kernel(ops.Pad)
def pad(op: ops.Pad, types: Types, xp: ModuleType) -> Run:
    """Zeros with the operand laid into them."""
    (result,) = op.infer(types)
    steps = zip(op.before, op.between, types[0].shape, strict=True)
    index = tuple(
        slice(before, before + max((size - 1) * (between + 1) + 1, 0), between + 1)
        for before, between, size in steps
    )

    def run(x: Any) -> Any:
        whole = xp.zeros(result.shape, dtype=result.dtype.numpy)
        whole[index] = x
        return whole

    return run


@kernel(ops.Concatenate)
def concatenate(op: ops.Concatenate, types: Types, xp: ModuleType) -> Run:
    """The operands one after another."""
    axis = op.axis
    return lambda *parts: xp.concat(parts, axis=axis)
