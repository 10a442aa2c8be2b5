"""Grids of devices, and of the parts of a tensor, as tables.

They take plain data, so that a mesh can show itself by them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mithril.tables import PALETTE, ROWS, Table, color_of, list_numbers, make_grid, shorten

Span = tuple[int, int]
"""Where a part starts and stops in a dimension."""
Boxes = Mapping[tuple[Span, ...], Sequence[int]]
"""The devices that hold each part of a tensor."""


def tabulate_devices(title: str, sizes: Mapping[str, int], devices: Sequence[int]) -> Table:
    """Return a grid of devices: a column for each place on the last axis, rows for the others.

    Devices of a colour have one coordinate on the first axis.

    Args:
        title: what it is called.
        sizes: devices along each axis, by name, major first.
        devices: flat index of each device, row-major.
    """
    *others, last = sizes or {"device": 1}
    shape = [sizes[name] for name in others]
    width, height = sizes.get(last, 1), math.prod(shape)
    is_colored = bool(others) and shape[0] <= len(PALETTE)

    def cell(i: int, j: int) -> tuple[str, str]:
        paint = color_of(i * shape[0] // height) if is_colored else PALETTE[0]
        return str(devices[i * width + j]), paint

    lines = [locate(index, shape) for index in range(height)]
    columns = [str(index) for index in range(width)]
    return make_grid(title, name_axes(", ".join(others), last), lines, columns, cell)


def name_axes(down: str, across: str) -> str:
    """Return what stands above the heads of rows: what they are, and what those of columns are.

    >>> name_axes("data", "tensor"), name_axes("", "tensor")
    ('data ↓ tensor →', 'tensor →')
    """
    return f"{down} ↓ {across} →" if down else f"{across} →"


def locate(index: int, shape: Sequence[int]) -> str:
    """Return the coordinates that a row-major index has.

    >>> locate(5, (2, 4))
    '1, 1'
    """
    found: list[int] = []
    for size in reversed(shape):
        index, at = divmod(index, size)
        found.append(at)
    return ", ".join(map(str, found[::-1]))


def tabulate_boxes(title: str, rank: int, boxes: Boxes, notes: tuple[str, ...] = ()) -> Table:
    """Return which devices hold which part of a tensor: a grid, if at most two dimensions are cut.

    Parts of a colour are one. Devices that hold no element are named below.

    Args:
        title: what it is called.
        rank: number of dimensions.
        boxes: the devices that hold each part.
        notes: lines below it.
    """
    full = {box: found for box, found in boxes.items() if all(start < end for start, end in box)}
    idle = sorted(device for box in boxes.keys() - full.keys() for device in boxes[box])
    if idle:
        notes = (*notes, f"without elements: {list_numbers(idle)}")
    spans = [sorted({box[dimension] for box in full}) for dimension in range(rank)]
    axes = [d for d in range(rank) if rank <= 2 or len(spans[d]) > 1]
    if len(axes) > 2 or not full:
        return _list_boxes(title, full, notes)
    numbers = {box: number for number, box in enumerate(full)}
    places = {tuple(box[d] for d in axes): box for box in full}
    lines, columns = [_list_places(spans, axis) for axis in (axes[:-1], axes[-1:])]

    def cell(i: int, j: int) -> tuple[str, str]:
        box = places[lines[i] + columns[j]]
        return list_numbers(sorted(full[box])), color_of(numbers[box])

    names = [f"dimension {axis}" for axis in axes]
    corner = name_axes("".join(names[:-1]), "".join(names[-1:]) or "all")
    lines_shown = [show_box(line) or "devices" for line in lines]
    columns_shown = [show_box(column) for column in columns]
    return make_grid(title, corner, lines_shown, columns_shown, cell, notes)


def _list_places(spans: Sequence[Sequence[Span]], axis: Sequence[int]) -> list[tuple[Span, ...]]:
    """Return the places along a dimension; along none there is one, which has no span."""
    return [(span,) for d in axis for span in spans[d]] or [()]


def _list_boxes(title: str, boxes: Boxes, notes: tuple[str, ...]) -> Table:
    rows = [(show_box(box), list_numbers(sorted(found))) for box, found in boxes.items()]
    chosen = shorten(rows) if rows else ()
    is_whole = len(rows) <= ROWS
    colors = tuple(("", color_of(number)) for number in range(len(rows))) if is_whole else ()
    return Table(title, ("part", "devices"), chosen, colors, notes)


def show_box(box: Sequence[Span]) -> str:
    """Return a part of a tensor as it would be indexed.

    >>> show_box([(0, 2), (4, 8)])
    '0:2, 4:8'
    """
    return ", ".join(f"{start}:{stop}" for start, stop in box)
