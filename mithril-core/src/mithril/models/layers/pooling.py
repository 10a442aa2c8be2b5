"""Pooling: the largest or the mean of windows, or of all, of [batch, channels, *spatial]."""

from __future__ import annotations

from collections.abc import Callable

from mithril.errors import ShapeError
from mithril.ir import Tensor
from mithril.models.definition import Check
from mithril.models.layer import layer
from mithril.models.layers.convolution import SPATIAL
from mithril.models.layers.windows import paddings, sizes, sizes_or_none
from mithril.models.shapes import require_features, require_rank
from mithril.models.trace_context import layer_path
from mithril.ops import avg_pool, max_pool, mean, stack
from mithril.ops import max as largest
from mithril.ops.windows import PaddingArgument, Sizes

OutputSize = int | tuple[int | None, int | None]
Combine = Callable[[Tensor, int], Tensor]


@layer(checks={"kernel_size": sizes(1), "stride": sizes_or_none(1), "padding": paddings(1)})
def MaxPool1d(  # noqa: N802
    input: Tensor, *, kernel_size: int, stride: int | None = None, padding: PaddingArgument = 0
) -> Tensor:
    """Keep the largest number of every window of a sequence.

    Args:
        input: [batch, channels, length].
        kernel_size: length of the window.
        stride: step of the window; the window itself by default.
        padding: room before and after, which is never the largest: a number; ((before, after),);
            "valid" for none; or "same" for ceil(length / stride) windows.

    Returns:
        [batch, channels, (length + before + after - kernel_size) // stride + 1].

    Raises:
        ShapeError: the input has another rank, is shorter than the window, or the padding is not
            smaller than the window.

    >>> MaxPool1d(kernel_size=2)
    MaxPool1d(kernel_size=2)
    """
    require_rank(input, ("batch", "channels", *SPATIAL[1]))
    output: Tensor = max_pool(input, kernel_size, stride=stride, padding=padding)
    return output


@layer(checks={"kernel_size": sizes(2), "stride": sizes_or_none(2), "padding": paddings(2)})
def MaxPool2d(  # noqa: N802
    input: Tensor, *, kernel_size: Sizes, stride: Sizes | None = None, padding: PaddingArgument = 0
) -> Tensor:
    """Keep the largest number of every window of an image.

    Args:
        input: [batch, channels, height, width].
        kernel_size: size of the window, or its height and width.
        stride: step of the window, or down and across; the window itself by default.
        padding: room around the image, which is never the largest: a number; for height and width a
            number or (before, after) each; "valid" for none; or "same" for ceil(size / stride)
            windows.

    Returns:
        [batch, channels, (height + before + after - kernel) // stride + 1, likewise for the width].

    Raises:
        ShapeError: the input is no image, or smaller than the window, or the padding is not smaller
            than the window.

    >>> MaxPool2d(kernel_size=2)
    MaxPool2d(kernel_size=2)
    """
    require_rank(input, ("batch", "channels", *SPATIAL[2]))
    output: Tensor = max_pool(input, kernel_size, stride=stride, padding=padding)
    return output


@layer(checks={"kernel_size": sizes(1), "stride": sizes_or_none(1), "padding": paddings(1)})
def AvgPool1d(  # noqa: N802
    input: Tensor,
    *,
    kernel_size: int,
    stride: int | None = None,
    padding: PaddingArgument = 0,
    count_include_pad: bool = True,
) -> Tensor:
    """Average every window of a sequence.

    Args:
        input: [batch, channels, length], floats.
        kernel_size: length of the window.
        stride: step of the window; the window itself by default.
        padding: zeros before and after, as for MaxPool1d.
        count_include_pad: whether these zeros count.

    Returns:
        [batch, channels, (length + before + after - kernel_size) // stride + 1].

    Raises:
        ShapeError: the input has another rank or dtype, or is shorter than the window.

    >>> AvgPool1d(kernel_size=2)
    AvgPool1d(kernel_size=2)
    """
    require_rank(input, ("batch", "channels", *SPATIAL[1]))
    output: Tensor = avg_pool(
        input, kernel_size, stride=stride, padding=padding, count_padding=count_include_pad
    )
    return output


@layer(checks={"kernel_size": sizes(2), "stride": sizes_or_none(2), "padding": paddings(2)})
def AvgPool2d(  # noqa: N802
    input: Tensor,
    *,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: PaddingArgument = 0,
    count_include_pad: bool = True,
) -> Tensor:
    """Average every window of an image.

    Args:
        input: [batch, channels, height, width], floats.
        kernel_size: size of the window, or its height and width.
        stride: step of the window, or down and across; the window itself by default.
        padding: zeros around the image, as for MaxPool2d.
        count_include_pad: whether these zeros count.

    Returns:
        [batch, channels, (height + before + after - kernel) // stride + 1, likewise for the width].

    Raises:
        ShapeError: the input is no image of floats, or smaller than the window.

    >>> AvgPool2d(kernel_size=2)
    AvgPool2d(kernel_size=2)
    """
    require_rank(input, ("batch", "channels", *SPATIAL[2]))
    output: Tensor = avg_pool(
        input, kernel_size, stride=stride, padding=padding, count_padding=count_include_pad
    )
    return output


@layer
def GlobalAvgPool(input: Tensor, *, keepdims: bool = False) -> Tensor:  # noqa: N802
    """Average each channel of a sample over all its spatial dimensions.

    Args:
        input: [batch, channels, *spatial], floats.
        keepdims: whether the spatial dimensions stay, with size 1.

    Returns:
        [batch, channels].

    Raises:
        ShapeError: the input has no spatial dimensions, or nothing in them, or is not of floats.

    >>> GlobalAvgPool()
    GlobalAvgPool()
    """
    require_features(input)
    return mean(input, _spatial(input), keepdims=keepdims)


