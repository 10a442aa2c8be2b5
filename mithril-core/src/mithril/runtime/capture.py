"""Arrays that a function or a layer uses from around it: taken in, and passed at every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from mithril.ir.capture import CapturedArray, Convert, Converted
from mithril.mesh import Mesh, Sharding
from mithril.plan import Port
from mithril.runtime.array import Array, ArrayBackend, Kind
from mithril.sharding import FREE, Layout
from mithril.types import DType


def convert_on(backend: ArrayBackend, user: str, default: DType | None = None) -> Convert:
    """Return what makes arrays of a backend of the values that a trace meets.

    NumPy arrays may lie as the plan needs them, other arrays stay as they are.

    Args:
        backend: where they go.
        user: who uses them, for messages: `function 'step'`, say.
        default: the dtype of NumPy's float64; that of the backend by default.
    """

    def convert(x: object, dtype: DType | None = None) -> Converted | None:
        if isinstance(x, np.ndarray | np.generic):
            if dtype is None and x.dtype == np.float64:
                dtype = default
            return Converted(backend.array(x, dtype=dtype), is_free=True)
        array = backend.convert(x)
        if not isinstance(array, Array):
            return None
        return Converted(backend.own(array, f"array used by {user}"), is_free=False)

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
    _laid_out: list[Array] | None = field(default=None, init=False)

    @property
    def kinds(self) -> list[Kind]:
        """How they lie before they are moved."""
        return [_array(item).kind for item in self.arrays]

    def collect(self, ports: Mapping[str, Port]) -> list[Array]:
        """Return the arrays as the plan takes them; they are moved once.

        Args:
            ports: what the plan takes, by name.
        """
        if self._laid_out is None:
            self._laid_out = [
                x.backend.reshard(x, ports[item.name].sharding) if item.is_free else x
                for item, x in zip(self.arrays, map(_array, self.arrays), strict=True)
            ]
        return self._laid_out


def _array(captured: CapturedArray) -> Array:
    return cast("Array", captured.array)
