"""The partition map: which devices run which layers, and which part of each parameter they hold.

There is a column for each group of devices that run and hold the same. If those are too many, the
devices that hold equally much are a group: of what is split, each of them holds a part of its own.
Layers and parameters that differ in their numbers only share a row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mithril.errors import MithrilError, OptionError
from mithril.mesh import Mesh, Sharding
from mithril.mesh.axes import Axis
from mithril.mesh.tables import Span, name_axes
from mithril.tables import (
    COLUMNS,
    PALETTE,
    Table,
    color_of,
    list_numbers,
    make_grid,
    shade,
)
from mithril.units import format_bytes
from mithril.visualize.figures import PathLike, plot_table
from mithril.visualize.meshes import MeshLike, match_mesh
from mithril.visualize.terminal import print_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PartitionMap = Mapping[str, Any]
ROWS = 48
NUMBER = re.compile(r"0|[1-9][0-9]*")
"""A number that is written as Python writes it: leading zeros stay in the text before it."""
RUNS = PALETTE[-1]
"""Colour of what computes a layer."""

Box = tuple[Span, ...]
Cell = tuple[str, str]


def plot_partition_map(
    partition_map: PartitionMap,
    device_mesh: MeshLike | None = None,
    *,
    path: PathLike | None = None,
) -> Figure:
    """Return which devices run which layers and hold which part of each parameter.

    Args:
        partition_map: what `compiled.get_partition_map()` returns, or has been read from JSON.
        device_mesh: the mesh, or its shape, that the map has to be of.
        path: where to save the figure; the ending says in which format.

    Raises:
        OptionError: it is no partition map; matplotlib is not installed, or the path cannot be
            written.
        MeshError: the map is of another mesh.
    """
    return plot_table(_tabulate(partition_map, device_mesh), path)


def print_partition_map(partition_map: PartitionMap, device_mesh: MeshLike | None = None) -> None:
    """Print which devices run which layers and hold which part of each parameter.

    Args:
        partition_map: what `compiled.get_partition_map()` returns, or has been read from JSON.
        device_mesh: the mesh, or its shape, that the map has to be of.

    Raises:
        OptionError: it is no partition map.
        MeshError: the map is of another mesh.

    >>> import mithril as ml
    >>> model = ml.Model()
    >>> model += ml.Linear(8, sharding={"weight": ml.P("tensor", None)}, name="up")
    >>> backend = ml.NumpyBackend(ml.Mesh(tensor=2))
    >>> compiled = ml.compile(model, backend, shapes={"input": (2, 4)})
    >>> print_partition_map(compiled.get_partition_map(), device_mesh=(2,))
    partition map of Mesh(tensor=2), 80 B of parameters on a device
    ┌────────────────────────────────┬──────────┬──────────┐
    │ layer or parameter ↓ devices → │ 0        │ 1        │
    ├────────────────────────────────┼──────────┼──────────┤
    │ up                             │ runs     │ runs     │
    │ up.weight                      │ [0:4, :] │ [4:8, :] │
    │ up.bias                        │ [0:4]    │ [4:8]    │
    └────────────────────────────────┴──────────┴──────────┘
    """
    print_table(_tabulate(partition_map, device_mesh))


def _tabulate(partition_map: PartitionMap, device_mesh: MeshLike | None) -> Table:
    read = _read(partition_map)
    match_mesh("partition map", read.mesh, device_mesh, is_named=True)
    exact = _group(read, lambda device: tuple(held.box_of(device) for held in read.parameters))
    if len(exact) <= COLUMNS:
        return _fill(read, exact, _show_part)
    alike = _group(read, lambda device: tuple(held.size_of(device) for held in read.parameters))
    return _fill(read, alike, _show_size)


class _Parameter:
    """A parameter of a map: its shape, and the parts that devices hold."""

    def __init__(self, name: str, entry: Mapping[str, Any]) -> None:
        self.name = name
        self.shape = tuple(entry["shape"])
        self._boxes = _find_boxes(
            tuple(entry["axes"].items()),
            tuple(entry["devices"]),
            tuple(tuple(axes) for axes in entry["split"]),
            self.shape,
        )
        self.numbers = {box: at for at, box in enumerate(dict.fromkeys(self._boxes.values()))}

    def box_of(self, device: int) -> Box | None:
        """Return the part that a device holds, or None."""
        return self._boxes.get(device)

    def size_of(self, device: int) -> tuple[int, ...] | None:
        """Return the shape of the part that a device holds, or None."""
        box = self.box_of(device)
        return None if box is None else tuple(stop - start for start, stop in box)


@lru_cache(maxsize=1024)
def _find_boxes(
    axes: tuple[tuple[str, int], ...],
    devices: tuple[int, ...],
    split: tuple[tuple[str, ...], ...],
    shape: tuple[int, ...],
) -> Mapping[int, Box]:
    """Return the part of a tensor that each device holds, those without elements left out."""
    mesh = Mesh.of_axes([Axis(name, size) for name, size in axes], devices)
    parts = Sharding(mesh, split).find_holders(shape)
    full = {box: held for box, held in parts.items() if all(start < stop for start, stop in box)}
    return {device: box for box, held in full.items() for device in held}


class _Map:
    """A partition map that was read: the devices of its layers, and its parameters."""

    def __init__(self, given: PartitionMap) -> None:
        self.mesh = Mesh(given["mesh"], order=given.get("order"))
        self.parameters = [_Parameter(name, entry) for name, entry in given["parameters"].items()]
        layers = {path: frozenset(entry["devices"]) for path, entry in given["layers"].items()}
        self.layers = dict(_find_common(layers, 1))
        self.bytes = [entry["bytes"] for entry in given["devices"].values()]


def _find_common(
    layers: Mapping[str, frozenset[int]], depth: int
) -> Iterator[tuple[str, frozenset[int]]]:
    """Yield layers and their devices; a layer stands for those inside that run where it does.

    Args:
        layers: devices by path.
        depth: parts of a path that are looked at.
    """
    inside: dict[str, dict[str, frozenset[int]]] = {}
    for path, devices in layers.items():
        inside.setdefault(".".join(path.split(".")[:depth]), {})[path] = devices
    for prefix, found in inside.items():
        places = set(found.values())
        if len(places) == 1 or list(found) == [prefix]:
            yield prefix, frozenset().union(*places)
        else:
            yield from _find_common({p: d for p, d in found.items() if p != prefix}, depth + 1)


def _read(given: object) -> _Map:
    try:
        return _Map(given)  # type: ignore[arg-type]
    except (KeyError, TypeError, AttributeError, ValueError, MithrilError) as error:
        raise OptionError(
            f"partition map cannot be read ({type(error).__name__}: {error}); give what "
            f"compiled.get_partition_map() returns, as it is or read from JSON"
        ) from error


def _group(read: _Map, holding: Callable[[int], Hashable]) -> list[list[int]]:
    """Return groups of devices that run the same layers, and hold the same in some sense."""
    found: dict[Hashable, list[int]] = {}
    for device in range(read.mesh.size):
        runs = tuple(device in devices for devices in read.layers.values())
        found.setdefault((runs, holding(device)), []).append(device)
    return list(found.values())


def _fill(
    read: _Map, groups: Sequence[Sequence[int]], show: Callable[[_Parameter, int], Cell]
) -> Table:
    """Return the table of a map.

    Args:
        read: the map.
        groups: the devices of each column.
        show: returns the cell of a parameter for a device.
    """
    firsts = [group[0] for group in groups]
    rows = [(path, _show_runs(devices, firsts)) for path, devices in read.layers.items()]
    if all(len(devices) == read.mesh.size for devices in read.layers.values()) and len(rows) > 1:
        rows = [(f"all {len(rows)} layers", rows[0][1])]
    rows = _join(rows)
    rows += _join([(p.name, tuple(show(p, device) for device in firsts)) for p in read.parameters])
    least, most = format_bytes(min(read.bytes)), format_bytes(max(read.bytes))
    each = most if least == most else f"{least} to {most}"
    notes = (
        ()
        if show is _show_part
        else ("of a parameter that is split, each device of a column holds a part of its own",)
    )
    return make_grid(
        f"partition map of {read.mesh!r}, {each} of parameters on a device",
        name_axes("layer or parameter", "devices"),
        [name for name, _ in rows],
        [list_numbers(group) for group in groups],
        lambda i, j: rows[i][1][j],
        notes,
        most=ROWS,
    )


def _show_runs(devices: frozenset[int], firsts: Sequence[int]) -> tuple[Cell, ...]:
    return tuple(("runs", RUNS) if device in devices else ("", "") for device in firsts)


def _show_part(held: _Parameter, device: int) -> Cell:
    """Return which part of a parameter a device holds; equal colours of a row are equal parts."""
    box = held.box_of(device)
    if box is None:
        return "", ""
    text = ", ".join(
        ":" if (start, stop) == (0, size) else f"{start}:{stop}"
        for (start, stop), size in zip(box, held.shape, strict=True)
    )
    return ("whole" if len(held.numbers) == 1 else f"[{text}]"), color_of(held.numbers[box])


def _show_size(held: _Parameter, device: int) -> Cell:
    """Return how much of a parameter a device holds: the shape, the darker the more of it."""
    size = held.size_of(device)
    if size is None:
        return "", ""
    share = math.prod(size) / max(math.prod(held.shape), 1)
    text = "whole" if len(held.numbers) == 1 else " × ".join(map(str, size))
    return text, shade(0.15 + 0.45 * share)


def _join(rows: Sequence[tuple[str, tuple[Cell, ...]]]) -> list[tuple[str, tuple[Cell, ...]]]:
    """Return rows of which those that differ in the numbers of their names only are one."""
    found: dict[tuple[str, tuple[Cell, ...]], list[str]] = {}
    for name, cells in rows:
        found.setdefault((NUMBER.sub("#", name), cells), []).append(name)
    return [(name, cells) for (_, cells), names in found.items() for name in _join_names(names)]


def _join_names(names: Sequence[str]) -> list[str]:
    """Return names for several that differ in numbers: one, if they have all combinations of them.

    >>> _join_names(["block_0.up", "block_1.up", "block_2.up"])
    ['block_{0-2}.up']
    >>> _join_names(["a0.b0", "a1.b1", "a1.b2"])
    ['a0.b0', 'a1.b{1-2}']
    """
    found = [NUMBER.findall(name) for name in names]
    numbers = [sorted(set(map(int, column))) for column in zip(*found, strict=True)]
    if math.prod(map(len, numbers)) > len(names):
        at = next(column for column, n in enumerate(numbers) if len(n) > 1)
        parts: dict[str, list[str]] = {}
        for name, digits in zip(names, found, strict=True):
            parts.setdefault(digits[at], []).append(name)
        return [joined for part in parts.values() for joined in _join_names(part)]
    between = NUMBER.split(names[0])
    shown = [str(n[0]) if len(n) == 1 else f"{{{list_numbers(n)}}}" for n in numbers]
    return ["".join(text + number for text, number in zip(between, [*shown, ""], strict=True))]
