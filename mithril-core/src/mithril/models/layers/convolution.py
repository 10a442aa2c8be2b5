"""Convolutions over sequences, images and volumes [batch, channels, *spatial]."""

from __future__ import annotations

import math

from mithril.errors import ShapeError
from mithril.ir import Tensor
from mithril.models.definition import POSITIVE
from mithril.models.initializers import fan_in_uniform
from mithril.models.layer import layer
from mithril.models.layers.windows import paddings, sizes, widths
from mithril.models.shapes import require_features, require_rank
from mithril.models.trace_context import layer_path, parameter
from mithril.ops import conv_transpose, convolution
from mithril.ops.windows import PaddingArgument, Sizes, Widths, read_sizes

SPATIAL = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}


def _names(bias: bool) -> tuple[str, ...]:
    return ("weight", "bias") if bias else ("weight",)


@layer(
    parameters=_names,
    checks={
        "filters": POSITIVE, "kernel_size": sizes(1), "stride": sizes(1), "padding": paddings(1),
        "dilation": sizes(1), "groups": POSITIVE,
    },
)  # fmt: skip
def Conv1d(  # noqa: N802
    input: Tensor,
    *,
    filters: int,
    kernel_size: int,
    stride: int = 1,
    padding: PaddingArgument = 0,
    dilation: int = 1,
    groups: int = 1,
    bias: bool = True,
) -> Tensor:
    """Slide learned filters over a sequence of channels.

    Parameters are `weight` (filters, channels / groups, kernel_size) and `bias` (filters,), both
    starting uniform within 1 / sqrt(elements of a filter).

    Args:
        input: [batch, channels, length], floats.
        filters: number of channels of the output.
        kernel_size: length of a filter.
        stride: step of the filter.
        padding: zeros before and after the sequence: a number; ((before, after),); "valid" for
            none; or "same" for ceil(length / stride) elements in the output.
        dilation: step between the elements of a filter.
        groups: number of groups of channels that are filtered separately.
        bias: whether to add a bias to each channel.

    Returns:
        [batch, filters, (length + before + after - dilation (kernel_size - 1) - 1) // stride + 1].

    Raises:
        ShapeError: the input has another rank or dtype, is shorter than the filter, or its channels
            do not divide into the groups.

    >>> Conv1d(filters=8, kernel_size=3, padding=((2, 0),))
    Conv1d(filters=8, kernel_size=3, padding=((2, 0),))
    """
    return _convolve(input, 1, filters, kernel_size, stride, padding, dilation, groups, bias)


@layer(
    parameters=_names,
    checks={
        "filters": POSITIVE, "kernel_size": sizes(2), "stride": sizes(2), "padding": paddings(2),
        "dilation": sizes(2), "groups": POSITIVE,
    },
)  # fmt: skip
def Conv2d(  # noqa: N802
    input: Tensor,
    *,
    filters: int,
    kernel_size: Sizes,
    stride: Sizes = 1,
    padding: PaddingArgument = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    bias: bool = True,
) -> Tensor:
    """Slide learned filters over an image.

    Parameters are `weight` (filters, channels / groups, height, width of the kernel) and `bias`
    (filters,), both starting uniform within 1 / sqrt(elements of a filter).

    Args:
        input: [batch, channels, height, width], floats.
        filters: number of channels of the output.
        kernel_size: size of a filter, or its height and width.
        stride: step of the filter, or down and across.
        padding: zeros around the image: a number; for height and width a number or (before, after)
            each; "valid" for none; or "same" for ceil(size / stride) elements in the output.
        dilation: step between the elements of a filter, or down and across.
        groups: number of groups of channels that are filtered separately.
        bias: whether to add a bias to each channel.

    Returns:
        [batch, filters, (height + before + after - dilation (kernel - 1) - 1) // stride + 1,
        likewise for the width].

    Raises:
        ShapeError: the input is no image of floats, smaller than the kernel, or its channels or the
            filters do not divide into the groups.

    >>> Conv2d(filters=32, kernel_size=3, padding="same")
    Conv2d(filters=32, kernel_size=3, padding='same')
    """
    return _convolve(input, 2, filters, kernel_size, stride, padding, dilation, groups, bias)


