"""Factorisations, inverses and linear equations; 16-bit floats in float32."""

from __future__ import annotations

from typing import Any

from mithril.spi import Types, ops

from mithril_torch.kernels.expression import dtype
from mithril_torch.kernels.reduce import accumulator
from mithril_torch.kernels.table import kernel

_FUNCTIONS: dict[type[Any], str] = {
    ops.Cholesky: "cholesky({0})", ops.Solve: "solve({0}, {1})", ops.Inv: "inverse({0})",
    ops.Det: "torch.linalg.det({0})", ops.QR: "qr({0})", ops.SVD: "svd({0})",
    ops.Eigh: "eigh({0})",
}  # fmt: skip


@kernel(*_FUNCTIONS)
def matrix(op: Any, types: Types) -> str:
    """PyTorch's own, with fixed signs, NaN where there is no result."""
    return _in_float32(_FUNCTIONS[type(op)], op, types)


@kernel(ops.TriangularSolve)
def triangular_solve(op: ops.TriangularSolve, types: Types) -> str:
    """PyTorch's own."""
    matrix, upper = ("{0}.mT", op.lower) if op.transpose else ("{0}", not op.lower)
    options = f"upper={upper}, unitriangular={op.unit_diagonal}"
    return _in_float32(f"torch.linalg.solve_triangular({matrix}, {{1}}, {options})", op, types)


def _in_float32(text: str, op: Any, types: Types) -> str:
    made = op.infer(types)
    wide = accumulator(made[0])
    if wide.dtype == made[0].dtype:
        return text
    given = [f"{{{i}}}.to({dtype(wide)})" for i in range(len(types))]
    found, narrow = text.format(*given), dtype(made[0])
    return f"{found}.to({narrow})" if len(made) == 1 else f"round_to({found}, {narrow})"
