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
    ops.Add, ops.Subtract, ops.Multiply, ops.FloorDivide, ops.Remainder, ops.Maximum, ops.Minimum,
    ops.Negate, ops.Sum,
)  # fmt: skip


@KERNELS.register(*UNSIGNED)
def arithmetic(op: Op, types: Types) -> Callable[..., Any]:
    """Of uint32, which PyTorch does not compute with, the low half of what int64 gives."""
    if types[0].dtype != DType.uint32:
        return SHARED[op.name](op, types)
    run = SHARED[op.name](op, [TensorType(t.shape, DType.int64) for t in types])

    def narrow(*operands: Any) -> Any:
        return (run(*(x.to(torch.int64) for x in operands)) & 0xFFFFFFFF).to(torch.uint32)

    return narrow
