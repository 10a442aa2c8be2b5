"""Layers over images [batch, channels, height, width]."""

from __future__ import annotations

import math
from typing import Any

from mithril.ir import Tensor
from mithril.models.definition import POSITIVE, Check
from mithril.models.initializers import fan_in_uniform
from mithril.models.layer import layer
from mithril.models.shapes import require_features, require_rank
from mithril.models.trace_context import parameter
from mithril.ops import avg_pool, convolution, max_pool

Pair = int | tuple[int, int]
_IMAGE = ("batch", "channels", "height", "width")


def _each(value: Any, least: int) -> bool:
    """Whether a value is an integer, or two, none below `least`."""
    items = value if isinstance(value, tuple | list) and len(value) == 2 else [value]
    return all(isinstance(i, int) and not isinstance(i, bool) and i >= least for i in items)


_SIZES = Check("a positive integer or two of them", lambda value: _each(value, 1))
_SIZES_OR_NONE = Check(
    "a positive integer, two of them, or None", lambda value: value is None or _each(value, 1)
)
_WIDTH = Check("an integer from 0", lambda value: not isinstance(value, tuple) and _each(value, 0))
_WIDTHS = Check("an integer from 0 or two of them", lambda value: _each(value, 0))


@layer(
    parameters=lambda bias: ("weight", "bias") if bias else ("weight",),
    checks={
        "filters": POSITIVE, "kernel_size": _SIZES, "stride": _SIZES, "padding": _WIDTHS,
        "dilation": _SIZES, "groups": POSITIVE,
    },
)  # fmt: skip
def Conv2d(  # noqa: N802
    input: Tensor,
    *,
    filters: int,
    kernel_size: Pair,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
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
        padding: zeros around the image, or above and below, left and right.
        dilation: step between the elements of a filter, or down and across.
        groups: number of groups of channels that are filtered separately.
        bias: whether to add a bias to each channel.

    Returns:
        [batch, filters, (height + 2 padding - dilation (kernel - 1) - 1) // stride + 1, likewise
        for the width].

    Raises:
        ShapeError: the input is no image of floats, smaller than the kernel, or its channels or the
            filters do not divide into the groups.

    >>> Conv2d(filters=32, kernel_size=3)
    Conv2d(filters=32, kernel_size=3)
    """
    require_rank(input, _IMAGE)
    require_features(input)
    kernel = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
    window = (max(input.shape[1] // groups, 1), *kernel)
    start = fan_in_uniform(math.prod(window))
    weight = parameter("weight", (filters, *window), start)
    output: Tensor = convolution(
        input, weight, stride=stride, padding=padding, dilation=dilation, groups=groups
    )
    return output + parameter("bias", (filters,), start).reshape(filters, 1, 1) if bias else output


@layer(
    parameters=lambda bias: ("weight", "bias") if bias else ("weight",),
    checks={
        "filters": POSITIVE, "kernel_size": POSITIVE, "stride": POSITIVE, "padding": _WIDTH,
        "dilation": POSITIVE, "groups": POSITIVE,
    },
)  # fmt: skip
def Conv1d(  # noqa: N802
    input: Tensor,
    *,
    filters: int,
    kernel_size: int,
    stride: int = 1,
    padding: int = 0,
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
        padding: zeros before and after the sequence.
        dilation: step between the elements of a filter.
        groups: number of groups of channels that are filtered separately.
        bias: whether to add a bias to each channel.

    Returns:
        [batch, filters, (length + 2 padding - dilation (kernel_size - 1) - 1) // stride + 1].

    Raises:
        ShapeError: the input has another rank or dtype, is shorter than the filter, or its channels
            do not divide into the groups.

    >>> Conv1d(filters=8, kernel_size=3)
    Conv1d(filters=8, kernel_size=3)
    """
    require_rank(input, ("batch", "channels", "length"))
    require_features(input)
    window = (max(input.shape[1] // groups, 1), kernel_size)
    start = fan_in_uniform(math.prod(window))
    weight = parameter("weight", (filters, *window), start)
    output: Tensor = convolution(
        input, weight, stride=stride, padding=padding, dilation=dilation, groups=groups
    )
    return output + parameter("bias", (filters,), start).reshape(filters, 1) if bias else output


@layer(
    checks={"kernel_size": _SIZES, "stride": _SIZES_OR_NONE, "padding": _WIDTHS},
)
def AvgPool2d(  # noqa: N802
    input: Tensor,
    *,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    count_include_pad: bool = True,
) -> Tensor:
    """Average every window of an image.

    Args:
        input: [batch, channels, height, width], floats.
        kernel_size: size of the window, or its height and width.
        stride: step of the window, or down and across; the window itself by default.
        padding: zeros around the image, or above and below, left and right.
        count_include_pad: whether these zeros count.

    Returns:
        [batch, channels, (height + 2 padding - kernel) // stride + 1, likewise for the width].

    Raises:
        ShapeError: the input is no image of floats, or smaller than the window.

    >>> AvgPool2d(kernel_size=2)
    AvgPool2d(kernel_size=2)
    """
    require_rank(input, _IMAGE)
    output: Tensor = avg_pool(
        input, kernel_size, stride=stride, padding=padding, count_padding=count_include_pad
    )
    return output


@layer(checks={"kernel_size": _SIZES, "stride": _SIZES_OR_NONE, "padding": _WIDTHS})
def MaxPool2d(  # noqa: N802
    input: Tensor, *, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0
) -> Tensor:
    """Keep the largest number of every window of an image.

    Args:
        input: [batch, channels, height, width].
        kernel_size: size of the window, or its height and width.
        stride: step of the window, or down and across; the window itself by default.
        padding: room around the image, or above and below, left and right; it is never the largest.

    Returns:
        [batch, channels, (height + 2 padding - kernel) // stride + 1, likewise for the width].

    Raises:
        ShapeError: the input is no image, or smaller than the window, or the padding is not smaller
            than the window.

    >>> MaxPool2d(kernel_size=2)
    MaxPool2d(kernel_size=2)
    """
    require_rank(input, _IMAGE)
    output: Tensor = max_pool(input, kernel_size, stride=stride, padding=padding)
    return output


__all__ = ["AvgPool2d", "Conv1d", "Conv2d", "MaxPool2d"]
