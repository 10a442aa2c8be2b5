"""The kernel of einsum: one dot_general, transposed where the result asks for it."""

from __future__ import annotations

from typing import Any

from jax import lax
from mithril.engine.kernels.precision import accumulator
from mithril.engine.kernels.registry import Run, Types
from mithril.ops.linalg import Einsum

from mithril_jax.kernels.table import kernel


@kernel(Einsum)
def einsum(op: Einsum, types: Types) -> Run:
    """The product of two operands; 16-bit floats are added up in float32."""
    left, right, result = op.terms
    batch = [c for c in result if c in left and c in right]
    contracted = [c for c in left if c in right and c not in result]
    rows = [c for c in left if c not in right]
    columns = [c for c in right if c not in left]
    dimensions = (
        (_positions(contracted, left), _positions(contracted, right)),
        (_positions(batch, left), _positions(batch, right)),
    )
    order = tuple([*batch, *rows, *columns].index(c) for c in result)
    in_order = order == tuple(range(len(order)))
    (made,) = op.infer(types)
    dtype, accumulate = made.dtype.numpy, accumulator(made.dtype)

    def run(x: Any, y: Any) -> Any:
        product = lax.dot_general(x, y, dimensions, preferred_element_type=accumulate)
        product = product if in_order else lax.transpose(product, order)
        return lax.convert_element_type(product, dtype)

    return run


def _positions(letters: list[str], term: str) -> tuple[int, ...]:
    return tuple(map(term.index, letters))
