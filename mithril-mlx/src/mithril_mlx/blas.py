"""Which library multiplies matrices on CPU."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

_SYMBOL = "cblas_sgemm"


class _Info(ctypes.Structure):
    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


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
