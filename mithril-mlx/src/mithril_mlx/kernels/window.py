"""Kernels of convolution and its gradients: images change to MLX's layout and back around each."""

from __future__ import annotations

import mlx.core as mx
from mithril import ops
from mithril.engine.kernels.registry import Run

from mithril_mlx.kernels.convolution import geometry
from mithril_mlx.kernels.precision import in_float32
from mithril_mlx.kernels.registry import Types, kernel


@kernel(ops.Convolution)
@in_float32
def convolution(op: ops.Convolution, types: Types) -> Run:
    """[batch, channels, *spatial] with [out, channels / groups, *window]."""
    x, w = types
    (y,) = op.infer(types)
    return _around(geometry(op, (x.shape[2:], w.shape[2:], y.shape[2:]), x.dtype).forward())


@kernel(ops.ConvolutionInputGradient)
@in_float32
def input_gradient(op: ops.ConvolutionInputGradient, types: Types) -> Run:
    """The gradient of the image; operands (dy, w)."""
    dy, w = types
    return _around(geometry(op, (op.size, w.shape[2:], dy.shape[2:]), dy.dtype).input_gradient())


@kernel(ops.ConvolutionWeightGradient)
@in_float32
def weight_gradient(op: ops.ConvolutionWeightGradient, types: Types) -> Run:
    """The gradient of the weight; operands (x, dy)."""
    x, dy = types
    return _around(geometry(op, (x.shape[2:], op.size, dy.shape[2:]), x.dtype).weight_gradient())


def _around(run: Run) -> Run:
    """Return the function of arrays whose channels come second; weights are laid out alike."""
    return lambda a, b: mx.moveaxis(run(mx.moveaxis(a, 1, -1), mx.moveaxis(b, 1, -1)), -1, 1)
