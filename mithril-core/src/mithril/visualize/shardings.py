"""Which device holds which part of an array."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mithril.errors import OptionError, kind_of
from mithril.runtime.array import Array
from mithril.runtime.printing import tabulate_array
from mithril.tables import Table
from mithril.visualize.figures import PathLike, plot_table
from mithril.visualize.terminal import print_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def sharding(x: Array) -> None:
    """Print which devices hold which part of an array; `plot_sharding` draws the same.

    Like `jax.debug.visualize_array_sharding`, for arrays of any rank.

    Args:
        x: an array.

    Raises:
        OptionError: it is no array.
        BackendError: its size is not known yet.

    >>> import mithril as ml
    >>> backend = ml.NumpyBackend(ml.Mesh(data=2, tensor=2))
    >>> sharding(backend.ones(4, 6, sharding=ml.P("data", "tensor")))
    Array float32[4, 6] P('data', 'tensor') on Mesh(data=2, tensor=2)
    ┌─────────────────────────────┬─────┬─────┐
    │ dimension 0 ↓ dimension 1 → │ 0:3 │ 3:6 │
    ├─────────────────────────────┼─────┼─────┤
    │ 0:2                         │ 0   │ 1   │
    │ 2:4                         │ 2   │ 3   │
    └─────────────────────────────┴─────┴─────┘
    each device holds (2, 3)
    """
    print_table(_tabulate(x))


def plot_sharding(x: Array, *, path: PathLike | None = None) -> Figure:
    """Return a grid of the parts of an array, with the devices that hold each.

    Args:
        x: an array.
        path: where to save the figure; the ending says in which format.

    Raises:
        OptionError: it is no array; matplotlib is not installed, or the path cannot be written.
        BackendError: its size is not known yet.
    """
    return plot_table(_tabulate(x), path)


def _tabulate(x: Array) -> Table:
    if not isinstance(x, Array):
        raise OptionError(
            f"a sharding is shown of an array of Mithril, not of {kind_of(x)}; make one with "
            f"backend.array(values)"
        )
    return tabulate_array(x)
