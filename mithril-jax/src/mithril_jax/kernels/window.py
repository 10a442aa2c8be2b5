"""Kernels of convolution and pooling; gradients are transposes of the local forward kernel."""

from __future__ import annotations

from functools import reduce
from typing import Any

import jax
import numpy as np
from jax import lax
from mithril import ops
from mithril.engine.kernels.registry import Run
from mithril.ops import conv, pool
from mithril.types import TensorType, as_dtype

from mithril_jax.kernels.elementwise import lowest
from mithril_jax.kernels.reduction import wide
from mithril_jax.kernels.registry import Types, kernel


@kernel(ops.Convolution)
def convolution(op: conv.Convolving, types: Types) -> Run:
    """[batch, channels, *spatial] with [out, channels / groups, *window]."""
    dtype, accumulate = types[0].dtype.numpy, wide(types[0])

    def run(x: Any, w: Any) -> Any:
        y = lax.conv_general_dilated(
            x,
            w,
            window_strides=op.stride,
            padding=op.padding,
            rhs_dilation=op.dilation,
            feature_group_count=op.groups,
            preferred_element_type=accumulate,
        )
        return lax.convert_element_type(y, dtype)

    return run


@kernel(ops.ConvolutionInputGradient)
def input_gradient(op: ops.ConvolutionInputGradient, types: Types) -> Run:
    """The convolution, linear in its image, transposed; operands (dy, w)."""
    (result,) = op.infer(types)
    forward = convolution(op, [_wide(result), _wide(types[1])])

    def run(dy: Any, w: Any) -> Any:
        w = lax.convert_element_type(w, wide(result))
        return _transpose(lambda x: forward(x, w), result, dy)

    return run


@kernel(ops.ConvolutionWeightGradient)
def weight_gradient(op: ops.ConvolutionWeightGradient, types: Types) -> Run:
    """The convolution, linear in its weight, transposed; operands (x, dy)."""
    (result,) = op.infer(types)
    forward = convolution(op, [_wide(types[0]), _wide(result)])

    def run(x: Any, dy: Any) -> Any:
        x = lax.convert_element_type(x, wide(result))
        return _transpose(lambda w: forward(x, w), result, dy)

    return run


@kernel(ops.MaxPool)
def max_pool(op: pool.MaxPool, types: Types) -> Run:
    """The largest element of each window."""
    return _reduce_window(op, lax.max, lowest(types[0]))


@kernel(ops.MaxPoolGradient)
def max_pool_gradient(op: pool.MaxPoolGradient, types: Types) -> Run:
    """Each gradient handed to the first element that equals the maximum."""
    forward = _reduce_window(op, lax.max, lowest(types[0]))

    def run(x: Any, y: Any, dy: Any) -> Any:
        _, back = jax.vjp(forward, x)
        return back(dy)[0]

    return run


@kernel(ops.AvgPool)
def avg_pool(op: pool.AvgPool, types: Types) -> Run:
    """The sum over each window times one over how many elements it has."""
    (result,) = op.infer(types)
    dtype, accumulate, share = result.dtype.numpy, wide(result), _shares(op, types[0], result)
    add = _reduce_window(op, lax.add, np.zeros((), accumulate))
    return lambda x: lax.convert_element_type(
        add(lax.convert_element_type(x, accumulate)) * share, dtype
    )


@kernel(ops.AvgPoolGradient)
def avg_pool_gradient(op: pool.AvgPoolGradient, types: Types) -> Run:
    """The sums over windows, transposed."""
    (result,) = op.infer(types)
    share = _shares(op, result, types[0])
    add = _reduce_window(op, lax.add, np.zeros((), wide(result)))
    return lambda dy: _transpose(add, result, lax.convert_element_type(dy, share.dtype) * share)


def _transpose(linear: Run, of: TensorType, g: Any) -> Any:
    """Return the transpose of a linear function of a tensor, applied to g, in at least float32."""
    like = jax.ShapeDtypeStruct(of.shape, wide(of))
    (found,) = jax.linear_transpose(linear, like)(lax.convert_element_type(g, like.dtype))
    return lax.convert_element_type(found, of.dtype.numpy)


def _reduce_window(op: pool.Pooling, combine: Run, start: Any) -> Run:
    """Return the function that combines the elements of every window."""
    window, stride = (1, 1, *op.window), (1, 1, *op.stride)
    padding = ((0, 0), (0, 0), *op.padding)
    return lambda x: lax.reduce_window(x, start, combine, window, stride, padding)


def _shares(op: pool.MeanPooling, x: TensorType, y: TensorType) -> np.ndarray:
    sizes = [np.asarray(counts, float) for counts in pool.window_sizes(op, x, y)]
    return (1.0 / reduce(np.multiply.outer, sizes)).astype(wide(x))


def _wide(type: TensorType) -> TensorType:
    return TensorType(type.shape, as_dtype(wide(type)))
