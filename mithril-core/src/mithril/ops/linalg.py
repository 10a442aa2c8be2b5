"""Einsum: the one contraction, from dot products to batched matrix products.

Its equation is NumPy's, with explicit output and without ellipsis: ``"bsd,hd->bsh"``. It is its own
sharding rule, and its gradient is two more einsums. All other equations: `mithril.ops.equations`.
"""

from __future__ import annotations

import math
import string
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from mithril.errors import ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Tensors, Types, register
from mithril.ir.operand import Operand, apply_one
from mithril.ir.rule import Rule
from mithril.ops.shape import broadcast_to
from mithril.types import TensorType, promote


@register
@dataclass(frozen=True)
class Einsum(Op):
    """The sum over products of two operands that an equation names.

    Every letter of an operand occurs in the other operand or in the result, once in each.
    """

    name: ClassVar[str] = "einsum"
    equation: str

    @property
    def terms(self) -> tuple[str, str, str]:
        """Letters of the left operand, the right operand and the result."""
        operands, result = self.equation.split("->")
        left, right = operands.split(",")
        return left, right, result

    def infer(self, inputs: Types) -> Types:
        _, _, result = self.terms
        sizes = self._sizes(inputs)
        dtypes = {t.dtype for t in inputs}
        if len(dtypes) > 1 or not inputs[0].dtype.is_float:
            shown = ", ".join(t.dtype for t in inputs)
            raise ShapeError(
                f"einsum '{self.equation}' needs equal float dtypes, not {shown}; cast"
            )
        return [TensorType(tuple(sizes[letter] for letter in result), inputs[0].dtype)]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        left, right, result = self.terms
        (x, y), g = inputs, cotangents[0]
        return [
            apply_one(Einsum(f"{result},{right}->{left}"), g, y),  # type: ignore[type-var]
            apply_one(Einsum(f"{result},{left}->{right}"), g, x),  # type: ignore[type-var]
        ]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        left, right, result = (tuple((letter,) for letter in term) for term in self.terms)
        return Rule(self._sizes(inputs), (left, right), (result,), linear=((0,), (1,)))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        moved = sum(t.nbytes for t in (*inputs, *outputs))
        return Cost(2 * math.prod(self._sizes(inputs).values()), moved)

    def _sizes(self, inputs: Types) -> dict[str, int]:
        self._check_letters()
        sizes: dict[str, int] = {}
        for term, t in zip(self.terms, inputs, strict=False):
            if len(term) != t.rank:
                raise ShapeError(f"einsum '{self.equation}': '{term}' does not name {t}")
            for letter, size in zip(term, t.shape, strict=True):
                if sizes.setdefault(letter, size) != size:
                    raise ShapeError(
                        f"einsum '{self.equation}' cannot contract {inputs[0]} with {inputs[1]}; "
                        f"'{letter}' is {sizes[letter]} and {size}; make the sizes equal"
                    )
        return sizes

    def _check_letters(self) -> None:
        terms = self.terms
        lone = [c for c in "".join(terms) if "".join(terms).count(c) == 1]
        twice = [c for term in terms for c in term if term.count(c) > 1]
        if lone or twice:
            raise ShapeError(
                f"einsum '{self.equation}' names '{(lone or twice)[0]}' "
                f"{'only once' if lone else 'twice in one term'}; a letter stands for a dimension "
                f"of at least two of the terms, once in each; sum over others first"
            )


def matmul(x: Any, y: Any) -> Any:
    """Return the matrix product x @ y, batched over leading dimensions as in NumPy.

    Args:
        x: floats [..., rows, inner], or a vector [inner].
        y: floats [..., inner, columns], or a vector [inner]; leading dimensions are broadcast, and
            both are promoted to one dtype.

    Returns:
        That dtype; [..., rows, columns], without rows where x and without columns where y is a
        vector.

    Raises:
        ShapeError: an operand is a scalar or does not hold floats, or sizes do not fit.

    >>> x, y = backend.array([[1.0, 2.0], [3.0, 4.0]]), backend.array([[0.0, 1.0], [1.0, 0.0]])
    >>> matmul(x, y).numpy()
    array([[2., 1.],
           [4., 3.]], dtype=float32)
    """
    for operand in (x, y):
        if not isinstance(operand, Operand) or not operand.ndim:
            raise ShapeError(f"cannot multiply {_show(x)} @ {_show(y)}; use * for scalars")
    if x.shape[-1] != y.shape[-2 if y.ndim > 1 else 0]:
        raise ShapeError(
            f"cannot multiply {x.type} @ {y.type}; the last size of the left and the "
            f"{'second to last' if y.ndim > 1 else 'only'} size of the right must be equal"
        )
    if x.ndim > 2 and y.ndim > 2:
        x, y = _same_batch(x, y)
    if x.dtype is not y.dtype:
        dtype = promote(x.dtype, y.dtype)
        x, y = x.astype(dtype), y.astype(dtype)
    return apply_one(Einsum(_matmul_equation(x.ndim, y.ndim)), x, y)


@cache
def _matmul_equation(left_rank: int, right_rank: int) -> str:
    """Letters: batch dimensions first, then `y` rows, `z` contracted, `x` columns."""
    batch = string.ascii_lowercase[: max(left_rank, right_rank, 2) - 2]
    left_batch = batch if left_rank > 2 else ""
    right_batch = batch if right_rank > 2 else ""
    rows = "y" if left_rank > 1 else ""
    columns = "x" if right_rank > 1 else ""
    return f"{left_batch}{rows}z,{right_batch}z{columns}->{batch}{rows}{columns}"


def _same_batch(x: Any, y: Any) -> tuple[Any, Any]:
    from mithril.ops.elementwise import broadcast_shape

    batch = broadcast_shape([x.shape[:-2], y.shape[:-2]], "matmul")
    return broadcast_to(x, batch + x.shape[-2:]), broadcast_to(y, batch + y.shape[-2:])


def _show(operand: object) -> str:
    return str(operand.type) if isinstance(operand, Operand) else repr(operand)


__all__ = ["Einsum", "matmul"]
