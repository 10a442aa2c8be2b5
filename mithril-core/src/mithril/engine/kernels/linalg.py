"""The kernel of einsum: one batched matrix product, with transposes as views."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from mithril.engine.kernels.registry import Run, kernel
from mithril.ops.linalg import Einsum
from mithril.types import Shape, TensorType


@dataclass(frozen=True, slots=True)
class Product:
    """An einsum as a product of [batch, rows, contracted] and [batch, contracted, columns].

    Operands are arranged by expressions, of which a kernel is written: a small product would feel
    each call of a function, and each view that changes nothing.

    Args:
        left: the expression that arranges the operand x.
        right: the expression that arranges the operand y.
        shape: of the product.
        sizes: of the letters of the result, as the product has them in order.
        order: of these letters in the result.
        is_plain: whether it is one product of two matrices of floats that BLAS knows.
    """

    left: str
    right: str
    shape: Shape
    sizes: Shape
    order: tuple[int, ...]
    is_plain: bool

    @property
    def is_in_order(self) -> bool:
        """Whether the product has its elements as the result has them."""
        return self.order == tuple(range(len(self.order)))

    @property
    def function(self) -> str:
        """The name of NumPy's function for it: `dot` begins sooner, and knows no batches."""
        return "dot" if self.is_plain or not self.sizes else "matmul"


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
        "x",
        left,
        types[0].shape,
        [*batch, *rows, *contracted],
        (*outer, size(rows), size(contracted)),
    )
    arrange_right = _arrange(
        "y",
        right,
        types[1].shape,
        [*batch, *contracted, *columns],
        (*outer, size(contracted), size(columns)),
    )
    made = [*batch, *rows, *columns]
    if not made:  # libraries add up vectors more exactly than they multiply a row and a column
        arrange_left, arrange_right = (f"{x}.reshape(-1)" for x in (arrange_left, arrange_right))
    return Product(
        arrange_left,
        arrange_right,
        (*outer, size(rows), size(columns)),
        tuple(sizes[c] for c in made),
        tuple(made.index(c) for c in result),
        not batch and types[0].dtype.is_float and types[0].dtype.itemsize <= 8,
    )


@kernel(Einsum)
def einsum(op: Einsum, types: Sequence[TensorType], xp: ModuleType) -> Run:
    """Arrange both operands as matrices; 16-bit floats are multiplied in float32."""
    product = as_product(op, types)
    # The method of an array is there at once, where the function asks whose arrays these are.
    made = f"{product.left}.dot({product.right})"
    if product.function == "matmul":
        made = f"matmul({product.left}, {product.right})"
    run: Run = eval(f"lambda x, y: {_rearrange(made, product)}", {"matmul": np.matmul})
    if types[0].dtype.itemsize >= 4:
        return run
    wide, dtype = np.dtype(np.float32), types[0].dtype.numpy
    return lambda x, y: xp.asarray(
        run(xp.asarray(x, dtype=wide), xp.asarray(y, dtype=wide)), dtype=dtype
    )


def _arrange(x: str, term: str, sizes: Shape, wanted: Sequence[str], shape: Shape) -> str:
    """Return the expression that transposes, then reshapes; it does only what changes something."""
    order = tuple(term.index(c) for c in wanted)
    arranged = _transpose(x, order)
    return arranged if shape == tuple(sizes[i] for i in order) else f"{arranged}.reshape({shape})"


def _rearrange(made: str, product: Product) -> str:
    """Return the expression that reshapes, then transposes; it does only what changes something."""
    sizes, shape = product.sizes, product.shape if product.sizes else ()
    reshaped = made if sizes == shape else f"{made}.reshape({sizes})"
    return _transpose(reshaped, product.order)


def _transpose(x: str, order: tuple[int, ...]) -> str:
    """Return the expression that brings the dimensions of an array into an order."""
    if order == tuple(range(len(order))):
        return x
    return f"{x}.T" if order == (1, 0) else f"{x}.transpose({order})"
