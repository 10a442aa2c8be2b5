"""Linear algebra under NumPy's names: `mnp.linalg.solve(a, b)` is `mnp.solve(a, b)`.

NumPy has no `triangular_solve`; it is the `solve_triangular` of SciPy.
"""

from __future__ import annotations

from typing import Any

import mithril.numpy as _mnp
from mithril.errors import nearest
from mithril.ops import matrix_functions as _functions

_PRODUCTS = ("matmul", "matrix_transpose", "outer")
__all__ = [*_PRODUCTS, *_functions.__all__]  # noqa: PLE0604 - of strings


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(_mnp, name)
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(f"mithril.numpy.linalg has no '{name}'{nearest(name, __all__)}")


def __dir__() -> list[str]:
    return list(__all__)