@layer
def GlobalMaxPool(input: Tensor, *, keepdims: bool = False) -> Tensor:  # noqa: N802
    """Keep the largest number of each channel of a sample.

    Args:
        input: [batch, channels, *spatial], floats.
        keepdims: whether the spatial dimensions stay, with size 1.

    Returns:
        [batch, channels].

    Raises:
        ShapeError: the input has no spatial dimensions, or nothing in them, or is not of floats.

    >>> GlobalMaxPool()
    GlobalMaxPool()
    """
    require_features(input)
    return largest(input, _spatial(input), keepdims=keepdims)


_LENGTH = Check("a positive integer", sizes(1).holds)
_OUTPUT = Check(
    "a positive integer, or two of them or None",
    lambda value: (
        sizes(1).holds(value)
        or (
            isinstance(value, tuple | list)
            and len(value) == 2
            and all(size is None or sizes(1).holds(size) for size in value)
        )
    ),
)


@layer(checks={"output_size": _LENGTH})
def AdaptiveAvgPool1d(input: Tensor, *, output_size: int) -> Tensor:  # noqa: N802
    """Average so many windows of a sequence, spread over it evenly, as PyTorch does.

    Window i goes from floor(i * length / output_size) up to ceil((i + 1) * length / output_size).

    Args:
        input: [batch, channels, length], floats.
        output_size: number of windows.

    Returns:
        [batch, channels, output_size].

    Raises:
        ShapeError: the input has another rank or dtype, or no elements.

    >>> AdaptiveAvgPool1d(4)
    AdaptiveAvgPool1d(output_size=4)
    """
    return _adapt(input, 1, output_size, _average)


@layer(checks={"output_size": _OUTPUT})
def AdaptiveAvgPool2d(input: Tensor, *, output_size: OutputSize) -> Tensor:  # noqa: N802
    """Average so many windows of an image, spread over it evenly, as PyTorch does.

    Along each dimension, window i goes from floor(i * size / output size) up to
    ceil((i + 1) * size / output size).

    Args:
        input: [batch, channels, height, width], floats.
        output_size: number of windows down and across, or one for both; None leaves a dimension.

    Returns:
        [batch, channels, *output_size].

    Raises:
        ShapeError: the input is no image of floats, or has no elements.

    >>> AdaptiveAvgPool2d((7, None))
    AdaptiveAvgPool2d(output_size=(7, None))
    """
    return _adapt(input, 2, output_size, _average)


@layer(checks={"output_size": _LENGTH})
def AdaptiveMaxPool1d(input: Tensor, *, output_size: int) -> Tensor:  # noqa: N802
    """Keep the largest number of so many windows of a sequence, those of AdaptiveAvgPool1d.

    Args:
        input: [batch, channels, length], floats.
        output_size: number of windows.

    Returns:
        [batch, channels, output_size].

    Raises:
        ShapeError: the input has another rank or dtype, or no elements.

    >>> AdaptiveMaxPool1d(4)
    AdaptiveMaxPool1d(output_size=4)
    """
    return _adapt(input, 1, output_size, largest)


@layer(checks={"output_size": _OUTPUT})
def AdaptiveMaxPool2d(input: Tensor, *, output_size: OutputSize) -> Tensor:  # noqa: N802
    """Keep the largest number of so many windows of an image, those of AdaptiveAvgPool2d.

    Args:
        input: [batch, channels, height, width], floats.
        output_size: number of windows down and across, or one for both; None leaves a dimension.

    Returns:
        [batch, channels, *output_size].

    Raises:
        ShapeError: the input is no image of floats, or has no elements.

    >>> AdaptiveMaxPool2d(1)
    AdaptiveMaxPool2d(output_size=1)
    """
    return _adapt(input, 2, output_size, largest)


# ------------------------------------------------------------------ shared pieces


def _spatial(input: Tensor) -> tuple[int, ...]:
    if input.ndim < 3:
        raise ShapeError(
            f"layer '{layer_path()}' needs an input [batch, channels, *spatial], not {input.type}; "
            f"reshape it"
        )
    return tuple(range(2, input.ndim))


def _adapt(input: Tensor, rank: int, output_size: OutputSize, combine: Combine) -> Tensor:
    """Combine windows of each spatial dimension in turn: those of all are their products."""
    require_rank(input, ("batch", "channels", *SPATIAL[rank]))
    require_features(input)
    wanted = (output_size,) * rank if isinstance(output_size, int) else tuple(output_size)
    output = input
    for axis, count in enumerate(wanted, start=2):
        size = input.shape[axis]
        if not size:
            raise ShapeError(
                f"layer '{layer_path()}' pools {input.type}, which has no elements along dimension "
                f"{axis}; give at least one"
            )
        if count is None or count == size:
            continue
        if size % count == 0:  # windows of one size, side by side
            apart = (*output.shape[:axis], count, size // count, *output.shape[axis + 1 :])
            output = combine(output.reshape(*apart), axis + 1)
        else:
            output = _combine_windows(output, axis, count, combine)
    return output


def _average(x: Tensor, axis: int) -> Tensor:
    return mean(x, axis)


def _combine_windows(x: Tensor, axis: int, count: int, combine: Combine) -> Tensor:
    """Combine windows of unequal sizes along a dimension, one after another."""
    size, before = x.shape[axis], (slice(None),) * axis
    parts = []
    for number in range(count):
        start, stop = number * size // count, -(-(number + 1) * size // count)
        parts.append(combine(x[(*before, slice(start, stop))], axis))
    return stack(parts, axis)


__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d",
    "AvgPool1d", "AvgPool2d", "GlobalAvgPool", "GlobalMaxPool", "MaxPool1d", "MaxPool2d",
]  # fmt: skip
