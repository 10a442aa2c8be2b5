"""How busy each device of a mesh is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mithril.errors import OptionError
from mithril.mesh import Mesh
from mithril.mesh.tables import locate
from mithril.visualize.figures import PathLike
from mithril.visualize.heat import Heat, join_equal_rows, plot_heat
from mithril.visualize.meshes import MeshLike, match_mesh
from mithril.visualize.terminal import print_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike


def plot_device_utilization(
    utilization: ArrayLike,
    device_mesh: MeshLike | None = None,
    *,
    path: PathLike | None = None,
) -> Figure:
    """Return how busy each device is, the darker the busier; neighbouring equal rows are one.

    Args:
        utilization: an array of the shape of the mesh, of numbers from 0 to 1, such as
            `profile.device_utilization_map()`.
        device_mesh: the mesh, or its shape; a mesh says the names of the axes.
        path: where to save the figure; the ending says in which format.

    Raises:
        OptionError: these are no such numbers; matplotlib is not installed, or the path cannot be
            written.
        MeshError: the array has another shape than the mesh.
    """
    return plot_heat(_read(utilization, device_mesh), path)


def print_device_utilization(utilization: ArrayLike, device_mesh: MeshLike | None = None) -> None:
    """Print how busy each device is; neighbouring equal rows are one.

    Args:
        utilization: an array of the shape of the mesh, of numbers from 0 to 1.
        device_mesh: the mesh, or its shape; a mesh says the names of the axes.

    Raises:
        OptionError: these are no such numbers.
        MeshError: the array has another shape than the mesh.

    >>> print_device_utilization([[0.5, 0.25], [0.5, 0.25]], device_mesh=(2, 2))
    device utilization: mean 38 %, least 25 % on device 1
    ┌────────────────┬──────┬──────┐
    │ data ↓ model → │ 0    │ 1    │
    ├────────────────┼──────┼──────┤
    │ 0-1            │ 50 % │ 25 % │
    └────────────────┴──────┴──────┘
    """
    print_table(_read(utilization, device_mesh).tabulate())


def _read(utilization: ArrayLike, device_mesh: MeshLike | None) -> Heat:
    values = _read_shares(utilization)
    own = Mesh.from_shape(values.shape or (1,))
    mesh = match_mesh("device utilization", own, device_mesh, is_named=False)
    rows = values.reshape(-1, mesh.shape[-1])
    shape = mesh.shape[:-1]
    groups = join_equal_rows(range(len(rows)), rows, _write)
    return Heat(
        title=f"device utilization: {_summarize(values)}",
        lines=[_name(group, shape) for group in groups],
        across=[str(number) for number in range(mesh.shape[-1])],
        corner=", ".join(mesh.names[:-1]),
        head=mesh.names[-1],
        values=rows[[group[0] for group in groups]],
        most=1.0,
        write=_write,
        unit=(0.01, "% of the time"),
    )


def _read_shares(utilization: ArrayLike) -> np.ndarray:
    refusal = (
        "device utilization has values that are no shares of time; give numbers from 0 to 1, "
        "such as profile.device_utilization_map()"
    )
    try:
        values = np.asarray(utilization, np.float64)
    except (TypeError, ValueError) as error:
        raise OptionError(refusal) from error
    if not values.size or not np.all((values >= 0) & (values <= 1) | np.isnan(values)):
        raise OptionError(refusal)
    return values


def _summarize(values: np.ndarray) -> str:
    if np.isnan(values).all():
        return "not known"
    mean, least = float(np.nanmean(values)), float(np.nanmin(values))
    return f"mean {_write(mean)}, least {_write(least)} on device {int(np.nanargmin(values))}"


def _write(share: float) -> str:
    return "-" if np.isnan(share) else f"{100 * share:.0f} %"


def _name(group: list[int], shape: tuple[int, ...]) -> str:
    """Return the coordinates of some rows: the first and the last, and what is between them."""
    first, last = locate(group[0], shape), locate(group[-1], shape)
    if first == last:
        return first
    return f"{first}-{last}" if len(shape) == 1 else f"({first})-({last})"
