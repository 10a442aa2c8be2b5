"""Kernels of factorisations, inverses and linear equations; 16-bit floats in float32.

NumPy refuses a whole batch for one matrix of which there is no result: then it is gone through
matrix by matrix, and that one gives NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from mithril.engine.kernels.precision import accumulator
from mithril.engine.kernels.registry import Run, Types, kernel
from mithril.ops import matrix as ops
from mithril.types import Shape

Results = tuple[Any, ...]


def fix_column_signs(columns: Any, xp: Any) -> Any:
    """Return 1 or -1 for each column: the sign of its largest number."""
    at = xp.argmax(xp.abs(columns), axis=-2, keepdims=True)
    largest = xp.take_along_axis(columns, at, axis=-2)
    return xp.where(largest < 0, -1, 1).astype(columns.dtype)


def fix_qr_signs(q: Any, r: Any, xp: Any) -> Results:
    """Return the factors with no negative number on the diagonal of the second one."""
    diagonal = xp.diagonal(r, 0, -2, -1)
    signs = xp.where(diagonal < 0, -1, 1).astype(r.dtype)
    return q * signs[..., None, :], r * signs[..., :, None]


def symmetric(x: Any, xp: Any) -> Any:
    """Return the symmetric part of matrices."""
    return (x + xp.swapaxes(x, -1, -2)) * 0.5


def _kernel(op_class: type[ops.MatrixOp]) -> Callable[[Callable[..., Results]], Any]:
    """Return what registers a function `(op, *operands) -> results`, run in at least float32."""

    def register(function: Callable[..., Results]) -> Any:
        @kernel(op_class)
        def factory(op: Any, types: Types, xp: ModuleType) -> Run:
            made = op.infer(types)
            shapes, dtype = [t.shape for t in made], made[0].dtype.numpy
            wide = accumulator(made[0].dtype)

            def run(*operands: Any) -> Any:
                given = [xp.asarray(x, dtype=wide) for x in operands]
                found = _run_by_matrix(lambda *xs: function(op, *xs), given, shapes)
                results = tuple(xp.asarray(x, dtype=dtype) for x in found)
                return results if len(results) > 1 else results[0]

            return run

        return function

    return register


def _run_by_matrix(
    function: Callable[..., Results], given: list[Any], shapes: list[Shape]
) -> Results:
    """Return what a function gives, NaN for matrices that it refuses."""
    try:
        return function(*given)
    except np.linalg.LinAlgError:
        pass
    batch = given[0].shape[:-2]
    results = tuple(np.full(shape, np.nan, given[0].dtype) for shape in shapes)
    for at in np.ndindex(batch):
        try:
            found = function(*(x[at] for x in given))
        except np.linalg.LinAlgError:
            continue
        for whole, part in zip(results, found, strict=True):
            whole[at] = part
    return results


@_kernel(ops.Cholesky)
def cholesky(op: ops.Cholesky, x: Any) -> Results:
    """LAPACK's."""
    return (np.linalg.cholesky(symmetric(x, np)),)


@_kernel(ops.Solve)
def solve(op: ops.Solve, a: Any, b: Any) -> Results:
    """LAPACK's."""
    return (np.linalg.solve(a, b),)


@_kernel(ops.TriangularSolve)
def triangular_solve(op: ops.TriangularSolve, a: Any, b: Any) -> Results:
    """The general solution: NumPy knows no other."""
    read = np.tril(a) if op.lower else np.triu(a)
    if op.unit_diagonal:
        eye = np.eye(a.shape[-1], dtype=bool)
        read = np.where(eye, np.ones((), a.dtype), read)
    return (np.linalg.solve(np.swapaxes(read, -1, -2) if op.transpose else read, b),)


@_kernel(ops.Inv)
def inv(op: ops.Inv, x: Any) -> Results:
    """LAPACK's."""
    return (np.linalg.inv(x),)


@_kernel(ops.Det)
def det(op: ops.Det, x: Any) -> Results:
    """LAPACK's."""
    return (np.linalg.det(x),)


@_kernel(ops.QR)
def qr(op: ops.QR, x: Any) -> Results:
    """LAPACK's, with fixed signs."""
    return fix_qr_signs(*np.linalg.qr(x), np)


@_kernel(ops.SVD)
def svd(op: ops.SVD, x: Any) -> Results:
    """LAPACK's, with fixed signs."""
    u, s, vh = np.linalg.svd(x, full_matrices=False)
    signs = fix_column_signs(u, np)
    return u * signs, s, vh * np.swapaxes(signs, -1, -2)


@_kernel(ops.Eigh)
def eigh(op: ops.Eigh, x: Any) -> Results:
    """LAPACK's, with fixed signs."""
    values, vectors = np.linalg.eigh(symmetric(x, np))
    return values, vectors * fix_column_signs(vectors, np)
