"""How ops run: shared kernels of Mithril on the library's namespace, and those of our own.

A kernel is a factory. It is called once for each place where an op is used, with the op (its
attributes) and the types of its operands, and returns the function that runs each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from array_api_compat import torch as xp
from mithril.spi import DType, Kernel, KernelTable, Op, TensorType, Types, bind_namespace, ops

SHARED = bind_namespace(xp)
KERNELS: KernelTable[Kernel] = KernelTable(SHARED)
"""What is registered here stands before the shared kernels."""


@KERNELS.register(ops.Softmax)
def softmax(op: ops.Softmax, types: Types) -> Callable[..., Any]:
    """A fused op, which Mithril expands into smaller ones where there is no kernel for it."""
    return lambda x: torch.softmax(x, dim=op.axis)


@KERNELS.register(ops.GreaterEqual)
def greater_equal(op: ops.GreaterEqual, types: Types) -> Callable[..., Any]:
    """x >= y; PyTorch does not compare the uint32 numbers that Dropout draws, but int64 ones."""
    if types[0].dtype != DType.uint32:
        return torch.ge
    return lambda x, y: x.to(torch.int64) >= y.to(torch.int64)


UNSIGNED = (
    ops.Add, ops.Subtract, ops.Multiply, ops.Maximum, ops.Minimum, ops.Negate, ops.Sum, ops.Abs,
    ops.Sign, ops.Relu, ops.Flip, ops.ScatterAdd, ops.ScatterAlong,
)  # fmt: skip


@KERNELS.register(*UNSIGNED)
def arithmetic(op: Op, types: Types) -> Callable[..., Any]:
    """Of uint32, which PyTorch does not compute with, the low half of what int64 gives."""
    if DType.uint32 not in [t.dtype for t in types]:
        return SHARED[op.name](op, types)
    return _of_int64(SHARED[op.name](op, [_widen(t) for t in types]))


@KERNELS.register(ops.FloorDivide, ops.Remainder)
def division(op: Op, types: Types) -> Callable[..., Any]:
    """0 of a whole number by 0, as NumPy has it; PyTorch raises there."""
    run = SHARED[op.name](op, [_widen(t) for t in types])
    if types[0].dtype.is_float:
        return run

    def divide(x: Any, y: Any) -> Any:
        return torch.where(y == 0, torch.zeros_like(x), run(x, torch.where(y == 0, 1, y)))

    return _of_int64(divide) if types[0].dtype == DType.uint32 else divide


def _of_int64(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of uint32 for one of int64."""

    def narrow(*operands: Any) -> Any:
        wide = (x.to(torch.int64) if x.dtype == torch.uint32 else x for x in operands)
        return (run(*wide) & 0xFFFFFFFF).to(torch.uint32)

    return narrow


def _widen(type: TensorType) -> TensorType:
    return TensorType(type.shape, DType.int64) if type.dtype == DType.uint32 else type
