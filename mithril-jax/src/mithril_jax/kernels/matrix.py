"""Kernels of factorisations, inverses and linear equations; 16-bit floats in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from mithril.spi import KernelRun, Types, accumulator, fix_column_signs, fix_qr_signs, ops

from mithril_jax.kernels.table import kernel


def _solve_triangle(op: ops.TriangularSolve, a: Any, b: Any) -> Any:
    return lax.linalg.triangular_solve(
        a,
        b,
        left_side=True,
        lower=op.lower,
        transpose_a=op.transpose,
        unit_diagonal=op.unit_diagonal,
    )


def _svd(x: Any) -> tuple[Any, ...]:
    u, s, vh = jnp.linalg.svd(x, full_matrices=False)
    signs = fix_column_signs(u, jnp)
    return u * signs, s, vh * jnp.swapaxes(signs, -1, -2)


def _eigh(x: Any) -> tuple[Any, ...]:
    values, vectors = jnp.linalg.eigh(x, symmetrize_input=True)
    return values, vectors * fix_column_signs(vectors, jnp)


_FUNCTIONS: dict[type[Any], Callable[..., Any]] = {
    ops.Cholesky: lambda op, x: jnp.linalg.cholesky(x, symmetrize_input=True),
    ops.Solve: lambda op, a, b: jnp.linalg.solve(a, b),
    ops.TriangularSolve: _solve_triangle,
    ops.Inv: lambda op, x: jnp.linalg.inv(x),
    ops.Det: lambda op, x: jnp.linalg.det(x),
    ops.QR: lambda op, x: fix_qr_signs(*jnp.linalg.qr(x), jnp),
    ops.SVD: lambda op, x: _svd(x),
    ops.Eigh: lambda op, x: _eigh(x),
}


@kernel(*_FUNCTIONS)
def matrix(op: Any, types: Types) -> KernelRun:
    """JAX's own, with fixed signs."""
    made = op.infer(types)
    function, dtype = _FUNCTIONS[type(op)], made[0].dtype.numpy
    wide = accumulator(made[0].dtype)

    def run(*operands: Any) -> Any:
        found = function(op, *(lax.convert_element_type(x, wide) for x in operands))
        several = found if isinstance(found, tuple) else (found,)
        results = tuple(lax.convert_element_type(x, dtype) for x in several)
        return results if len(results) > 1 else results[0]

    return run
