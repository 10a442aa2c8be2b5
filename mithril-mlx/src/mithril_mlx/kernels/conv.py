"""Kernels of ops on images, in the layout of the core or in that of MLX, with channels last.

Convolutions need MLX's: where a program has not been laid out so, images change around each of
them. Pooling works in both.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import mlx.core as mx
from mithril.spi import Kernel, KernelRun, OfImages, Types, channels_second, ops

from mithril_mlx.kernels import pool
from mithril_mlx.kernels.convolution import geometry
from mithril_mlx.kernels.empty import zero_without_elements
from mithril_mlx.kernels.precision import in_float32
from mithril_mlx.kernels.table import kernel


def _forward(op: ops.Convolution, types: Types) -> KernelRun:
    x, w = types
    (y,) = op.infer(types)
    return geometry(op, (x.shape[2:], w.shape[2:], y.shape[2:]), x.dtype).forward()


def _input_gradient(op: ops.ConvolutionInputGradient, types: Types) -> KernelRun:
    dy, w = types
    return geometry(op, (op.size, w.shape[2:], dy.shape[2:]), dy.dtype).input_gradient()


def _weight_gradient(op: ops.ConvolutionWeightGradient, types: Types) -> KernelRun:
    x, dy = types
    return geometry(op, (x.shape[2:], op.size, dy.shape[2:]), x.dtype).weight_gradient()


_CONVOLUTIONS: dict[type[Any], Kernel] = {
    ops.Convolution: _forward,
    ops.ConvolutionInputGradient: _input_gradient,
    ops.ConvolutionWeightGradient: _weight_gradient,
}
_POOLS: dict[type[Any], Kernel] = {
    ops.MaxPool: partial(pool.max_pool_from, 1),
    ops.MaxPoolGradient: partial(pool.max_pool_gradient_from, 1),
    ops.AvgPool: partial(pool.avg_pool_from, 1),
    ops.AvgPoolGradient: partial(pool.avg_pool_gradient_from, 1),
}


@kernel(*_CONVOLUTIONS)
@zero_without_elements
@in_float32
def convolution(op: Any, types: Types) -> KernelRun:
    """[batch, channels, *spatial] with [out, channels / groups, *window], or their gradients."""
    run = _CONVOLUTIONS[type(op)](op, types)
    return lambda a, b: mx.moveaxis(run(mx.moveaxis(a, 1, -1), mx.moveaxis(b, 1, -1)), -1, 1)


@zero_without_elements
@in_float32
def of_images(op: OfImages, types: Types) -> KernelRun:
    """The kernel of an op whose operands have their channels last."""
    factory = {**_CONVOLUTIONS, **_POOLS}[type(op.of)]
    return factory(op.of, [t.with_shape(channels_second(t.shape)) for t in types])
