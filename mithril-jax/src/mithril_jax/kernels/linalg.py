"""The kernels of einsum: one dot_general, transposed where the result asks for it.

On CPU devices dimensions that belong together are made one before. XLA:CPU multiplies operands as
they lie if one dimension is contracted; with several it copies an operand in an order of its own,
and what is computed elementwise on the way there is computed in that order, which takes up to ten
times as long, and again for whoever else needs it.

The product of a weight's gradient sums over the rows of both matrices. XLA:CPU has its fast kernel
only for a left matrix whose rows are multiplied, so that one is transposed first, by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

from jax import lax
from mithril.spi import KernelRun, TensorType, Types, accumulator
from mithril.spi.ops import Einsum

from mithril_jax.kernels.table import CPU_KERNELS, kernel

MOST_TURNED = 1 << 22
"""Elements of an operand that is transposed before a product; of more a copy takes as long."""


@kernel(Einsum)
def einsum(op: Einsum, types: Types) -> KernelRun:
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


@CPU_KERNELS.register(Einsum)
def multiply_joined(op: Einsum, types: Types) -> KernelRun:
    """The same, with dimensions that belong together as one."""
    groups = join_letters(op.terms)
    left, right, result = (_find_groups(term, groups) for term in op.terms)
    joined = [_join(type, term) for type, term in zip(types, (left, right), strict=True)]
    equation = f"{_first(left)},{_first(right)}->{_first(result)}"
    run, (made,) = einsum(Einsum(equation), joined), op.infer(types)
    is_turned = _is_by_columns(equation) and joined[0].size <= MOST_TURNED
    if is_turned:
        turned = joined[0].with_shape(joined[0].shape[::-1])
        run = einsum(Einsum(equation[1::-1] + equation[2:]), [turned, joined[1]])

    def run_joined(x: Any, y: Any) -> Any:
        x, y = lax.reshape(x, joined[0].shape), lax.reshape(y, joined[1].shape)
        if is_turned:
            # Between barriers, or what makes x would be computed again in the other order.
            x = lax.optimization_barrier(lax.transpose(lax.optimization_barrier(x), (1, 0)))
        return lax.reshape(run(x, y), made.shape)

    return run_joined


def _is_by_columns(equation: str) -> bool:
    """Return whether a product sums over the rows of both matrices, as in `kz,ky->zy`."""
    left, right, result = Einsum(equation).terms
    return len(left) == len(right) == 2 and left[0] == right[0] and result == left[1] + right[1]


def join_letters(terms: Sequence[str]) -> list[str]:
    """Return the letters of terms in groups that follow one another wherever they occur.

    >>> join_letters(("abz", "aby", "zy"))
    ['ab', 'z', 'y']
    """
    groups: list[str] = []
    for letter in dict.fromkeys("".join(terms)):
        group = groups[-1] if groups else ""
        if all(group + letter in term for term in terms if {group[-1:], letter} & {*term}):
            groups[-1:] = [group + letter]
        else:
            groups.append(letter)
    return groups


def _find_groups(term: str, groups: Sequence[str]) -> list[str]:
    """Return the groups in a term, in its order."""
    return sorted((group for group in groups if group in term), key=term.index)


def _join(type: TensorType, groups: Sequence[str]) -> TensorType:
    """Return a type with one dimension for each group."""
    sizes = iter(type.shape)
    return type.with_shape(tuple(math.prod(islice(sizes, len(group))) for group in groups))


def _first(groups: Sequence[str]) -> str:
    return "".join(group[0] for group in groups)


def _positions(letters: list[str], term: str) -> tuple[int, ...]:
    return tuple(map(term.index, letters))