@layer(
    parameters=_names,
    checks={
        "filters": POSITIVE, "kernel_size": sizes(3), "stride": sizes(3), "padding": paddings(3),
        "dilation": sizes(3), "groups": POSITIVE,
    },
)  # fmt: skip
def Conv3d(  # noqa: N802
    input: Tensor,
    *,
    filters: int,
    kernel_size: Sizes,
    stride: Sizes = 1,
    padding: PaddingArgument = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    bias: bool = True,
) -> Tensor:
    """Slide learned filters over a volume, or over an image and time.

    Parameters are `weight` (filters, channels / groups, depth, height, width of the kernel) and
    `bias` (filters,), both starting uniform within 1 / sqrt(elements of a filter).

    Args:
        input: [batch, channels, depth, height, width], floats.
        filters: number of channels of the output.
        kernel_size: size of a filter, or its depth, height and width.
        stride: step of the filter, or along depth, height and width.
        padding: zeros around the volume, as for Conv2d.
        dilation: step between the elements of a filter, or along depth, height and width.
        groups: number of groups of channels that are filtered separately.
        bias: whether to add a bias to each channel.

    Returns:
        [batch, filters, (depth + before + after - dilation (kernel - 1) - 1) // stride + 1,
        likewise for height and width].

    Raises:
        ShapeError: the input is no volume of floats, smaller than the kernel, or its channels or
            the filters do not divide into the groups.

    >>> Conv3d(filters=8, kernel_size=(1, 3, 3))
    Conv3d(filters=8, kernel_size=(1, 3, 3))
    """
    return _convolve(input, 3, filters, kernel_size, stride, padding, dilation, groups, bias)


@layer(
    parameters=_names,
    checks={
        "filters": POSITIVE, "kernel_size": sizes(1), "stride": sizes(1),
        "padding": paddings(1, ()), "output_padding": widths(1), "groups": POSITIVE,
        "dilation": sizes(1),
    },
)  # fmt: skip
def ConvTranspose1d(  # noqa: N802
    input: Tensor,
    *,
    filters: int,
    kernel_size: int,
    stride: int = 1,
    padding: Widths = 0,
    output_padding: int = 0,
    groups: int = 1,
    bias: bool = True,
    dilation: int = 1,
) -> Tensor:
    """Write learned filters into a longer sequence, each times an element of the input.

    The transpose of Conv1d with the same options. Parameters are `weight` (channels, filters /
    groups, kernel_size), as in PyTorch, and `bias` (filters,), both starting uniform within
    1 / sqrt(filters / groups * kernel_size).

    Args:
        input: [batch, channels, length], floats.
        filters: number of channels of the output.
        kernel_size: length of a filter.
        stride: how far apart elements of the input are written.
        padding: how much is cut off before and after the output: a number or ((before, after),).
        output_padding: elements more at its end, less than the stride.
        groups: number of groups of channels that are filtered separately.
        bias: whether to add a bias to each channel.
        dilation: step between the elements of a filter.

    Returns:
        [batch, filters, (length - 1) stride - before - after + dilation (kernel_size - 1) +
        output_padding + 1].

    Raises:
        ShapeError: the input has another rank or dtype, channels or filters do not divide into the
            groups, the output has no elements, or output_padding is not less than the stride.

    >>> ConvTranspose1d(filters=8, kernel_size=4, stride=2, padding=1)
    ConvTranspose1d(filters=8, kernel_size=4, stride=2, padding=1)
    """
    sizes = (kernel_size, stride, padding, dilation)
    return _transpose(input, 1, filters, sizes, output_padding, groups, bias)


