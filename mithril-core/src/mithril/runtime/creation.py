"""Functions of a backend that make arrays from a shape alone.

All of them take `dtype=` and one way to say how the array lies on the mesh: `device_mesh=` and
`tensor_split=`, or `sharding=P(…)`; without any it is replicated and unplaced, or, where it is made
like another array, lies as that one does. Every device makes just its part. Floats are of the
backend's `dtype` unless another one is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from mithril.errors import BackendError, ShapeError, kind_of
from mithril.mesh import Box
from mithril.ops.reading import read_integer
from mithril.runtime.array import Array
from mithril.runtime.array_conversion import (
    ArrayConversion,
    PlacementOptions,
    is_said,
    placing,
)
from mithril.runtime.host import check_line, check_range, read_number, read_shape
from mithril.runtime.sampling import Key, read_seed
from mithril.types import DType, Scalar, Shape, as_dtype, check_number, to_python


class Creation(ArrayConversion):
    """The part of a backend that makes arrays."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._draws = 0

    @placing
    def zeros(
        self, *shape: Any, dtype: object = None, **placement: Unpack[PlacementOptions]
    ) -> Array:
        """Return an array of zeros; the shape as integers or as one tuple."""
        return self._fill(read_shape(shape, "zeros(2, 3)"), 0, dtype, placement)

    @placing
    def ones(
        self, *shape: Any, dtype: object = None, **placement: Unpack[PlacementOptions]
    ) -> Array:
        """Return an array of ones; the shape as integers or as one tuple."""
        return self._fill(read_shape(shape, "ones(2, 3)"), 1, dtype, placement)

    @placing
    def full(
        self,
        shape: int | Sequence[int],
        value: Scalar,
        *,
        dtype: object = None,
        **placement: Unpack[PlacementOptions],
    ) -> Array:
        """Return an array that holds one value everywhere.

        Raises:
            ShapeError: the dtype does not hold it.
        """
        chosen = dtype if dtype is not None else self._default_dtype(np.asarray(value))
        return self._fill(read_shape((shape,), "full((2, 3), 1)"), value, chosen, placement)

    @placing
    def zeros_like(
        self, x: Array, *, dtype: object = None, **placement: Unpack[PlacementOptions]
    ) -> Array:
        """Return zeros in the shape of an array, and in its dtype and sharding unless given."""
        return self.full_like(x, 0, dtype=dtype, **placement)

    @placing
    def ones_like(
        self, x: Array, *, dtype: object = None, **placement: Unpack[PlacementOptions]
    ) -> Array:
        """Return ones in the shape of an array, and in its dtype and sharding unless given."""
        return self.full_like(x, 1, dtype=dtype, **placement)

    @placing
    def full_like(
        self,
        x: Array,
        value: Scalar,
        *,
        dtype: object = None,
        **placement: Unpack[PlacementOptions],
    ) -> Array:
        """Return one value in the shape of an array, and in its dtype and sharding unless given.

        Raises:
            BackendError: `x` is no array.
            ShapeError: the dtype does not hold the value.
        """
        if not isinstance(x, Array):
            raise BackendError(
                f"full_like takes an array to be like, not {kind_of(x)}; use full(shape, …)"
            )
        chosen = x.dtype if dtype is None else dtype
        if is_said(placement):
            return self._fill(x.shape, value, chosen, placement)
        return self._fill(x.shape, value, chosen, {"sharding": x.sharding}, x.is_placed)

    @placing
    def arange(
        self,
        start: int | float,
        stop: int | float | None = None,
        step: int | float = 1,
        *,
        dtype: object = None,
        **placement: Unpack[PlacementOptions],
    ) -> Array:
        """Return evenly spaced numbers from start (or 0) up to, but without, stop.

        Raises:
            ShapeError: the step is 0.
        """
        first, end = (0, start) if stop is None else (start, stop)
        check_line(first, end, step)
        host = np.arange(first, end, step)
        return self.array(host, dtype=dtype, **placement)

    @placing
    def linspace(
        self,
        start: int | float,
        stop: int | float,
        num: int,
        *,
        endpoint: bool = True,
        dtype: object = None,
        **placement: Unpack[PlacementOptions],
    ) -> Array:
        """Return evenly spaced numbers from start to stop, the end included or not.

        Args:
            start: the first number.
            stop: the last one, or, without `endpoint`, the one after it.
            num: how many.
            endpoint: whether `stop` is one of them.
            dtype: a float dtype.
            placement: `device_mesh=` and `tensor_split=`, or `sharding=`.

        >>> import mithril as ml
        >>> ml.NumpyBackend().linspace(0, 1, 5).numpy()
        array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
        """
        given = (num,) if isinstance(num, tuple | list) else ((num,),)
        (count,) = read_shape(given, "linspace(0, 1, 5)")
        chosen = self._float_dtype("linspace", dtype)
        host = np.linspace(read_number(start), read_number(stop), count, endpoint=endpoint)
        return self._make((count,), chosen, placement, lambda box: host[box].copy())

    @placing
    def eye(
        self,
        rows: int,
        columns: int | None = None,
        *,
        k: int = 0,
        dtype: object = None,
        **placement: Unpack[PlacementOptions],
    ) -> Array:
        """Return a matrix with ones on its k-th diagonal and zeros elsewhere.

        Args:
            rows: number of rows.
            columns: number of columns, by default that of rows.
            k: 0 for the main diagonal, positive above it.
            dtype: the backend's by default.
            placement: `device_mesh=` and `tensor_split=`, or `sharding=`.
        """
        shape = read_shape((rows, rows if columns is None else columns), "eye(2, 3)")

        diagonal = read_integer(k, "eye's k")

        def produce(box: Box) -> np.ndarray:
            row, column = (np.arange(part.start, part.stop) for part in box)
            return np.equal(row[:, None] + diagonal, column)

        return self._make(shape, as_dtype(dtype or self.precision.default), placement, produce)

    @placing
    def rand(
        self,
        *shape: Any,
        seed: int | None = None,
        dtype: object = None,
        **placement: Unpack[PlacementOptions],
    ) -> Array:
        """Return numbers uniform in [0, 1), equal on every mesh for equal seeds.

        Args:
            shape: integers, or one tuple.
            seed: by default the backend's seed and the number of draws so far.
            dtype: a float dtype, the backend's by default.
            placement: `device_mesh=` and `tensor_split=`, or `sharding=`.
        """
        sizes, key = read_shape(shape, "rand(2, 3)"), self._key("rand", seed)
        chosen = self._float_dtype("rand", dtype)
        one, zero = np.asarray([1.0, 0.0]).astype(chosen.numpy)
        last = float(np.nextafter(one, zero))  # rounding to the dtype must not give 1.0

        def produce(box: Box) -> np.ndarray:
            drawn: np.ndarray = np.minimum(key.uniform(sizes, box), last)
            return drawn

        return self._make(sizes, chosen, placement, produce)

    @placing
    def randn(
        self,
        *shape: Any,
        seed: int | None = None,
        dtype: object = None,
        **placement: Unpack[PlacementOptions],
    ) -> Array:
        """Return numbers of the standard normal distribution; see `rand`."""
        sizes, key = read_shape(shape, "randn(2, 3)"), self._key("randn", seed)
        chosen = self._float_dtype("randn", dtype)
        return self._make(sizes, chosen, placement, lambda box: key.normal(sizes, box))

    @placing
    def randint(
        self,
        low: int,
        high: int,
        shape: int | Sequence[int],
        *,
        seed: int | None = None,
        dtype: object = None,
        **placement: Unpack[PlacementOptions],
    ) -> Array:
        """Return integers uniform in [low, high), int32 by default; see `rand`.

        Raises:
            ShapeError: the range is empty.
        """
        low, high = to_python(low), to_python(high)
        if not isinstance(low, int) or not isinstance(high, int) or high <= low:
            raise ShapeError(
                f"randint has low {low!r} and high {high!r}; give integers, the second larger"
            )
        sizes = read_shape((shape,), "randint(0, 10, (2, 3))")
        key = self._key("randint", seed)
        chosen = as_dtype(dtype or DType.int32)
        check_range(np.asarray([low, high - 1]), chosen)
        return self._make(sizes, chosen, placement, lambda box: key.integers(sizes, box, low, high))

    def _fill(
        self,
        shape: Shape,
        value: Scalar,
        dtype: object,
        placement: PlacementOptions,
        is_placed: bool | None = None,
    ) -> Array:
        chosen = as_dtype(dtype or self.precision.default)
        number = read_number(value)
        check_number(number, chosen)
        scalar = np.asarray(number, chosen.numpy)

        def produce(box: Box) -> np.ndarray:
            return np.full([part.stop - part.start for part in box], scalar)

        return self._make(shape, chosen, placement, produce, is_placed)

    def _float_dtype(self, function: str, dtype: object) -> DType:
        chosen = as_dtype(dtype or self.precision.default)
        if not chosen.is_float:
            raise ShapeError(f"{function} makes floats, not {chosen}; use randint or arange")
        return chosen

    def _key(self, function: str, seed: int | None) -> Key:
        if seed is not None:
            return Key(read_seed(seed), function)
        self._draws += 1
        return Key(self._seed, f"{function}:{self._draws}")
