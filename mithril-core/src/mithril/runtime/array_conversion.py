"""Functions of a backend that take in what exists: values of the host, parts, foreign arrays.

They take one way to say how the array lies on the mesh: `device_mesh=` and `tensor_split=`, or
`sharding=P(…)`; without any it is replicated and unplaced: a plan takes it to where it wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack, cast

import numpy as np

from mithril.engine import Engine
from mithril.engine.checks import check_handle
from mithril.engine.interop import Interop
from mithril.errors import BackendError, ShapeError
from mithril.keywords import checked_keywords
from mithril.mesh import Box, PartitionSpec, Sharding
from mithril.options import Precision
from mithril.runtime.array import Array, ArrayBackend
from mithril.runtime.host import check_range, of_boxes, on_host, one_dtype, read_shape
from mithril.runtime.placement import Split, read_placement
from mithril.types import DType, Shape, TensorType, as_dtype, dtype_of_values


class PlacementOptions(TypedDict, total=False):
    """How a new array lies on the mesh."""

    device_mesh: int | Sequence[int] | None
    tensor_split: Split
    sharding: PartitionSpec | Sharding | None


placing = checked_keywords(*PlacementOptions.__annotations__)
"""Decorates functions that take these options."""


class ArrayConversion:
    """The part of a backend that takes arrays in."""

    engine: Engine
    interop: Interop
    uneven: str
    precision: Precision

    @placing
    def array(
        self, values: object, *, dtype: object = None, **placement: Unpack[PlacementOptions]
    ) -> Array:
        """Return an array with the given values.

        A dtype the engine has is kept; int64 is narrowed to int32 where the values fit, and Python
        floats and float64 take the backend's dtype (float32), unless `dtype` says otherwise. An
        array of the backend's framework is taken as it is and as it lies, unless told otherwise.

        Args:
            values: a number, nested sequences, anything NumPy can read, or an array of the
                backend's framework.
            dtype: element type.
            placement: `device_mesh=` and `tensor_split=`, or `sharding=`.
        """
        is_cut = self.engine.mesh.size > 1 and self.interop.host(values) is not None
        adopted = None if is_cut else self.adopt(values)
        if adopted is not None:
            return self._lay_out(adopted, dtype, placement)
        host, type = self.read_host(values, dtype)
        return self._make(type.shape, type.dtype, placement, lambda box: host[box].copy())

    def read_host(
        self, values: object, dtype: object = None, what: str = ""
    ) -> tuple[np.ndarray, TensorType]:
        """Return values on the host in the dtype they are taken in, and their type.

        Args:
            values: as `array` takes them.
            dtype: element type; by default as `array` reads it.
            what: what they are, for messages.

        Raises:
            ShapeError: they form no array of numbers, or the dtype does not hold them.
            BackendError: the engine has no such dtype.
        """
        host, default = self._read(values)
        chosen = default if dtype is None else as_dtype(dtype)
        _check_integers(host, chosen)
        self.check_dtype(chosen, what)
        host = np.asarray(host, chosen.numpy)
        return host, TensorType(host.shape, chosen)

    @placing
    def from_local_shards(
        self,
        shards: Sequence[object],
        *,
        shape: Sequence[int] | None = None,
        dtype: object = None,
        **placement: Unpack[PlacementOptions],
    ) -> Array:
        """Return the array whose parts the devices of this process hold already.

        In a job of several processes each one gives the parts of its own devices, as its loader
        read them; all give the same shape, dtype and placement.

        Args:
            shards: one part for each device of this process, in the order of
                `addressable_shards`; devices that hold the same part are given it each.
            shape: of the whole; by default parts are of one size and it is a multiple of theirs.
            dtype: element type; by default that of the parts, read as `array` does.
            placement: `device_mesh=` and `tensor_split=`, or `sharding=`.

        Raises:
            ShapeError: there are more or fewer parts than devices, one has another shape than
                its device holds, or another dtype than the others.

        >>> import mithril as ml
        >>> backend = ml.NumpyBackend(ml.Mesh(data=2))
        >>> backend.from_local_shards([[1, 2], [3, 4]], sharding=ml.P("data")).numpy()
        array([1, 2, 3, 4], dtype=int32)
        """
        local = self.engine.local_devices
        read = [self._read(part) for part in shards]
        parts = [part for part, _ in read]
        if len(parts) != len(local):
            raise ShapeError(
                f"from_local_shards is given {len(parts)} parts; this process has {len(local)} "
                f"devices; give one part for each"
            )
        chosen = as_dtype(dtype or one_dtype(local, [found for _, found in read]))
        for part in parts:
            _check_integers(part, chosen)
        first = TensorType(parts[0].shape, chosen)
        sharding = read_placement(self.engine.mesh, first, **placement)
        if shape is None:
            whole = tuple(n * sharding.shards_along(i) for i, n in enumerate(first.shape))
        else:
            whole = read_shape((tuple(shape),), "shape=(2, 3)")
        type = first.with_shape(whole)
        sharding = self._sharding_of(type, {"sharding": sharding})
        return self.place(type, sharding, of_boxes(local, parts, sharding, whole))

    def place(
        self,
        type: TensorType,
        sharding: Sharding,
        produce: Callable[[Box], np.ndarray],
        *,
        is_placed: bool = True,
    ) -> Array:
        """Return the array whose parts a function makes.

        Args:
            type: global shape and dtype.
            sharding: how it lies on the mesh.
            produce: returns the host data of a box.
            is_placed: whether somebody said that it lies so.

        Raises:
            BackendError: the engine has no such dtype.
        """
        self.check_dtype(type.dtype)
        engine = self.engine.on(sharding.mesh)
        shards = engine.put(type, sharding, produce)
        check_handle(engine, "put", shards, type, sharding)
        return Array(cast("Any", self), type, sharding, shards, is_placed)

    def check_dtype(self, dtype: DType, what: str = "") -> None:
        """Raise unless the engine has a dtype.

        Args:
            dtype: any.
            what: which input or option of the user needs it, for the message.

        Raises:
            BackendError: it has not.
        """
        if dtype not in self.engine.dtypes:
            remedy = self.engine.dtype_remedy(dtype)
            needed = f", needed for {what}" if what else ""
            raise BackendError(
                f"backend '{self.engine.name}' has no dtype {dtype}{needed}; {remedy}"
            )

    def adopt(self, x: object) -> Array | None:
        """Return an array of the framework as one of this backend, None if it is none."""
        found = self.interop.adopt(x)
        if found is None:
            return None
        type, sharding, shards, is_placed = found
        return Array(cast("ArrayBackend", self), type, sharding, shards, is_placed)

    def convert(self, x: Any) -> Any:
        """Return an array of NumPy or of the framework as one of this backend; others as is."""
        if isinstance(x, Array):
            return x
        if isinstance(x, np.ndarray):
            return self.array(x)
        adopted = self.adopt(x)
        return x if adopted is None else adopted

    def _lay_out(self, x: Array, dtype: object, placement: PlacementOptions) -> Array:
        """Return an array in a dtype and a placement, if they are given."""
        cast_ = x if dtype is None else x.astype(as_dtype(dtype))
        if not is_said(placement):
            return cast_
        wanted = self._sharding_of(cast_.type, placement)
        return cast("ArrayBackend", self).reshard(cast_, wanted)

    def _make(
        self,
        shape: Shape,
        dtype: DType,
        placement: PlacementOptions,
        produce: Callable[[Box], np.ndarray],
        is_placed: bool | None = None,
    ) -> Array:
        type = TensorType(shape, dtype)
        sharding = self._sharding_of(type, placement)
        said = is_said(placement) if is_placed is None else is_placed
        return self.place(type, sharding, produce, is_placed=said)

    def _sharding_of(self, type: TensorType, placement: PlacementOptions) -> Sharding:
        """Return how an array shall lie.

        Raises:
            ShardingError: it is cut into uneven parts, and the backend has `uneven="error"`.
        """
        sharding = read_placement(self.engine.mesh, type, **placement)
        if self.uneven == "error":
            sharding.check_even(type.shape, "tensor")
        return sharding

    def _read(self, x: object) -> tuple[np.ndarray, DType]:
        """Return values on the host, and their dtype; arrays of the framework keep theirs."""
        host = self.interop.host(x)
        if host is None:
            adopted = self.adopt(x)
            host = None if adopted is None else adopted.numpy()
        if host is not None:
            return host, as_dtype(host.dtype)
        host = on_host(x)
        return host, self._default_dtype(host)

    def _default_dtype(self, host: np.ndarray) -> DType:
        return dtype_of_values(host, self.precision.default)


def is_said(placement: PlacementOptions) -> bool:
    """Return whether anything says how an array shall lie."""
    return any(option is not None for option in placement.values())


def _check_integers(host: np.ndarray, dtype: DType) -> None:
    """Raise unless a dtype of integers holds all values; floats round, and overflow, as NumPy's do.

    Raises:
        ShapeError: it does not hold one of them.
    """
    if dtype.is_integer:
        check_range(host, dtype)
