"""Einsum, written as one matrix product of two or three dimensions.

Products keep accumulating 16-bit floats in float32, as the libraries below PyTorch do.
"""

from __future__ import annotations

import math

from mithril.ops.linalg import Einsum
from mithril.types import Shape

from mithril_torch.kernels.registry import Types, kernel


@kernel(Einsum)
def einsum(op: Einsum, types: Types) -> str:
    """Arrange both operands as [batch, rows, contracted] and [batch, contracted, columns]."""
    left, right, result = op.terms
    sizes = dict(zip(left + right, types[0].shape + types[1].shape, strict=True))
    batch = [c for c in result if c in left and c in right]
    rows = [c for c in left if c not in right]
    contracted = [c for c in left if c in right and c not in result]
    columns = [c for c in right if c not in left]

    def size(letters: list[str]) -> int:
        return math.prod(sizes[c] for c in letters)

    outer = (size(batch),) if batch else ()
    x = arranged(
        "{0}", left, types[0].shape, [*batch, *rows, *contracted],
        (*outer, size(rows), size(contracted)),
    )  # fmt: skip
    y = arranged(
        "{1}", right, types[1].shape, [*batch, *contracted, *columns],
        (*outer, size(contracted), size(columns)),
    )  # fmt: skip
    product = f"torch.{'bmm' if batch else 'mm'}({x}, {y})"
    made = [*batch, *rows, *columns]
    shape = tuple(sizes[c] for c in made)
    if (*outer, size(rows), size(columns)) != shape:
        product += f".view({list(shape)})"
    order = [made.index(c) for c in result]
    return product if order == sorted(order) else f"{product}.permute({order})"


def arranged(text: str, term: str, sizes: Shape, wanted: list[str], shape: Shape) -> str:
    """Return an operand transposed, then reshaped, as far as that changes something."""
    order = [term.index(c) for c in wanted]
    if order != sorted(order):
        is_matrix = len(order) == 2
        text += ".t()" if is_matrix else f".permute({order})"
        sizes = tuple(sizes[i] for i in order)
    return text if sizes == shape else f"{text}.reshape({list(shape)})"
