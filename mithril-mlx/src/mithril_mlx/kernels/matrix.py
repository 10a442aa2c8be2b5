"""Kernels of factorisations, inverses and linear equations; 16-bit floats in float32.

MLX has them on the CPU only; on a GPU they wait for that. What it refuses it refuses when the value
is read, and all of the program with it: such matrices are replaced before, and give NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mithril.spi import KernelRun, Types, fix_column_signs, fix_qr_signs, ops

from mithril_mlx.kernels.precision import in_float32
from mithril_mlx.kernels.shape import fill
from mithril_mlx.kernels.table import kernel

_linalg = mx.linalg
_NOWHERE = {dtype: mx.array(float("nan"), dtype=dtype) for dtype in (mx.float32, mx.float64)}


def _fill(is_good: mx.array, x: mx.array) -> mx.array:
    """Return results, matrices or vectors, with NaN where they are not good."""
    beside = is_good if x.ndim == is_good.ndim else is_good[..., 0]
    return mx.where(beside, x, _NOWHERE[x.dtype])


def _replace(is_good: mx.array, x: mx.array) -> mx.array:
    eye = mx.eye(x.shape[-2], x.shape[-1], dtype=x.dtype)
    return mx.where(is_good, x, eye)


def _every(truth: mx.array) -> mx.array:
    """Return for each matrix whether all is true of it."""
    return mx.all(truth, axis=(-2, -1), keepdims=True)


def _is_regular(x: mx.array) -> mx.array:
    """Return for each matrix whether it has an inverse, as far as its factors tell."""
    factors, _ = _linalg.lu_factor(x, stream=mx.cpu)
    diagonal = mx.diagonal(factors, 0, -2, -1)
    return mx.all(diagonal != 0, axis=-1)[..., None, None]


def _cholesky(op: ops.Cholesky, x: mx.array) -> mx.array:
    found = _linalg.cholesky(_take_symmetric(x), stream=mx.cpu)
    is_good = mx.all(mx.diagonal(found, 0, -2, -1) > 0, axis=-1)[..., None, None]
    return _fill(is_good, mx.tril(found))


def _solve(op: ops.Solve, a: mx.array, b: mx.array) -> mx.array:
    is_good = _is_regular(a)
    return _fill(is_good, _linalg.solve(_replace(is_good, a), b, stream=mx.cpu))


def _solve_triangle(op: ops.TriangularSolve, a: mx.array, b: mx.array) -> mx.array:
    read = mx.tril(a) if op.lower else mx.triu(a)
    if op.unit_diagonal:
        read = mx.where(mx.eye(a.shape[-1], dtype=mx.bool_), mx.ones_like(read), read)
    is_good = mx.all(mx.diagonal(read, 0, -2, -1) != 0, axis=-1)[..., None, None]
    read = _replace(is_good, read)
    matrix, upper = (mx.swapaxes(read, -1, -2), op.lower) if op.transpose else (read, not op.lower)
    found = _linalg.solve_triangular(matrix, b, upper=upper, stream=mx.cpu)
    return _fill(is_good, found)


def _inverse(op: ops.Inv, x: mx.array) -> mx.array:
    is_good = _is_regular(x)
    return _fill(is_good, _linalg.inv(_replace(is_good, x), stream=mx.cpu))


def _determinant(op: ops.Det, x: mx.array) -> mx.array:
    """The product of the diagonal, its sign turned for each exchange of rows."""
    factors, rows = _linalg.lu_factor(x, stream=mx.cpu)
    own = mx.arange(x.shape[-1], dtype=rows.dtype)
    signs = mx.where(rows == own, 1, -1).astype(x.dtype)
    return mx.prod(mx.diagonal(factors, 0, -2, -1) * signs, axis=-1)


def _qr(op: ops.QR, x: mx.array) -> Any:
    return fix_qr_signs(*_linalg.qr(x, stream=mx.cpu), mx)


def _svd(op: ops.SVD, x: mx.array) -> Any:
    is_good, least = _every(mx.isfinite(x)), min(x.shape[-2:])
    u, s, vh = _linalg.svd(_replace(is_good, x), stream=mx.cpu)
    u, vh = u[..., :least], vh[..., :least, :]
    signs = fix_column_signs(u, mx)
    return tuple(_fill(is_good, x) for x in (u * signs, s, vh * mx.swapaxes(signs, -1, -2)))


def _eigh(op: ops.Eigh, x: mx.array) -> Any:
    is_good = _every(mx.isfinite(x))
    values, vectors = _linalg.eigh(_replace(is_good, _take_symmetric(x)), stream=mx.cpu)
    return tuple(_fill(is_good, x) for x in (values, vectors * fix_column_signs(vectors, mx)))


_FUNCTIONS: dict[type[Any], Callable[..., Any]] = {
    ops.Cholesky: _cholesky, ops.Solve: _solve, ops.TriangularSolve: _solve_triangle,
    ops.Inv: _inverse, ops.Det: _determinant, ops.QR: _qr, ops.SVD: _svd, ops.Eigh: _eigh,
}  # fmt: skip


@kernel(*_FUNCTIONS)
@in_float32
def matrix(op: Any, types: Types) -> KernelRun:
    """MLX's own, with fixed signs."""
    made = op.infer(types)
    function = _FUNCTIONS[type(op)]
    if not types[0].size or not types[-1].size:
        empty = [fill(0, t)() for t in made]
        return lambda *operands: tuple(empty) if len(empty) > 1 else empty[0]
    return lambda *operands: function(op, *operands)


def _take_symmetric(x: mx.array) -> mx.array:
    """Return the symmetric part of matrices."""
    return (x + mx.swapaxes(x, -1, -2)) * 0.5
