"""Shared kernels of factorisations, inverses and linear equations: of the extension `linalg`.

16-bit floats are computed with in float32. What a library raises of a matrix of which there is no
result, it raises here, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mithril import ops
from mithril.engine.kernel_table import Run, Types
from mithril.engine.standard.index import pick
from mithril.engine.standard.namespace import ArrayNamespace, dtype_in, widen
from mithril.engine.standard.table import kernel
from mithril.ops.matrix import MatrixOp
from mithril.types import DType

Function = Callable[[Any, ArrayNamespace, tuple[Any, ...]], tuple[Any, ...]]


def _kernel(op_class: type[MatrixOp]) -> Callable[[Function], Function]:
    """Return what registers a function `(op, namespace, operands) -> results`."""

    def register(function: Function) -> Function:
        @kernel(op_class)
        def factory(op: Any, types: Types, xp: ArrayNamespace) -> Run:
            (first, *_) = op.infer(types)
            dtype, wide = (dtype_in(xp, chosen) for chosen in (first.dtype, widen(first.dtype)))

            def run(*operands: Any) -> Any:
                given = tuple(xp.astype(x, wide, copy=False) for x in operands)
                found = tuple(xp.astype(x, dtype, copy=False) for x in function(op, xp, given))
                return found if len(found) > 1 else found[0]

            return run

        return function

    return register


def _linalg(xp: ArrayNamespace) -> Any:
    return xp.linalg  # type: ignore[attr-defined]  # an extension


@_kernel(ops.Cholesky)
def cholesky(op: ops.Cholesky, xp: ArrayNamespace, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Of the symmetric part."""
    return (_linalg(xp).cholesky(_symmetric(given[0], xp)),)


@_kernel(ops.Solve)
def solve(op: ops.Solve, xp: ArrayNamespace, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The library's."""
    return (_linalg(xp).solve(*given),)


@_kernel(ops.TriangularSolve)
def triangular_solve(
    op: ops.TriangularSolve, xp: ArrayNamespace, given: tuple[Any, ...]
) -> tuple[Any, ...]:
    """The general solution: the extension has no other."""
    a, b = given
    at = xp.arange(a.shape[-1], dtype=dtype_in(xp, DType.int64))
    row, column = xp.expand_dims(at, axis=1), xp.expand_dims(at, axis=0)
    read = xp.where(row >= column if op.lower else row <= column, a, xp.zeros_like(a))
    if op.unit_diagonal:
        read = xp.where(row == column, xp.zeros_like(a) + 1.0, read)
    return (_linalg(xp).solve(_swap(read, xp) if op.transpose else read, b),)


@_kernel(ops.Inv)
def inv(op: ops.Inv, xp: ArrayNamespace, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The library's."""
    return (_linalg(xp).inv(*given),)


@_kernel(ops.Det)
def det(op: ops.Det, xp: ArrayNamespace, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The library's."""
    return (_linalg(xp).det(*given),)


@_kernel(ops.QR)
def qr(op: ops.QR, xp: ArrayNamespace, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """With no negative number on the diagonal of the second factor."""
    q, r = _linalg(xp).qr(given[0])
    size = min(r.shape[-2:])
    at = xp.arange(size, dtype=dtype_in(xp, DType.int64))
    is_diagonal = xp.expand_dims(at, axis=1) == xp.expand_dims(at, axis=0)
    square = r[..., :size, :size]
    diagonal = xp.sum(xp.where(is_diagonal, square, xp.zeros_like(square)), axis=-1)
    signs = xp.where(diagonal < 0, xp.zeros_like(diagonal) - 1.0, xp.zeros_like(diagonal) + 1.0)
    return q * xp.expand_dims(signs, axis=-2), r * xp.expand_dims(signs, axis=-1)


@_kernel(ops.SVD)
def svd(op: ops.SVD, xp: ArrayNamespace, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """With columns of the left factor that are positive where they are largest."""
    u, s, vh = _linalg(xp).svd(given[0], full_matrices=False)
    signs = _column_signs(u, xp)
    return u * signs, s, vh * _swap(signs, xp)


@_kernel(ops.Eigh)
def eigh(op: ops.Eigh, xp: ArrayNamespace, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Of the symmetric part, with columns that are positive where they are largest."""
    values, vectors = _linalg(xp).eigh(_symmetric(given[0], xp))
    return values, vectors * _column_signs(vectors, xp)


def _column_signs(columns: Any, xp: ArrayNamespace) -> Any:
    """Return 1 or -1 for each column: the sign of its largest number."""
    at = xp.argmax(xp.abs(columns), axis=-2, keepdims=True)
    largest = pick(columns, at, len(columns.shape) - 2, xp)
    return xp.where(largest < 0, xp.zeros_like(largest) - 1.0, xp.zeros_like(largest) + 1.0)


def _symmetric(x: Any, xp: ArrayNamespace) -> Any:
    return (x + _swap(x, xp)) * 0.5


def _swap(x: Any, xp: ArrayNamespace) -> Any:
    rank = len(x.shape)
    return xp.permute_dims(x, (*range(rank - 2), rank - 1, rank - 2))
