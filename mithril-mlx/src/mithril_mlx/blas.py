"""Which library multiplies matrices on CPU, and how it wants them."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import mlx.core as mx

_SYMBOL = "cblas_sgemm"
ROWS_WORTH_A_COPY = 32
"""For fewer rows, copying the other operand takes what it saves."""


class _Info(ctypes.Structure):
    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


def keep_transposed(rows: int) -> Callable[[mx.array], mx.array]:
    """Return what is done to a right operand that lies transposed: nothing, or it is copied.

    The reference BLAS multiplies faster by a matrix in rows than by one in columns, of which it
    adds up products one number after another.

    Args:
        rows: of the left operand.
    """
    copies = rows >= ROWS_WORTH_A_COPY and prefers_rows()
    return mx.contiguous if copies else lambda x: x


def prefers_rows() -> bool:
    """Return whether products are those of the reference BLAS that the mlx package brings along."""
    return bool(mx.default_device() == mx.cpu) and _is_reference()


@cache
def _is_reference() -> bool:
    return sys.platform != "darwin" and _file_of(_SYMBOL) is None


def library_in_use() -> str:
    """Return the name of the library that MLX's matrix products call, as far as can be told.

    On Linux the first one that the dynamic linker finds for the whole process is used: one that was
    preloaded, else the reference BLAS that MLX brings along, which is slow.
    """
    if sys.platform == "darwin":
        return "Accelerate"
    file = _file_of(_SYMBOL)
    if file is None:
        return "reference BLAS of the mlx package (slow; preload OpenBLAS)"
    return f"{_title(file)} ({file})"


def _file_of(symbol: str) -> str | None:
    """Return the file of the function that all of the process sees under a name."""
    process = ctypes.CDLL(None)
    try:
        function = getattr(process, symbol)
    except AttributeError:
        return None
    found = _Info()
    address = ctypes.cast(function, ctypes.c_void_p)
    if not process.dladdr(address, ctypes.byref(found)) or found.file is None:
        return None
    return str(Path(found.file.decode()).resolve())


def _title(file: str) -> str:
    name = Path(file).name.lower()
    for part, title in (("openblas", "OpenBLAS"), ("mkl", "MKL"), ("blis", "BLIS")):
        if part in name:
            return title
    return "BLAS"
