"""Ops that move elements; most results are views of an operand."""

from __future__ import annotations

from mithril.spi import Shape, Types, ops

from mithril_torch.kernels.table import kernel
from mithril_torch.kernels.unsigned import as_signed


def numbers(shape: Shape) -> str:
    """Return the arguments that say a shape; a list would take longer to read.

    >>> numbers((2, 3)), numbers(())
    ('2, 3', '()')
    """
    return ", ".join(map(str, shape)) or "()"


@kernel(ops.Reshape)
def reshape(op: ops.Reshape, types: Types) -> str:
    """The same elements in another shape, copied only where they do not lie in order."""
    return "{0}" if op.shape == types[0].shape else f"{{0}}.reshape({numbers(op.shape)})"


@kernel(ops.Transpose)
def transpose(op: ops.Transpose, types: Types) -> str:
    """The dimensions in another order."""
    moved = [i for i, dimension in enumerate(op.order) if i != dimension]
    if not moved:
        return "{0}"
    if len(op.order) == 2:
        return "{0}.t()"
    return (
        f"{{0}}.transpose({moved[0]}, {moved[1]})"
        if len(moved) == 2
        else f"{{0}}.permute({numbers(op.order)})"
    )


@kernel(ops.Broadcast)
def broadcast(op: ops.Broadcast, types: Types) -> str:
    """The operand stretched to a shape."""
    return "{0}" if op.shape == types[0].shape else f"{{0}}.expand({numbers(op.shape)})"


@kernel(ops.Concatenate)
def concatenate(op: ops.Concatenate, types: Types) -> str:
    """The operands one after another."""
    if len(types) == 1:
        return "{0}"
    return f"torch.cat(({', '.join(f'{{{i}}}' for i in range(len(types)))}), {op.axis})"


@kernel(ops.Slice)
def slice_(op: ops.Slice, types: Types) -> str:
    """A part with a step."""
    bounds = list(zip(op.start, op.stop, op.step, strict=True))
    cut = [i for i, size in enumerate(types[0].shape) if bounds[i] != (0, size, 1)]
    if not cut:
        return "{0}"
    shown = [
        f"{start}:{stop}" + (f":{step}" if step > 1 else "") if i in cut else ":"
        for i, (start, stop, step) in enumerate(bounds[: cut[-1] + 1])
    ]
    return f"{{0}}[{', '.join(shown)}]"


@kernel(ops.Pad)
def pad(op: ops.Pad, types: Types) -> str:
    """Zeros before, after and between the elements."""
    if not any((*op.before, *op.after, *op.between)):
        return "{0}"
    if any(op.between):
        (result,) = op.infer(types)
        return f"spread({{0}}, {list(result.shape)}, {op.before}, {op.between})"
    widths = zip(reversed(op.before), reversed(op.after), strict=True)
    return f"torch.constant_pad_nd({{0}}, {[width for pair in widths for width in pair]})"


@kernel(ops.Flip)
@as_signed
def flip(op: ops.Flip, types: Types) -> str:
    """The elements from the other end."""
    return f"torch.flip({{0}}, {op.axes})" if op.axes else "{0}"
