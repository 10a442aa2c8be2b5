"""What a user passes into an evaluation, as arrays of a backend, without detours.

A loop passes in arrays of the same shapes and dtypes again and again. How `backend.array` reads
them (dtype, whether values fit) is worked out for the first ones; the next ones are only copied,
each device getting its part, and the very number that was passed in last is not even that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mithril.mesh import PartitionSpec
from mithril.runtime.array import Array
from mithril.runtime.backend import Backend
from mithril.runtime.unplaced import HostArray
from mithril.types import DType, TensorType


class InputConverter:
    """Takes in what users pass to a compiled model.

    Args:
        backend: where the arrays go.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: dict[tuple[Any, ...], TensorType] = {}
        self._number: tuple[float, Array] | None = None

    def convert(
        self,
        x: object,
        what: str,
        name: str,
        spec: PartitionSpec | None = None,
        dtype: DType | None = None,
    ) -> Array:
        """Return an array of the backend; values of the host wait there for their plan.

        Args:
            x: what was passed in.
            what: what it is, for messages: `input`, say.
            name: how it is called.
            spec: how it shall lie, if that is said.
            dtype: of a number; by default as `backend.array` reads it.

        Raises:
            BackendError: it is an array of another backend, or none.
        """
        if isinstance(x, Array) and x.kind.backend is self._backend:
            return x if spec is None else self._lay_out(x, spec)
        if type(x) is np.ndarray:
            known = self._known.get((x.shape, x.dtype))
            if known is not None:
                return HostArray(self._backend, known, x)
        elif self._number is not None and x is self._number[0] and type(self._number[1]) is Array:
            known_dtype = self._number[1].kind.type.dtype
            if dtype is None or dtype == known_dtype:
                return self._number[1]
        array = self._backend.as_unplaced(x, f"{what} '{name}'", dtype)
        array = array if spec is None else self._lay_out(array, spec)
        if type(x) is float:  # such as the 1.0 that a loop gives as the gradient of its loss
            self._number = (x, array)
        elif type(x) is np.ndarray and array.dtype.numpy == x.dtype != np.int64:
            # int64 is narrowed where its values fit: they are looked at each time.
            self._known[x.shape, x.dtype] = array.type
        return array

    def _lay_out(self, x: Array, spec: PartitionSpec) -> Array:
        """Return an array as a spec says; an unplaced one is brought there for its plan."""
        return self._backend.reshard(x, spec) if x.is_placed else x
