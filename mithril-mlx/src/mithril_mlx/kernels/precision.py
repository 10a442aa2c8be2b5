"""Which dtype a kernel computes in: 16-bit floats are widened to float32 and rounded at the end."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import mlx.core as mx
from mithril.spi import DType, Kernel, KernelRun, TensorType, Types

from mithril_mlx.tensors import mlx_dtype


def on_gpu() -> bool:
    """Return whether arrays are computed on the GPU, where MLX has fused kernels."""
    return bool(mx.default_device() == mx.gpu)


def is_vectorized() -> bool:
    """Return whether MLX's functions work on several numbers at once: on GPUs and Apple's CPUs."""
    return on_gpu() or sys.platform == "darwin"


def in_float32(factory: Kernel) -> Kernel:
    """Return the factory of a kernel that is given float32 for 16-bit floats, and rounded."""

    def make(op: Any, types: Types) -> KernelRun:
        narrow = [is_narrow(type) for type in types]
        if not any(narrow):
            return factory(op, types)
        run = factory(op, [widen(type) for type in types])
        dtypes = [mlx_dtype(type.dtype) for type in op.infer(types)]

        def widening(*operands: mx.array) -> Any:
            wide = (
                x.astype(mx.float32) if small else x
                for x, small in zip(operands, narrow, strict=True)
            )
            found = run(*wide)
            if isinstance(found, tuple):
                return tuple(y.astype(dtype) for y, dtype in zip(found, dtypes, strict=True))
            return found.astype(dtypes[0])

        return widening

    return make


def is_narrow(type: TensorType) -> bool:
    """Return whether a tensor holds 16-bit floats."""
    return type.dtype.is_float and type.dtype.itemsize == 2


def widen(type: TensorType) -> TensorType:
    """Return the type in which a tensor is computed with."""
    return replace(type, dtype=DType.float32) if is_narrow(type) else type


def accumulator(dtype: DType) -> mx.Dtype:
    """Return the dtype to accumulate in: float32 for 16-bit floats."""
    small = dtype.is_float and dtype.itemsize == 2
    return mx.float32 if small else mlx_dtype(dtype)