@layer(
    parameters=_names,
    checks={
        "filters": POSITIVE, "kernel_size": sizes(2), "stride": sizes(2),
        "padding": paddings(2, ()), "output_padding": widths(2), "groups": POSITIVE,
        "dilation": sizes(2),
    },
)  # fmt: skip
def ConvTranspose2d(  # noqa: N802
    input: Tensor,
    *,
    filters: int,
    kernel_size: Sizes,
    stride: Sizes = 1,
    padding: Widths = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    bias: bool = True,
    dilation: Sizes = 1,
) -> Tensor:
    """Write learned filters into a larger image, each times an element of the input.

    The transpose of Conv2d with the same options. Parameters are `weight` (channels, filters /
    groups, height, width of the kernel), as in PyTorch, and `bias` (filters,), both starting
    uniform within 1 / sqrt(filters / groups * elements of the kernel).

    Args:
        input: [batch, channels, height, width], floats.
        filters: number of channels of the output.
        kernel_size: size of a filter, or its height and width.
        stride: how far apart elements of the input are written, or down and across.
        padding: how much is cut off around the output: a number, or for height and width a number
            or (before, after) each.
        output_padding: elements more at its end, less than the stride, or below and to the right.
        groups: number of groups of channels that are filtered separately.
        bias: whether to add a bias to each channel.
        dilation: step between the elements of a filter, or down and across.

    Returns:
        [batch, filters, (height - 1) stride - before - after + dilation (kernel - 1) +
        output_padding + 1, likewise for the width].

    Raises:
        ShapeError: the input is no image of floats, channels or filters do not divide into the
            groups, the output has no elements, or output_padding is not less than the stride.

    >>> ConvTranspose2d(filters=8, kernel_size=2, stride=2)
    ConvTranspose2d(filters=8, kernel_size=2, stride=2)
    """
    sizes = (kernel_size, stride, padding, dilation)
    return _transpose(input, 2, filters, sizes, output_padding, groups, bias)


# ------------------------------------------------------------------ shared pieces


def _convolve(
    input: Tensor,
    rank: int,
    filters: int,
    kernel_size: Sizes,
    stride: Sizes,
    padding: PaddingArgument,
    dilation: Sizes,
    groups: int,
    bias: bool,
) -> Tensor:
    """Convolve an input of so many spatial dimensions with a new weight."""
    require_rank(input, ("batch", "channels", *SPATIAL[rank]))
    require_features(input)
    window = (max(input.shape[1] // groups, 1), *read_sizes(kernel_size, rank, "kernel_size"))
    start = fan_in_uniform(math.prod(window))
    weight = parameter("weight", (filters, *window), start)
    output: Tensor = convolution(
        input, weight, stride=stride, padding=padding, dilation=dilation, groups=groups
    )
    if bias:
        output = output + parameter("bias", (filters,), start).reshape(filters, *(1,) * rank)
    return output


def _transpose(
    input: Tensor,
    rank: int,
    filters: int,
    sizes: tuple[Sizes, Sizes, Widths, Sizes],
    output_padding: Sizes,
    groups: int,
    bias: bool,
) -> Tensor:
    """Convolve backwards: `sizes` are those of kernel, stride, padding and dilation."""
    require_rank(input, ("batch", "channels", *SPATIAL[rank]))
    require_features(input)
    channels = input.shape[1]
    if channels % groups or filters % groups:
        raise ShapeError(
            f"layer '{layer_path()}' cannot divide {channels} channels and {filters} filters into "
            f"{groups} groups; choose groups that divide both"
        )
    kernel_size, stride, padding, dilation = sizes
    window = (filters // groups, *read_sizes(kernel_size, rank, "kernel_size"))
    start = fan_in_uniform(
        math.prod(window)
    )  # PyTorch counts the second dimension as what comes in
    output: Tensor = conv_transpose(
        input,
        parameter("weight", (channels, *window), start),
        stride=stride,
        padding=padding,
        output_padding=output_padding,
        dilation=dilation,
        groups=groups,
    )
    if bias:
        output = output + parameter("bias", (filters,), start).reshape(filters, *(1,) * rank)
    return output


__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d"]
