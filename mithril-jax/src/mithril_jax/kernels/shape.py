"""Kernels of the ops that move elements."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax
from mithril.spi import KernelRun, Types, ops

from mithril_jax.kernels.elementwise import broadcast_to
from mithril_jax.kernels.table import kernel


@kernel(ops.Reshape)
def reshape(op: ops.Reshape, types: Types) -> KernelRun:
    """The elements in another shape."""
    return lambda x: lax.reshape(x, op.shape)


@kernel(ops.Transpose)
def transpose(op: ops.Transpose, types: Types) -> KernelRun:
    """The dimensions in another order."""
    return lambda x: lax.transpose(x, op.order)


@kernel(ops.Broadcast)
def broadcast(op: ops.Broadcast, types: Types) -> KernelRun:
    """The operand stretched to a shape."""
    return broadcast_to(op.shape, types[0])


@kernel(ops.Slice)
def slice_(op: ops.Slice, types: Types) -> KernelRun:
    """A part with a step."""
    return lambda x: lax.slice(x, op.start, op.stop, op.step)


@kernel(ops.Pad)
def pad(op: ops.Pad, types: Types) -> KernelRun:
    """Zeros before, after and between the elements."""
    zero = np.zeros((), types[0].dtype.numpy)
    widths = tuple(zip(op.before, op.after, op.between, strict=True))
    return lambda x: lax.pad(x, zero, widths)


@kernel(ops.Concatenate)
def concatenate(op: ops.Concatenate, types: Types) -> KernelRun:
    """The operands one after another."""

    def run(*parts: Any) -> Any:
        return lax.concatenate(parts, op.axis)

    return run


@kernel(ops.Flip)
def flip(op: ops.Flip, types: Types) -> KernelRun:
    """The elements from the other end."""
    return lambda x: lax.rev(x, op.axes)
