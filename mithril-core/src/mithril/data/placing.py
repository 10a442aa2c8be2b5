"""How batches lie on a backend: shardings by field, and the parts that this process reads.

Each distinct part that a device of this process holds is read once, on the host, in whichever
thread; the parts go to the devices in the thread of the loop, as an engine takes one command after
the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mithril.data.items import LONE, Field
from mithril.data.sources import Rows
from mithril.errors import OptionError, ShapeError, listing, nearest
from mithril.mesh import Box, PartitionSpec, Sharding, edges
from mithril.runtime.backend import Backend
from mithril.runtime.host import check_numbers, check_range
from mithril.runtime.placement import read_placement
from mithril.runtime.processes import list_backends
from mithril.runtime.specification import TensorSpec
from mithril.trees import Structure, rebuild, spread
from mithril.types import DType, TensorType, as_dtype

FLOATS_OF_NUMPY = DType.float16, DType.float32, DType.float64
"""NumPy tells which of its own numbers overflow in these while it converts them."""
Specs = PartitionSpec | Mapping[str, Any] | tuple[Any, ...] | list[Any] | None


class Part(NamedTuple):
    """One array of a batch, as far as this process holds it.

    Args:
        type: of the whole.
        sharding: how it lies.
        parts: the values of each box, by its edges.
    """

    type: TensorType
    sharding: Sharding
    parts: dict[Any, np.ndarray]

    def cut(self, box: Box) -> np.ndarray:
        """Return the values of a box."""
        return self.parts[edges(box)]


class HostBatch(NamedTuple):
    """A batch whose parts are on the host."""

    structure: Structure
    parts: list[Part]


@dataclass(frozen=True)
class Placing:
    """Where batches go.

    Args:
        backend: they are arrays of it.
        sharding: one spec for all fields, or a tree of them in the form of a batch.
        dtypes: what is said of the element type of fields, by name.
        per_process: whether this process is given only the rows that it holds.
        known: how batches that were seen lie.
    """

    backend: Backend
    sharding: Specs
    dtypes: Mapping[str, DType]
    per_process: bool = False
    known: dict[Any, list[tuple[TensorType, Sharding]]] = dataclass_field(default_factory=dict)

    def read(self, rows: Rows) -> HostBatch:
        """Return the parts of a batch that devices of this process hold.

        Raises:
            ShapeError: a field has no first dimension, or values that its dtype does not hold.
            ShardingError: parts would be uneven, and the backend has `uneven="error"`.
        """
        parts = []
        for number, (type, sharding) in enumerate(self._find_shardings(rows)):
            name = rows.fields[number].name or LONE
            local = self.backend.engine_on(sharding.mesh).local_devices
            boxes = {edges(box): box for box in (sharding.box(d, type.shape) for d in local)}
            first = min((box[0].start for box in boxes.values()), default=0)
            found: dict[Any, np.ndarray] = {}
            for key, box in boxes.items():
                own = _shift(box, first) if self.per_process else box
                found[key] = _convert(rows.read(number, own), type.dtype, name)
            parts.append(Part(type, sharding, found))
        return HostBatch(rows.structure, parts)

    def place(self, batch: HostBatch) -> Any:
        """Return a batch as a tree of arrays of the backend."""
        is_placed = self.sharding is not None
        arrays = [
            self.backend.place(part.type, part.sharding, part.cut, is_placed=is_placed)
            for part in batch.parts
        ]
        return rebuild(batch.structure, arrays)

    def describe(self, rows: Rows) -> Any:
        """Return a batch as a tree of what its arrays will be."""
        is_placed = self.sharding is not None
        specs = (
            TensorSpec(type.shape, type.dtype, sharding.spec if is_placed else None)
            for type, sharding in self._find_shardings(rows)
        )
        return rebuild(rows.structure, specs)

    def _find_shardings(self, rows: Rows) -> list[tuple[TensorType, Sharding]]:
        """Return the type of each field, and how it lies."""
        key = rows.structure, rows.fields
        if key not in self.known:
            self.known[key] = self._make_shardings(rows)
        return self.known[key]

    def _make_shardings(self, rows: Rows) -> list[tuple[TensorType, Sharding]]:
        names = [field.name or LONE for field in rows.fields]
        for name in self.dtypes:
            if name not in names:
                raise OptionError(
                    f"dtypes= names the field '{name}', which the data do not have"
                    f"{nearest(name, names)}; fields: {listing(names)}"
                )
        specs = spread(self.sharding, rows.structure, "a batch")
        found = []
        for field, spec in zip(rows.fields, specs, strict=True):
            what = f"field '{field.name or LONE}' of a batch"
            if not field.shape:
                raise ShapeError(f"{what} is a single number; its first dimension counts samples")
            type = TensorType(field.shape, self._find_dtype(field))
            sharding = read_placement(self.backend.mesh, type, sharding=spec, what=what)
            if self.per_process:
                type = self._enlarge(type, sharding, what)
            if self.backend.uneven == "error":
                sharding.check_even(type.shape, what)
            found.append((type, sharding))
        return found

    def _enlarge(self, type: TensorType, sharding: Sharding, what: str) -> TensorType:
        """Return the type of the whole of which this process is given its rows.

        Raises:
            ShapeError: the rows are not as many as its devices divide, or no stretch.
        """
        mesh, axes, rows = sharding.mesh, sharding.dims[0], type.shape[0]
        local = self.backend.engine_on(mesh).local_devices
        places = {mesh.index_over(device, axes) for device in local}
        is_stretch = bool(places) and max(places) - min(places) + 1 == len(places)
        if not is_stretch or rows % len(places):
            raise ShapeError(
                f"{what} has {rows} rows in this process, whose devices hold {len(places)} of "
                f"{mesh.product(axes)} parts; give a multiple of that, and a sharding by which a "
                f"process holds rows that follow each other"
            )
        return type.with_shape((rows // len(places) * mesh.product(axes), *type.shape[1:]))

    def _find_dtype(self, field: Field) -> DType:
        """Return the dtype of a field: it follows from that of the data, whatever the values.

        Processes see different rows, and all have to find the same.
        """
        name = field.name or LONE
        what = f"field '{name}' of the data"
        check_numbers(field.dtype, f"{what} is")
        found = self.dtypes.get(name)
        if found is None:
            found = _read_dtype(field.dtype, what)
            narrow = {DType.float64: self.backend.precision.default, DType.int64: DType.int32}
            found = narrow.get(found, found)
        self.backend.check_dtype(found, what)
        return found


def _shift(box: Box, rows: int) -> Box:
    """Return a box that begins so many rows earlier."""
    return (slice(box[0].start - rows, box[0].stop - rows), *box[1:])


def _read_dtype(dtype: np.dtype[Any], what: str) -> DType:
    """Return the dtype that NumPy's means, whatever the order of the bytes.

    Raises:
        ShapeError: Mithril has none.
    """
    try:
        return as_dtype(dtype)
    except ShapeError as error:
        raise ShapeError(
            f"{what} has elements of another kind; {error}; leave it out, or say in dtypes= what "
            f"it becomes"
        ) from error


def _convert(part: np.ndarray, dtype: DType, name: str) -> np.ndarray:
    """Return values in the dtype of their field.

    Raises:
        ShapeError: it does not hold them.
    """
    said = f"dtypes={{'{name}': …}}"
    check = partial(
        check_range, part, dtype, f"values of field '{name}' of the data", f" in {said}"
    )
    if dtype in FLOATS_OF_NUMPY and part.dtype.kind in "biuf":  # one pass instead of three
        with np.errstate(over="call", call=lambda *_: check()):
            return part.astype(dtype.numpy, copy=False)
    check()
    if not dtype.is_float and part.dtype.kind not in "biu":
        broken = part[part != np.trunc(part)]
        if broken.size:
            raise ShapeError(
                f"field '{name}' of the data has values that are not whole, such as {broken[0]}, "
                f"and becomes {dtype}; round them, or give {said} a float dtype"
            )
    return part.astype(dtype.numpy, copy=False)


def read_dtypes(given: Mapping[str, object] | None) -> dict[str, DType]:
    """Return the element types that `dtypes=` gives.

    Raises:
        OptionError: it is no mapping.
        ShapeError: one is no dtype.
    """
    if given is not None and not isinstance(given, Mapping):
        raise OptionError(f"dtypes={given!r} is no mapping; give a dtype by field: {{'x': …}}")
    return {name: as_dtype(dtype) for name, dtype in (given or {}).items()}


def find_backend(given: object) -> Backend:
    """Return the backend that is given, or the only one that is open.

    Raises:
        OptionError: it is no backend, or there is none or more than one.
    """
    if isinstance(given, Backend):
        return given
    if given is not None:
        raise OptionError(f"backend={given!r} is no backend; open one, such as ml.NumpyBackend()")
    opened = list_backends()
    if len(opened) != 1 or not isinstance(opened[0], Backend):
        raise OptionError(
            f"batches go to the backend that is open, and {len(opened)} are; give backend="
        )
    return opened[0]


__all__ = ["HostBatch", "Placing", "Specs", "find_backend", "read_dtypes"]
