"""Layers that bring features to a common scale."""

from __future__ import annotations

import math

from mithril.errors import ShapeError
from mithril.ir import Tensor
from mithril.models.definition import POSITIVE, POSITIVE_NUMBER, SHARE
from mithril.models.initializers import Constant
from mithril.models.layer import layer
from mithril.models.shapes import require_features
from mithril.models.trace_context import is_inference, layer_path, parameter
from mithril.ops import cast, layer_norm, rms_norm, stop_gradient
from mithril.ops.batch_norm import batch_norm, normalize_channels
from mithril.ops.group_norm import group_norm


@layer(parameters=("weight", "bias"), checks={"epsilon": POSITIVE_NUMBER})
def LayerNorm(input: Tensor, *, epsilon: float = 1e-5) -> Tensor:  # noqa: N802
    """Bring the features of each position to mean 0 and variance 1, then scale and shift them.

    Parameters are `weight` (features,), starting at 1, and `bias` (features,), starting at 0.

    Args:
        input: [..., features], floats.
        epsilon: added to the variance.

    Returns:
        The same shape.

    Raises:
        ShapeError: the input is a scalar or not of floats.

    >>> LayerNorm()
    LayerNorm()
    """
    require_features(input)
    features = input.shape[-1:]
    gain = parameter("weight", features, Constant(1.0))
    bias = parameter("bias", features, Constant(0.0))
    output: Tensor = layer_norm(input, gain, bias, epsilon)
    return output


@layer(parameters=("weight",), checks={"epsilon": POSITIVE_NUMBER})
def RMSNorm(  # noqa: N802
    input: Tensor, *, epsilon: float = 1e-6, offset: float = 0.0
) -> Tensor:
    """Bring the features of each position to a mean square of 1, then scale them.

    Zhang and Sennrich, "Root mean square layer normalization" (2019). The parameter is `weight`
    (features,), starting at 1 - offset; features are scaled by offset + weight.

    Args:
        input: [..., features], floats.
        epsilon: added to the mean square.
        offset: added to the weight; 1 in Gemma, whose weights are kept as distances from 1.

    Returns:
        The same shape.

    Raises:
        ShapeError: the input is a scalar or not of floats.

    >>> RMSNorm()
    RMSNorm()
    """
    require_features(input)
    weight = parameter("weight", input.shape[-1:], Constant(1.0 - offset))
    output: Tensor = rms_norm(input, weight + offset if offset else weight, epsilon)
    return output


@layer(
    parameters=lambda affine: ("weight", "bias") if affine else (),
    checks={"num_groups": POSITIVE, "epsilon": POSITIVE_NUMBER},
)
def GroupNorm(  # noqa: N802
    input: Tensor, *, num_groups: int, epsilon: float = 1e-5, affine: bool = True
) -> Tensor:
    """Bring each group of channels of a sample to mean 0 and variance 1, then scale and shift them.

    Wu and He, "Group normalization" (2018). Parameters are `weight` (channels,), starting at 1, and
    `bias` (channels,), starting at 0.

    Args:
        input: [batch, channels, ...], floats.
        num_groups: number of groups of neighbouring channels; it divides the channels.
        epsilon: added to the variance.
        affine: whether to scale and shift.

    Returns:
        The same shape.

    Raises:
        ShapeError: the input has no channels or is not of floats, or the channels do not divide
            into the groups.

    >>> GroupNorm(8)
    GroupNorm(num_groups=8)
    """
    require_features(input)
    _require_channels(input)
    channels = input.shape[1]
    if channels % num_groups:
        raise ShapeError(
            f"layer '{layer_path()}' cannot divide {channels} channels into {num_groups} groups; "
            f"choose num_groups that divides {channels}"
        )
    return _normalize_groups(input, num_groups, epsilon, affine)


@layer(
    parameters=lambda affine: ("weight", "bias") if affine else (),
    checks={"epsilon": POSITIVE_NUMBER},
)
def InstanceNorm(  # noqa: N802
    input: Tensor, *, epsilon: float = 1e-5, affine: bool = False
) -> Tensor:
    """Bring each channel of a sample to mean 0 and variance 1, then scale and shift it if asked.

    Ulyanov et al., "Instance normalization" (2016). With `affine`, parameters are `weight`
    (channels,), starting at 1, and `bias` (channels,), starting at 0.

    Args:
        input: [batch, channels, ...], floats, with at least one dimension after the channels.
        epsilon: added to the variance.
        affine: whether to scale and shift.

    Returns:
        The same shape.

    Raises:
        ShapeError: the input is not of floats, or has only one element in each channel.

    >>> InstanceNorm(affine=True)
    InstanceNorm(affine=True)
    """
    require_features(input)
    _require_channels(input)
    if math.prod(input.shape[2:]) == 1:
        raise ShapeError(
            f"layer '{layer_path()}' has 1 element in each channel of {input.type}, which would "
            f"become 0; give [batch, channels, *spatial], or use LayerNorm"
        )
    return _normalize_groups(input, input.shape[1], epsilon, affine)


