"""Kernels of NumPy that write their result into memory that is given, where they have one to write.

They compute what the kernels of `KERNELS` do, by the same functions, bit for bit. An op, or a
dtype, that is missing here makes its result anew: it would be computed elsewhere and copied, which
costs time and saves no memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mithril import ops
from mithril.engine.kernels.linalg import as_product
from mithril.engine.kernels.reduce import find_ends
from mithril.engine.kernels.registry import KERNELS, KernelTable, Run, Types
from mithril.ops.linalg import Einsum
from mithril.types import TensorType

Writer = Callable[[Any, Types], Run | None]
"""A factory `(op, operand types) -> function(*operands, out)`, or None where there is none."""
WRITERS: KernelTable[Writer] = KernelTable()
writer = WRITERS.register

_UFUNCS = (
    ops.Add, ops.Subtract, ops.Multiply, ops.Divide, ops.Maximum, ops.Minimum, ops.Negate, ops.Exp,
    ops.Log, ops.Sqrt, ops.Tanh, ops.Sin, ops.Cos, ops.Equal, ops.NotEqual, ops.Less,
    ops.LessEqual, ops.Greater, ops.GreaterEqual, ops.LogicalAnd, ops.LogicalOr, ops.LogicalNot,
    ops.LogicalXor, ops.Expm1, ops.Log1p, ops.Tan, ops.Arctan, ops.Sinh, ops.Cosh,
)  # fmt: skip


@writer(*_UFUNCS)
def elementwise(op: Any, types: Types) -> Run:
    """NumPy's own function."""
    function = KERNELS[op.name](op, types, np)
    return lambda *operands: function(*operands[:-1], out=operands[-1])


@writer(ops.Relu)
def relu(op: ops.Relu, types: Types) -> Run:
    """max(x, 0)."""
    zero = np.asarray(0, dtype=types[0].dtype.numpy)
    return lambda x, out: np.maximum(x, zero, out=out)


@writer(ops.Rsqrt)
def rsqrt(op: ops.Rsqrt, types: Types) -> Run:
    """1 / sqrt(x)."""
    one = np.asarray(1, dtype=types[0].dtype.numpy)
    return lambda x, out: np.divide(one, np.sqrt(x, out=out), out=out)


@writer(ops.Cast)
def cast(op: ops.Cast, types: Types) -> Run:
    """x in another dtype."""

    def run(x: Any, out: Any) -> Any:
        np.copyto(out, x, casting="unsafe")
        return out

    return run


@writer(ops.Concatenate)
def concatenate(op: ops.Concatenate, types: Types) -> Run:
    """The operands one after another."""
    axis = op.axis
    return lambda *parts: np.concatenate(parts[:-1], axis, out=parts[-1])


@writer(ops.Pad)
def pad(op: ops.Pad, types: Types) -> Run | None:
    """Zeros with the operand laid into them."""
    if any(op.between):
        return None
    sizes = zip(op.before, types[0].shape, strict=True)
    index = tuple(slice(before, before + size) for before, size in sizes)

    def run(x: Any, out: Any) -> Any:
        out.fill(0)
        out[index] = x
        return out

    return run


@writer(ops.Gelu, ops.GeluGradient, ops.Silu, ops.SiluGradient)
def activation(op: Any, types: Types) -> Run:
    """The kernel's own, which goes block by block through large arrays."""
    run = KERNELS[op.name](op, types, np)
    return lambda *operands: run(*operands[:-1], out=operands[-1])


@writer(ops.Sum)
def total(op: ops.Sum, types: Types) -> Run | None:
    """A sum, as a product with ones where the kernel has it so; none of 16-bit floats."""
    (result,) = op.infer(types)
    dtype, axes, keepdims = result.dtype.numpy, op.axes, op.keepdims
    if not axes or result.dtype.itemsize == 2:
        return None
    is_leading = find_ends(axes, types[0]) if result.dtype.is_float else None
    if is_leading is not None:
        return _sum_as_product(is_leading, types[0], math.prod(types[0].shape[i] for i in axes))
    return lambda x, out: np.sum(x, axis=axes, keepdims=keepdims, dtype=dtype, out=out)


def _sum_as_product(is_leading: bool, x: TensorType, terms: int) -> Run:
    ones = np.ones(terms, dtype=x.dtype.numpy)

    def run(x: Any, out: Any) -> Any:
        flat = x.reshape(terms, -1) if is_leading else x.reshape(-1, terms)
        left, right = (ones, flat) if is_leading else (flat, ones)
        np.dot(left, right, out=out.reshape(-1))
        return out

    return run


@writer(ops.Max, ops.Min)
def extremum(op: ops.Reduction, types: Types) -> Run | None:
    """NumPy's own."""
    reduce, axes, keepdims = getattr(np, op.name), op.axes, op.keepdims
    return (lambda x, out: reduce(x, axis=axes, keepdims=keepdims, out=out)) if axes else None


@writer(Einsum)
def einsum(op: Einsum, types: Types) -> Run | None:
    """One batched product of matrices that leaves its elements in order; none of 16-bit floats."""
    product = as_product(op, types)
    if types[0].dtype.itemsize < 4 or not product.is_in_order:
        return None

    multiply, shape = getattr(np, product.function), product.shape if product.sizes else ()
    scope = {"multiply": multiply}
    made = f"multiply({product.left}, {product.right}, out=out.reshape({shape}))"
    run: Run = eval(f"lambda x, y, out: {made}.reshape({product.sizes})", scope)
    return run
