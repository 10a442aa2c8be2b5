"""Kernels of convolution; gradients are transposes of the local forward kernel.

Each takes an op as the core has it, or one of images whose channels come last.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from mithril.spi import KernelRun, OfImages, TensorType, Types, accumulator, as_dtype, ops

from mithril_jax.kernels.table import kernel


@kernel(ops.Convolution)
def convolution(op: ops.Convolving | OfImages, types: Types) -> KernelRun:
    """[batch, channels, *spatial] with [out, channels / groups, *window]."""
    dtype, accumulate = types[0].dtype.numpy, accumulator(types[0].dtype)
    of, order = read_images(op, types[0].rank)

    def run(x: Any, w: Any) -> Any:
        y = lax.conv_general_dilated(
            x,
            w,
            window_strides=of.stride,
            padding=of.padding,
            rhs_dilation=of.dilation,
            dimension_numbers=lax.ConvDimensionNumbers(order, order, order),
            feature_group_count=of.groups,
            preferred_element_type=accumulate,
        )
        return lax.convert_element_type(y, dtype)

    return run


@kernel(ops.ConvolutionInputGradient)
def input_gradient(op: ops.ConvolutionInputGradient | OfImages, types: Types) -> KernelRun:
    """The convolution, linear in its image, transposed; operands (dy, w)."""
    (result,) = op.infer(types)
    forward = convolution(op, [_wide(result), _wide(types[1])])

    def run(dy: Any, w: Any) -> Any:
        w = lax.convert_element_type(w, accumulator(result.dtype))
        return transpose_linear(lambda x: forward(x, w), result, dy)

    return run


@kernel(ops.ConvolutionWeightGradient)
def weight_gradient(op: ops.ConvolutionWeightGradient | OfImages, types: Types) -> KernelRun:
    """The convolution, linear in its weight, transposed; operands (x, dy)."""
    (result,) = op.infer(types)
    forward = convolution(op, [_wide(types[0]), _wide(result)])

    def run(x: Any, dy: Any) -> Any:
        x = lax.convert_element_type(x, accumulator(result.dtype))
        return transpose_linear(lambda w: forward(x, w), result, dy)

    return run


def read_images(op: Any, rank: int) -> tuple[Any, tuple[int, ...]]:
    """Return an op on images, and where batch, channels and the rest stand in these."""
    if isinstance(op, OfImages):
        return op.of, (0, rank - 1, *range(1, rank - 1))
    return op, tuple(range(rank))


def transpose_linear(linear: KernelRun, of: TensorType, g: Any) -> Any:
    """Return the transpose of a linear function of a tensor, applied to g, in at least float32."""
    like = jax.ShapeDtypeStruct(of.shape, accumulator(of.dtype))
    (found,) = jax.linear_transpose(linear, like)(lax.convert_element_type(g, like.dtype))
    return lax.convert_element_type(found, of.dtype.numpy)


def _wide(type: TensorType) -> TensorType:
    return TensorType(type.shape, as_dtype(accumulator(type.dtype)))