def _normalize_groups(input: Tensor, groups: int, epsilon: float, affine: bool) -> Tensor:
    """Return groups of channels of each sample at mean 0 and variance 1, scaled and shifted."""
    rows = []
    if affine:
        shape = input.shape[1:2]
        rows = [parameter("weight", shape, Constant(1.0)), parameter("bias", shape, Constant(0.0))]
    output: Tensor = group_norm(input, rows, groups, epsilon)
    return cast(output, input.dtype)


@layer(
    parameters=("weight", "bias"),
    outputs=("output", "new_mean", "new_variance"),
    checks={"momentum": SHARE, "epsilon": POSITIVE_NUMBER},
    statistics={
        "new_mean": ("running_mean", 0.0, lambda input: input.shape[1:2]),
        "new_variance": ("running_variance", 1.0, lambda input: input.shape[1:2]),
    },
)
def BatchNorm(  # noqa: N802
    input: Tensor,
    running_mean: Tensor,
    running_variance: Tensor,
    *,
    momentum: float = 0.1,
    epsilon: float = 1e-5,
) -> dict[str, Tensor]:
    """Bring each channel to mean 0 and variance 1 over the batch, then scale and shift it.

    Ioffe and Szegedy, "Batch normalization" (2015). The running statistics are no hidden state:
    they come in as inputs and go out as outputs, and the next evaluation is given what this one
    returned (zeros and ones at first); `ml.train_step` does that by itself. Compiled for inference
    the layer uses them instead of the batch's, and returns them unchanged. A batch split over
    devices is one batch.

    Parameters are `weight` (channels,), starting at 1, and `bias` (channels,), starting at 0.

    Args:
        input: [batch, channels, ...], floats.
        running_mean: (channels,), the mean over the batches so far.
        running_variance: (channels,), their variance.
        momentum: share of this batch in the new statistics.
        epsilon: added to the variance.

    Returns:
        `output`, of the input's shape, `new_mean` and `new_variance`.

    Raises:
        ShapeError: the input has no channels or is not of floats, the statistics have another
            shape, or, in training, there is only one element of a channel.

    >>> BatchNorm().output_ports
    ('output', 'new_mean', 'new_variance')
    """
    require_features(input)
    channels = _channels(input, running_mean, running_variance)
    gain = parameter("weight", (channels,), Constant(1.0))
    bias = parameter("bias", (channels,), Constant(0.0))
    if is_inference():
        known = (running_mean, running_variance)
        output = normalize_channels(input, gain, bias, *known, epsilon)
        return {"output": output, "new_mean": running_mean, "new_variance": running_variance}
    count = input.size // channels
    if count < 2:
        raise ShapeError(
            f"layer '{layer_path()}' has {count} element per channel in {input.type}; the variance "
            f"of a batch needs two, or compile with inference=True"
        )
    output, average, variance = batch_norm(input, gain, bias, epsilon)
    unbiased = variance * (count / (count - 1))
    return {
        "output": output,
        "new_mean": _move_channels(running_mean, average, momentum),
        "new_variance": _move_channels(running_variance, unbiased, momentum),
    }


def _move_channels(running: Tensor, batch: Tensor, momentum: float) -> Tensor:
    """The statistics learn nothing: no gradient flows through them."""
    held: Tensor = stop_gradient(cast(batch, running.dtype))
    return running * (1.0 - momentum) + held * momentum


def _require_channels(input: Tensor) -> None:
    if input.ndim < 2:
        raise ShapeError(
            f"layer '{layer_path()}' needs an input [batch, channels, ...], not {input.type}; "
            f"reshape it"
        )


def _channels(input: Tensor, *statistics: Tensor) -> int:
    _require_channels(input)
    channels = input.shape[1]
    for given in statistics:
        if given.shape != (channels,):
            raise ShapeError(
                f"layer '{layer_path()}' has running statistics {given.type} for {channels} "
                f"channels; give one number for each channel"
            )
    return channels


__all__ = ["BatchNorm", "GroupNorm", "InstanceNorm", "LayerNorm", "RMSNorm"]
