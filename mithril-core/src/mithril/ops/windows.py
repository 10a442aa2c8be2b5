"""What convolutions and pools take as sizes, steps and padding of their windows."""

from __future__ import annotations

from collections.abc import Sequence

from mithril.errors import ShapeError
from mithril.ops.reading import is_list, read_integer, read_integers
from mithril.option_checks import check_choice
from mithril.types import Shape

Padding = tuple[tuple[int, int], ...]
"""What an op has: (before, after) for each spatial dimension."""
Sizes = int | Sequence[int]
"""What is passed as sizes or steps: a number for all spatial dimensions, or one for each."""
Widths = int | Sequence[int | tuple[int, int]]
"""What is passed as widths: a number for all sides, or for each spatial dimension a number or
(before, after)."""
PaddingArgument = str | Widths
"""What is passed as padding: "same", "valid", or widths."""
PADDING_WORDS = ("same", "valid")


def read_sizes(value: Sizes, rank: int, what: str) -> Shape:
    """Return one number for each spatial dimension.

    Args:
        value: a number for all of them, or one for each.
        rank: how many spatial dimensions there are.
        what: what it is, for messages: `convolution's stride`, say.

    Raises:
        ShapeError: a number is no integer, or there is another number of them.

    >>> read_sizes(2, 3, "convolution's stride")
    (2, 2, 2)
    """
    if not is_list(value):
        return (read_integer(value, what),) * rank
    sizes = read_integers(value, what)
    if len(sizes) != rank:
        raise ShapeError(
            f"{what} {sizes} is given for {len(sizes)} spatial dimensions, the input has {rank}; "
            f"give one number for each"
        )
    return sizes


def read_widths(value: Widths, rank: int, what: str) -> Padding:
    """Return (before, after) for each spatial dimension.

    Args:
        value: a number for all sides, or for each spatial dimension a number or (before, after).
        rank: how many spatial dimensions there are.
        what: what it is, for messages.

    Raises:
        ShapeError: a number is no integer, or there is another number of them.

    >>> read_widths((1, (0, 2)), 2, "convolution's padding")
    ((1, 1), (0, 2))
    """
    if isinstance(value, str) or not is_list(value):
        number = read_integer(value, what)
        return ((number, number),) * rank
    sides = [
        read_integers(item, what) if is_list(item) else (read_integer(item, what),) * 2
        for item in value
    ]
    for pair in sides:
        if len(pair) != 2:
            raise ShapeError(
                f"{what} has {pair} for a dimension; give one number, or two as (before, after)"
            )
    if len(sides) != rank:
        raise ShapeError(
            f"{what} {tuple(sides)} is given for {len(sides)} spatial dimensions, the input has "
            f"{rank}; give one number or (before, after) for each"
        )
    return tuple((before, after) for before, after in sides)


def read_padding(
    value: PaddingArgument, shape: Sequence[int], extents: Shape, steps: Shape, what: str
) -> Padding:
    """Return what is put around an input: (before, after) for each spatial dimension.

    With "same" there are as many windows as steps fit into the input, ceil(size / step), and what
    does not halve is added behind, as PyTorch (with steps of 1) and JAX do.

    Args:
        value: "same"; "valid" for nothing; or what `read_widths` takes.
        shape: spatial sizes of the input.
        extents: those of a window, what a dilation leaves out included.
        steps: its steps.
        what: what it is, for messages.

    Raises:
        OptionError: it is another word.
        ShapeError: a number is no integer, or there is another number of them.

    >>> read_padding("same", (7,), (4,), (2,), "convolution's padding")
    ((1, 2),)
    """
    if not isinstance(value, str):
        return read_widths(value, len(shape), what)
    check_choice(what, value, PADDING_WORDS)
    if value == "valid" or len(extents) != len(shape) or min(steps, default=0) < 1:
        return ((0, 0),) * len(shape)  # the op refuses windows that cannot be
    missing = [
        max((-(-size // step) - 1) * step + extent - size, 0)
        for size, extent, step in zip(shape, extents, steps, strict=True)
    ]
    return tuple((total // 2, total - total // 2) for total in missing)


__all__: list[str] = []
