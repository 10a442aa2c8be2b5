"""Arrays that a function or a layer uses from around it: taken in, and passed at every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from mithril.ir.capture import CapturedArray, Convert, Converted
from mithril.mesh import Mesh, Sharding
from mithril.plan import Port
from mithril.runtime.array import Array, ArrayBackend, Kind
from mithril.runtime.unplaced import settle
from mithril.sharding import FREE, Layout
from mithril.types import DType


def convert_on(backend: ArrayBackend, user: str, default: DType | None = None) -> Convert:
    """Return what makes arrays of a backend of the values that a trace meets.

    Unplaced arrays go where the plan needs them; those of NumPy wait on the host for it.

    Args:
        backend: where they go.
        user: who uses them, for messages: `function 'step'`, say.
        default: the dtype of NumPy's float64; that of the backend by default.
    """

    def convert(x: object, dtype: DType | None = None) -> Converted | None:
        what = f"array used by {user}"
        if isinstance(x, np.ndarray | np.generic):
            if dtype is None and x.dtype == np.float64:
                dtype = default
            # A copy: the values are those of now, and the user may write to the array.
            return Converted(backend.as_unplaced(x.copy(), what, dtype), is_free=True)
        array = backend.convert(x)
        if not isinstance(array, Array):
            return None
        return Converted(backend.own(array, what), is_free=not array.is_placed)

    return convert


def layout_of(captured: CapturedArray, whole: Mesh | None = None) -> Layout:
    """Return how a captured array arrives.

    Args:
        captured: the array.
        whole: the mesh on which it is replicated if it may lie anywhere; None for a free choice.
    """
    if not captured.is_free:
        return Layout(arrives=_array(captured).sharding)
    rank = captured.array.type.rank
    return Layout(arrives=FREE if whole is None else Sharding.replicated(whole, rank))


@dataclass(slots=True, eq=False)
class Captured:
    """The captured arrays of one plan.

    Args:
        arrays: them, in the order of its hidden inputs.
    """

    arrays: Sequence[CapturedArray]

    @property
    def kinds(self) -> list[Kind]:
        """How they lie now."""
        return [_array(item).kind for item in self.arrays]

    @property
    def held(self) -> list[Array]:
        """The arrays themselves, in order."""
        return list(map(_array, self.arrays))

    def collect(self, ports: Mapping[str, Port]) -> list[Array]:
        """Return the arrays as the plan takes them; unplaced ones are brought there.

        Args:
            ports: what the plan takes, by name.
        """
        wanted = [ports[item.name].sharding for item in self.arrays]
        return settle(self.held, wanted)


def _array(captured: CapturedArray) -> Array:
    return cast("Array", captured.array)
