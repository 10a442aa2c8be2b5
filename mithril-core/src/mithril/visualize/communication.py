"""How much each device sends to each other one.

Of many devices, neighbours are joined into groups, and what they send each other stands on the
diagonal.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from mithril.errors import OptionError, kind_of
from mithril.mesh import Mesh
from mithril.report import DeviceGraph
from mithril.tables import list_numbers, shade
from mithril.units import BYTES, choose_unit, format_bytes
from mithril.visualize.figures import FONT, PathLike, make_figure, save, write_title
from mithril.visualize.heat import CELLS, Heat, draw_heat, measure_heat
from mithril.visualize.meshes import MeshLike, match_mesh
from mithril.visualize.terminal import print_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GROUPS, PRINTED = 64, 8
"""Of more devices, groups are drawn, or printed."""
WIDTHS = 0.4, 4.0
"""Of the thinnest and the thickest arrow, in points."""
ARROWS = 24
"""Of more arrows all are thinner."""


def plot_communication_graph(
    graph: DeviceGraph,
    device_mesh: MeshLike | None = None,
    *,
    path: PathLike | None = None,
) -> Figure:
    """Return how many bytes go from device to device: as a matrix, and of few devices as arrows.

    Args:
        graph: such as `profile.communication_graph()`.
        device_mesh: the mesh, or its shape, that the graph has to be of.
        path: where to save the figure; the ending says in which format.

    Raises:
        OptionError: it is no such graph; matplotlib is not installed, or the path cannot be
            written.
        MeshError: the graph is of another mesh.
    """
    matrix, mesh = _read(graph, device_mesh)
    heat = _make_heat(matrix, GROUPS)
    width, height = measure_heat(heat)
    count = len(matrix)
    if count > CELLS:
        figure = make_figure(width, max(height, 6.0))
        draw_heat(figure.add_subplot(), heat)
        return save(figure, path)
    side = max(3.5, height)
    figure = make_figure(width + side, side + 0.3)
    write_title(figure, repr(mesh))
    left, right = figure.subplots(1, 2, width_ratios=[side, width])
    _draw_arrows(left, matrix)
    draw_heat(right, heat)
    return save(figure, path)


def print_communication_graph(graph: DeviceGraph, device_mesh: MeshLike | None = None) -> None:
    """Print how many bytes go from device to device.

    Args:
        graph: such as `profile.communication_graph()`.
        device_mesh: the mesh, or its shape, that the graph has to be of.

    Raises:
        OptionError: it is no such graph.
        MeshError: the graph is of another mesh.

    >>> print_communication_graph(DeviceGraph(Mesh(data=2), np.array([[0, 2048], [10, 0]])))
    communication: 2.01 KiB in all, from each device (row) to each device (column)
    ┌─────────────┬──────┬───────┐
    │ from ↓ to → │ 0    │ 1     │
    ├─────────────┼──────┼───────┤
    │ 0           │      │ 2 KiB │
    │ 1           │ 10 B │       │
    └─────────────┴──────┴───────┘
    """
    matrix, _ = _read(graph, device_mesh)
    print_table(_make_heat(matrix, PRINTED).tabulate())


def _read(graph: DeviceGraph, device_mesh: MeshLike | None) -> tuple[np.ndarray, Mesh]:
    if not isinstance(graph, DeviceGraph):
        raise OptionError(
            f"a communication graph is drawn of what profile.communication_graph() returns, not of "
            f"{kind_of(graph)}; make one with ml.profile(backend)"
        )
    mesh = match_mesh("communication graph", graph.mesh, device_mesh, is_named=True)
    return graph.matrix.astype(np.float64), mesh


def _make_heat(matrix: np.ndarray, most: int) -> Heat:
    count = len(matrix)
    size = next(s for s in range(1, count + 1) if count % s == 0 and count // s <= most)
    groups = count // size
    values = matrix.reshape(groups, size, groups, size).sum((1, 3))
    names = [list_numbers(range(at * size, (at + 1) * size)) for at in range(groups)]
    title = f"communication: {format_bytes(matrix.sum())} in all, from each device (row) to each"
    grouped = f"each cell is of {size} × {size} devices"
    return Heat(
        title=f"{title} device (column)" if size == 1 else f"{title} (column); {grouped}",
        lines=names,
        across=names,
        corner="from",
        head="to",
        values=values,
        most=float(values.max()),
        write=lambda value: format_bytes(value) if value else "",
        unit=choose_unit(float(values.max()), BYTES),
    )


def _draw_arrows(axes: Axes, matrix: np.ndarray) -> None:
    """Draw the devices on a circle; an arrow is the thicker the more it carries."""
    from matplotlib.patches import FancyArrowPatch

    count, most = len(matrix), float(matrix.max())
    crossing = int(np.count_nonzero(matrix) - np.count_nonzero(np.diagonal(matrix)))
    thinnest, thickest = WIDTHS[0], WIDTHS[1] * min(1.0, ARROWS / max(crossing, 1))
    angles = [math.pi / 2 - 2 * math.pi * at / count for at in range(count)]
    places = [(math.cos(angle), math.sin(angle)) for angle in angles]
    for (sender, receiver), carried in np.ndenumerate(matrix):
        if carried and sender != receiver:
            share = float(carried) / most
            arrow = FancyArrowPatch(
                places[sender],
                places[receiver],
                connectionstyle="arc3,rad=0.15",
                arrowstyle="-|>",
                mutation_scale=10,
                shrinkA=12,
                shrinkB=12,
                linewidth=max(thinnest, thickest * share),
                color=shade(0.35 + 0.6 * share),
            )
            axes.add_patch(arrow)
    for device, (x, y) in enumerate(places):
        circle = {"boxstyle": "circle,pad=0.3", "facecolor": shade(0.15), "edgecolor": shade(0.9)}
        axes.text(x, y, str(device), ha="center", va="center", fontsize=FONT, bbox=circle)
    axes.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), aspect="equal")
    axes.set_axis_off()
