"""The kernel of einsum: one batched matrix product, with transposes as views."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from mithril.engine.kernels.registry import Run, kernel
from mithril.ops.linalg import Einsum
from mithril.types import Shape, TensorType


@dataclass(frozen=True, slots=True)
class Product:
    """An einsum as a product of [batch, rows, contracted] and [batch, contracted, columns].

    Args:
        left: what arranges one operand.
        right: what arranges the other.
        shape: of the product.
        sizes: of the letters of the result, as the product has them in order.
        order: of these letters in the result.
    """

    left: Run
    right: Run
    shape: Shape
    sizes: Shape
    order: tuple[int, ...]

    @property
    def is_in_order(self) -> bool:
        """Whether the product has its elements as the result has them."""
        return self.order == tuple(range(len(self.order)))


def as_product(op: Einsum, types: Sequence[TensorType]) -> Product:
    """Return an einsum as a batched product of matrices."""
    left, right, result = op.terms
    batch = [c for c in result if c in left and c in right]
    rows = [c for c in left if c not in right]
    contracted = [c for c in left if c in right and c not in result]
    columns = [c for c in right if c not in left]
    sizes = dict(zip(left + right, types[0].shape + types[1].shape, strict=True))

    def size(letters: Sequence[str]) -> int:
        return math.prod(sizes[c] for c in letters)

    outer = tuple(sizes[c] for c in batch)
    arrange_left = _arrange(
        left, types[0].shape, [*batch, *rows, *contracted], (*outer, size(rows), size(contracted))
    )
    arrange_right = _arrange(
        right,
        types[1].shape,
        [*batch, *contracted, *columns],
        (*outer, size(contracted), size(columns)),
    )
    made = [*batch, *rows, *columns]
    return Product(
        arrange_left,
        arrange_right,
        (*outer, size(rows), size(columns)),
        tuple(sizes[c] for c in made),
        tuple(made.index(c) for c in result),
    )


@kernel(Einsum)
def einsum(op: Einsum, types: Sequence[TensorType], xp: ModuleType) -> Run:
    """Arrange both operands as matrices; 16-bit floats are multiplied in float32."""
    product = as_product(op, types)
    arrange_left, arrange_right = product.left, product.right
    multiply = xp.matmul if product.sizes else _multiply_rows(xp)
    arrange_result = _rearrange(product)

    def run(x: Any, y: Any) -> Any:
        return arrange_result(multiply(arrange_left(x), arrange_right(y)))

    if types[0].dtype.itemsize >= 4:
        return run
    wide, dtype = np.dtype(np.float32), types[0].dtype.numpy
    return lambda x, y: xp.asarray(
        run(xp.asarray(x, dtype=wide), xp.asarray(y, dtype=wide)), dtype=dtype
    )


def _multiply_rows(xp: ModuleType) -> Run:
    """Return the function for a row and a column; libraries add up vectors more exactly."""
    return lambda x, y: xp.dot(x.reshape(-1), y.reshape(-1))


def _arrange(term: str, sizes: Shape, wanted: Sequence[str], shape: Shape) -> Run:
    """Return the function that transposes, then reshapes; it does only what changes something."""
    order = tuple(term.index(c) for c in wanted)
    if order != tuple(range(len(order))):
        return lambda x: x.transpose(order).reshape(shape)
    return (lambda x: x) if shape == sizes else lambda x: x.reshape(shape)


def _rearrange(product: Product) -> Run:
    """Return the function that reshapes, then transposes; it does only what changes something."""
    sizes, order = product.sizes, product.order
    if not product.is_in_order:
        return lambda x: x.reshape(sizes).transpose(order)
    return (lambda x: x) if sizes == product.shape else lambda x: x.reshape(sizes)
