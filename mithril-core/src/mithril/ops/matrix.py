"""Factorisations of matrices, inverses and solutions of linear equations, batched.

The last two dimensions are those of a matrix and are whole; leading ones may be split freely.
Operands are floats; 16-bit ones are computed with in float32. Where a result does not exist, as of
a singular matrix, it is not finite: a compiled program cannot refuse.

Bases are fixed by their signs, so that every backend gives the same one: `qr` has no negative
number on the diagonal of R, columns of `eigh` and of the left factor of `svd` are positive where
they are largest. Gradients are those of Giles, "An extended collection of matrix derivative results
for forward and reverse mode algorithmic differentiation" (2008), where nothing else is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mithril.errors import ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Tensors, Types, register
from mithril.ir.operand import apply_one
from mithril.ir.rule import Rule
from mithril.ops.arrange import expand_dims, matrix_transpose
from mithril.ops.choice import equal, where
from mithril.ops.composed import tril, triu
from mithril.ops.index import iota
from mithril.ops.shape import broadcast_to, concatenate
from mithril.types import TensorType


@dataclass(frozen=True)
class MatrixOp(Op):
    """Base of ops on the last two dimensions."""

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        rows, columns = inputs[0].shape[-2:]
        flops = self._cubes() * inputs[0].size * min(rows, columns)
        return Cost(math.ceil(flops), sum(t.nbytes for t in (*inputs, *outputs)))

    def _cubes(self) -> float:
        """Return the operations for each n ** 3 of an n x n matrix."""
        return 1


@register
@dataclass(frozen=True)
class Cholesky(MatrixOp):
    """The lower triangular L of which L L^T is the symmetric part of x; NaN if there is none."""

    name: ClassVar[str] = "cholesky"

    def infer(self, inputs: Types) -> Types:
        _check_matrices(self.name, inputs[0], square=True)
        return [inputs[0]]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        """As Murray, "Differentiation of the Cholesky decomposition" (2016), has it."""
        lower, g = outputs[0], cotangents[0]
        product = _t(lower) @ g
        half = _where_diagonal(product, product * 0.5, tril(product))
        upper = TriangularSolve(transpose=True)
        left = apply_one(upper, lower, half)
        return [_symmetric(_t(apply_one(upper, lower, _t(left))))]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return _rule(inputs, outputs, "rc", "rc")

    def _cubes(self) -> float:
        return 1 / 3


@register
@dataclass(frozen=True)
class Solve(MatrixOp):
    """The solution x of a x = b; operands (a [..., n, n], b [..., n, k])."""

    name: ClassVar[str] = "solve"

    def infer(self, inputs: Types) -> Types:
        _check_equations(self.name, *inputs)
        return [inputs[1]]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        matrix: Any = inputs[0]
        slope = apply_one(Solve(), _t(matrix), cotangents[0])
        return [-(slope @ _t(outputs[0])), slope]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return _rule(inputs, outputs, "rc,sk", "ck", linear=((1,),))  # s: no product over r

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        plain = MatrixOp.cost(self, inputs, outputs)
        return replace(plain, flops=plain.flops + 2 * inputs[1].size * inputs[0].shape[-1])

    def _cubes(self) -> float:
        return 2 / 3


@register
@dataclass(frozen=True)
class TriangularSolve(MatrixOp):
    """The solution x of a x = b for a triangular a; operands (a [..., n, n], b [..., n, k]).

    Args:
        lower: whether the lower triangle is a, else the upper one; the other is not read.
        transpose: whether it is transposed first.
        unit_diagonal: whether ones stand for its diagonal, which is not read either.
    """

    name: ClassVar[str] = "triangular_solve"
    lower: bool = True
    transpose: bool = False
    unit_diagonal: bool = False

    def infer(self, inputs: Types) -> Types:
        _check_equations(self.name, *inputs)
        return [inputs[1]]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        matrix, x = inputs[0], outputs[0]
        turned = replace(self, transpose=not self.transpose)
        slope = apply_one(turned, matrix, cotangents[0])  # type: ignore[type-var]
        product = -(x @ _t(slope) if self.transpose else slope @ _t(x))
        edge = int(self.unit_diagonal)
        read = tril(product, -edge) if self.lower else triu(product, edge)
        return [read, slope]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return _rule(inputs, outputs, "rc,sk", "ck", linear=((1,),))  # s: no product over r

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        moved = sum(t.nbytes for t in (*inputs, *outputs))
        return Cost(inputs[1].size * inputs[0].shape[-1], moved)


@register
@dataclass(frozen=True)
class Inv(MatrixOp):
    """The inverse."""

    name: ClassVar[str] = "inv"

    def infer(self, inputs: Types) -> Types:
        _check_matrices(self.name, inputs[0], square=True)
        return [inputs[0]]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        turned = _t(outputs[0])
        return [-(turned @ cotangents[0] @ turned)]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return _rule(inputs, outputs, "rc", "cr")

    def _cubes(self) -> float:
        return 2


@register
@dataclass(frozen=True)
class Det(MatrixOp):
    """The determinant. Its gradient needs an inverse."""

    name: ClassVar[str] = "det"

    def infer(self, inputs: Types) -> Types:
        _check_matrices(self.name, inputs[0], square=True)
        return [inputs[0].with_shape(inputs[0].shape[:-2])]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        scale = expand_dims(cotangents[0] * outputs[0], (-2, -1))
        return [scale * _t(apply_one(Inv(), inputs[0]))]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return _rule(inputs, outputs, "rc", "")

    def _cubes(self) -> float:
        return 2 / 3


@register
@dataclass(frozen=True)
class QR(MatrixOp):
    """An orthonormal Q and an upper triangular R whose product is x; reduced."""

    name: ClassVar[str] = "qr"

    def infer(self, inputs: Types) -> Types:
        (x,) = inputs
        _check_matrices(self.name, x)
        *batch, rows, columns = x.shape
        least = min(rows, columns)
        return [x.with_shape((*batch, rows, least)), x.with_shape((*batch, least, columns))]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        """As Roberts and Roberts, "QR and LQ decomposition matrix backpropagation" (2020)."""
        q, r = outputs
        g, h = (_or_zeros(c, y) for c, y in zip(cotangents, outputs, strict=True))
        rows, columns = inputs[0].shape[-2:]
        if columns <= rows:
            return [_qr_gradient(q, r, g, h)]
        # The columns beyond the square are Q^T times those of x: they belong to Q.
        beyond: Any = inputs[0][..., rows:]
        slope = q @ h[..., rows:]
        square = _qr_gradient(q, r[..., :rows], g + beyond @ _t(h[..., rows:]), h[..., :rows])
        return [concatenate([square, slope], -1)]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return _rule(inputs, outputs, "mn", "mk,kn")

    def _cubes(self) -> float:
        return 2


@register
@dataclass(frozen=True)
class SVD(MatrixOp):
    """Orthonormal U and V^T and the singular values between them, largest first; reduced.

    The gradient is that of Townsend, "Differentiating the singular value decomposition" (2016); it
    is not finite where singular values are equal, or 0.
    """

    name: ClassVar[str] = "svd"

    def infer(self, inputs: Types) -> Types:
        (x,) = inputs
        _check_matrices(self.name, x)
        *batch, rows, columns = x.shape
        least = min(rows, columns)
        shapes = ((*batch, rows, least), (*batch, least), (*batch, least, columns))
        return [x.with_shape(shape) for shape in shapes]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        if cotangents[0] is None and cotangents[2] is None:
            u, _, vh = outputs
            return [(u * expand_dims(cotangents[1], -2)) @ vh]  # type: ignore[type-var]
        u, s, vh = outputs
        gu, gs, gvh = (_or_zeros(c, y) for c, y in zip(cotangents, outputs, strict=True))
        v, gv = _t(vh), _t(gvh)
        row, column = expand_dims(s, -2), expand_dims(s, -1)
        gaps = _reciprocal_off_diagonal(row * row - column * column)
        left, right = _t(u) @ gu, _t(v) @ gv
        inner = (gaps * (left - _t(left))) * row + column * (gaps * (right - _t(right)))
        inner = _where_diagonal(inner, broadcast_to(expand_dims(gs, -1), inner.shape), inner)
        found = u @ inner @ vh
        rows, columns = inputs[0].shape[-2:]
        if rows > columns:
            found = found + ((gu - u @ left) / row) @ vh
        if columns > rows:
            found = found + (u / row) @ (gvh - _t(v @ right))
        return [found]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return _rule(inputs, outputs, "mn", "mk,k,kn")

    def _cubes(self) -> float:
        return 20


@register
@dataclass(frozen=True)
class Eigh(MatrixOp):
    """Eigenvalues of the symmetric part of x, smallest first, and eigenvectors as columns.

    Gradients through eigenvectors are not finite where eigenvalues are equal.
    """

    name: ClassVar[str] = "eigh"

    def infer(self, inputs: Types) -> Types:
        (x,) = inputs
        _check_matrices(self.name, x, square=True)
        return [x.with_shape(x.shape[:-1]), x]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        values, vectors = outputs
        if cotangents[1] is None:
            scaled = vectors * expand_dims(cotangents[0], -2)  # type: ignore[type-var]
            return [_symmetric(scaled @ _t(vectors))]
        gaps = _reciprocal_off_diagonal(expand_dims(values, -2) - expand_dims(values, -1))
        inner = gaps * (_t(vectors) @ cotangents[1])
        slopes = _or_zeros(cotangents[0], values)
        wide = broadcast_to(expand_dims(slopes, -1), inner.shape)
        return [_symmetric(vectors @ _where_diagonal(inner, wide, inner) @ _t(vectors))]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return _rule(inputs, outputs, "rc", "r,rc")

    def _cubes(self) -> float:
        return 9


# ------------------------------------------------------------------ gradients


def _t(x: Any) -> Any:
    return matrix_transpose(x)


def _symmetric(x: Any) -> Any:
    return (x + _t(x)) * 0.5


def _or_zeros(cotangent: Any, output: Any) -> Any:
    """Return the gradient of a result; zeros where nobody used the result."""
    if cotangent is not None:
        return cotangent
    return broadcast_to(output._constant(0, output.dtype), output.shape)


def _where_diagonal(like: Any, x: Any, other: Any) -> Any:
    """Return x on the diagonals of matrices, the other beside them."""
    shape = like.shape[-2:]
    return where(equal(iota(like, shape, 0), iota(like, shape, 1)), x, other)


def _reciprocal_off_diagonal(x: Any) -> Any:
    """Return 1 / x beside the diagonal, 0 on it."""
    return _where_diagonal(x, 0.0, 1.0 / _where_diagonal(x, 1.0, x))


def _qr_gradient(q: Any, r: Any, g: Any, h: Any) -> Any:
    """Return the gradient of a matrix with at least as many rows as columns."""
    m = r @ _t(h) - _t(g) @ q
    both = tril(m) + _t(tril(m, -1))
    upper = TriangularSolve(lower=False)
    return _t(apply_one(upper, r, _t(g + q @ both)))


# ------------------------------------------------------------------ types and rules


def _check_matrices(what: str, x: TensorType, *, square: bool = False) -> None:
    is_matrix = x.rank >= 2 and 0 not in x.shape[-2:]
    if not is_matrix or (square and x.shape[-1] != x.shape[-2]):
        kind = "square matrices [..., n, n]" if square else "matrices [..., rows, columns]"
        raise ShapeError(f"{what} takes {kind}, not {x}")
    if not x.dtype.is_float:
        raise ShapeError(f"{what} needs floats, not {x.dtype}; cast them, say to float32")


def _check_equations(what: str, a: TensorType, b: TensorType) -> None:
    _check_matrices(what, a, square=True)
    if a.dtype != b.dtype or a.shape[:-1] != b.shape[:-1]:
        raise ShapeError(
            f"{what} cannot solve {a} for {b}; leading sizes, rows and dtypes must be equal"
        )


def _rule(
    inputs: Types,
    outputs: Types,
    left: str,
    right: str,
    linear: tuple[tuple[int, ...], ...] = (),
) -> Rule:
    """Return the rule of terms such as `rc,rk` and `ck`: their letters are whole, except k.

    Args:
        inputs: types of the operands, with the same leading dimensions.
        outputs: types of the results.
        left: letters of the last dimensions of each operand.
        right: the same of each result.
        linear: see `Rule`.
    """
    sizes: dict[str, int] = {}

    def dims(t: TensorType, letters: str) -> tuple[tuple[str, ...], ...]:
        batch = [f"b{i}" for i in range(t.rank - len(letters))]
        named = list(zip([*batch, *letters], t.shape, strict=True))
        sizes.update((name, size) for name, size in named if size > 1)
        return tuple((name,) if size > 1 else () for name, size in named)

    def sides(types: Sequence[TensorType], text: str) -> Any:
        return tuple(dims(t, letters) for t, letters in zip(types, text.split(","), strict=True))

    operands, results = sides(inputs, left), sides(outputs, right)
    free = "k" if linear else ""
    whole = frozenset(name for name in sizes if name in left + right and name not in free)
    return Rule(sizes, operands, results, whole=whole, linear=linear)


__all__ = [
    "QR", "SVD", "Cholesky", "Det", "Eigh", "Inv", "MatrixOp", "Solve", "TriangularSolve",
]  # fmt: skip
