"""Reading arrays of other libraries on the host: what NumPy cannot read itself.

A tensor that belongs to an autograd graph is taken without it, and dtypes that NumPy lacks
(bfloat16) are read by DLPack, whose structure is that of `dlpack.h`, version 0 and 1 alike where no
versioned capsule is asked for.
"""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np

_CPU = 1
_DTYPES = {(4, 16): ml_dtypes.bfloat16}
"""Dtypes by DLPack's code and number of bits; those that NumPy has it reads itself."""


UNREADABLE = (TypeError, ValueError, RuntimeError, BufferError)
"""What NumPy, or a library on its behalf, raises of an array that cannot be read."""


class _Tensor(ctypes.Structure):
    """`DLTensor`, with the device, and the dtype, in it spelled out."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def read_foreign(x: Any) -> np.ndarray | None:
    """Return a copy of the values of another library's array, None where they cannot be read.

    Args:
        x: what `numpy.asarray` refuses.
    """
    if not hasattr(x, "__dlpack__"):
        return None
    try:
        detached = x.detach() if hasattr(x, "detach") else x
        here = detached.cpu() if hasattr(detached, "cpu") else detached
    except RuntimeError:  # a tensor without values, on PyTorch's device 'meta'
        return None
    try:
        return np.asarray(here).copy()
    except UNREADABLE:
        return _read_capsule(here)


def _read_capsule(x: Any) -> np.ndarray | None:
    """Return a copy of what a DLPack capsule holds, None for what it cannot or is unknown here."""
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    try:
        capsule = x.__dlpack__()
    except UNREADABLE:  # a sparse tensor
        return None
    tensor = _Tensor.from_address(pointer_of(capsule, b"dltensor"))
    dtype = _DTYPES.get((tensor.code, tensor.bits))
    if tensor.device_type != _CPU or dtype is None or tensor.lanes != 1:
        return None
    shape = tuple(tensor.shape[: tensor.rank])
    if 0 in shape:
        return np.empty(shape, dtype)
    width = np.dtype(dtype).itemsize
    strides = _strides(tensor, shape)
    count = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    memory = (ctypes.c_uint8 * (count * width)).from_address(tensor.data + tensor.byte_offset)
    flat = np.frombuffer(memory, dtype)
    return np.lib.stride_tricks.as_strided(flat, shape, [s * width for s in strides]).copy()


def _strides(tensor: _Tensor, shape: tuple[int, ...]) -> list[int]:
    """Return strides in elements; a null pointer stands for rows that lie one after another."""
    if tensor.strides:
        return list(tensor.strides[: tensor.rank])
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return strides[: tensor.rank]
