"""Array: a concrete tensor of a backend, whole or sharded over its mesh."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, Never, Protocol, Self, cast

import numpy as np

from mithril import ops
from mithril.compiler.communication_options import Communication
from mithril.engine import Engine, Handle
from mithril.engine.checks import check_part
from mithril.engine.interop import Interop
from mithril.engine.protocol import Produce
from mithril.engine.shards import trim_padding
from mithril.errors import BackendError, ShapeError
from mithril.ir import Op, Operand
from mithril.mesh import Box, Mesh, PartitionSpec, Sharding, edges
from mithril.options import Precision
from mithril.plugins.published import suggest_attribute
from mithril.runtime.eager_calls import EagerCalls, name_call
from mithril.runtime.numpy_functions import call_numpy
from mithril.runtime.printing import print_array, tabulate_array
from mithril.runtime.sharing import refuse_pickle
from mithril.tables import render_html
from mithril.types import DType, Scalar, Shape, TensorType

_new = object.__new__
_UNKNOWN: Any = None
"""Type of an array without a size, and sharding of one that may lie anywhere."""


class ArrayBackend(Protocol):
    """What arrays, and what is built on them, ask of their backend; see `Backend`.

    Its functions, such as `backend.argmax`, are found by name.
    """

    engine: Engine
    interop: Interop
    precision: Precision
    uneven: str
    communication: Communication
    calls: EagerCalls

    @property
    def name(self) -> str:
        """The backend's name."""

    @property
    def mesh(self) -> Mesh:
        """The device mesh."""

    def engine_on(self, mesh: Mesh) -> Engine:
        """Return the engine of the devices of a mesh."""

    def own(self, x: object, what: str) -> Array:
        """Return `x` if it is an array of this backend."""

    def adopt(self, x: object) -> Array | None:
        """Return an array of the backend's framework as one of Mithril's."""

    def convert(self, x: Any) -> Any:
        """Return an array of the framework as one of Mithril's, anything else as it is."""

    def as_array(self, x: object, what: str) -> Array:
        """Return an array of the backend."""

    def as_unplaced(self, x: object, what: str, dtype: DType | None = None) -> Array:
        """Return an array of the backend; values of the host wait there for a plan."""

    def reshard(self, x: Array, sharding: PartitionSpec | Sharding) -> Array:
        """Return an array laid out otherwise on the mesh."""

    def lay_out(self, x: Array, wanted: Sharding) -> Array:
        """Return an array of the backend that lies as a plan says."""

    def array(self, values: object, *, dtype: object = None, sharding: Any = ...) -> Array:
        """Return an array with the given values."""

    def full(self, shape: Shape, value: Scalar, *, dtype: object = None) -> Array:
        """Return an array filled with a value."""

    def constant(self, value: Scalar, dtype: DType) -> Array:
        """Return a number that ops are applied to, the same array for the same number."""

    def place(
        self, type: TensorType, sharding: Sharding, produce: Produce, *, is_placed: bool = True
    ) -> Array:
        """Make an array of the parts that a function returns."""

    def run(self, op: Op, operands: Sequence[Operand]) -> tuple[Array, ...]:
        """Run one op on arrays now."""

    def __getattr__(self, name: str) -> Any: ...


class Kind(NamedTuple):
    """What a plan must know of an array; arrays that one output of a plan gives share it.

    Only the sharding of a placed array binds a plan: somebody said it. An unplaced array is brought
    to where a plan wants it, and its sharding is merely how it lies now.
    """

    backend: ArrayBackend
    type: TensorType
    sharding: Sharding
    is_placed: bool = True

    @staticmethod
    def open(backend: ArrayBackend) -> Kind:
        """Return the kind of an array without values, which may lie as a plan needs it."""
        return Kind(backend, _UNKNOWN, _UNKNOWN, False)

    @staticmethod
    def of_type(backend: ArrayBackend, type: TensorType) -> Kind:
        """Return the kind of an array that may lie as a plan needs it."""
        return Kind(backend, type, _UNKNOWN, False)

    @property
    def is_open(self) -> bool:
        """Whether the type is not known yet."""
        return self.type is None

    @property
    def said(self) -> Kind:
        """What somebody said of the array: its type, and its sharding if it is placed."""
        if self.is_placed or self.sharding is None:
            return self
        return Kind(self.backend, self.type, _UNKNOWN, False)


@dataclass(frozen=True, slots=True, eq=False)
class ArrayShard:
    """The part of an array that one device holds.

    Args:
        device: label of the device.
        index: where the part lies in the whole, one slice per dimension.
        data: the part, on the host.
    """

    device: str
    index: tuple[slice, ...]
    data: np.ndarray


class Array(Operand):
    """A tensor on the devices of a backend.

    Arrays are made by a backend (`backend.array(…)`, `backend.randn(…)`) and by compiled models.
    Operators and the functions of the backend run at once, each through a small cached plan, and
    keep results sharded.

    An array is placed if somebody said its sharding (`sharding=`, `reshard`, `in_shardings`, an
    annotation in the plan that it is a result of); otherwise a compiled model or function brings it
    to where its plan wants it, once, in place.

    `kind` and `shards`, the engine's own handle, are what an evaluation reads of every array.
    """

    __slots__ = ("kind", "shards")
    kind: Kind
    shards: Handle

    def __init__(
        self,
        backend: ArrayBackend,
        type: TensorType,
        sharding: Sharding,
        shards: Handle,
        is_placed: bool = True,
    ) -> None:
        # On one device there is nothing to say.
        self.kind = Kind(backend, type, sharding, is_placed and backend.mesh.size > 1)
        self.shards = shards

    @staticmethod
    def of_kind(kind: Kind, shards: Handle) -> Array:
        """Return an array of a kind that is known already."""
        array = _new(Array)
        array.kind = kind
        array.shards = shards
        return array

    @staticmethod
    def of_kinds(kinds: Sequence[Kind], handles: Sequence[Handle]) -> list[Array]:
        """Return arrays of kinds that are known already."""
        arrays = list(map(_new, repeat(Array, len(handles))))
        for array, kind, shards in zip(arrays, kinds, handles):  # noqa: B905 - a keyword would be felt
            array.kind = kind
            array.shards = shards
        return arrays

    @property
    def backend(self) -> ArrayBackend:
        """The backend the array belongs to."""
        return self.kind.backend

    @property
    def type(self) -> TensorType:
        """Global shape and dtype."""
        return self.kind.type

    @property
    def sharding(self) -> Sharding:
        """How the array lies on the mesh now."""
        return self.kind.sharding

    @property
    def is_placed(self) -> bool:
        """Whether somebody said how the array lies; False on one device.

        >>> import mithril as ml
        >>> backend = ml.NumpyBackend(ml.Mesh(data=2))
        >>> backend.ones(4).is_placed, backend.ones(4, sharding=ml.P("data")).is_placed
        (False, True)
        """
        return self.kind.is_placed

    @property
    def is_materialised(self) -> bool:
        """Whether the values exist."""
        return True

    @property
    def engine(self) -> Engine:
        """The engine of the devices the array lies on."""
        return self.backend.engine_on(self.sharding.mesh)

    @property
    def addressable_shards(self) -> list[ArrayShard]:
        """The part every device of this process holds, in flat device order."""
        engine = self.engine
        return [
            ArrayShard(
                engine.devices[device],
                self.sharding.box(device, self.shape),
                self.read_part(device),
            )
            for device in engine.local_devices
        ]

    def read_part(self, device: int) -> np.ndarray:
        """Return what a device of this process holds, on the host, as a view not to be written to.

        Args:
            device: its flat index in the mesh of the array's sharding.
        """
        held = self.engine.shard(self.shards, self.sharding, device)
        held = check_part(self.kind.backend.name, held, self.type, self.sharding)
        return trim_padding(held, self.sharding.box(device, self.shape))

    @property
    def is_addressable(self) -> bool:
        """Whether this process can read the whole array without asking others."""
        return len(self.list_holders()) == self.sharding.mesh.product(self.sharding.split_axes)

    def numpy(self) -> np.ndarray:
        """Return the whole array on the host.

        Where other processes hold some of it, all processes must ask for it.
        """
        if not self._is_everywhere:
            return self.backend.reshard(self, PartitionSpec()).numpy()
        whole = np.empty(self.shape, self.dtype.numpy)
        for device in self.list_holders():
            box = self.sharding.box(device, self.shape)
            whole[box] = self.read_part(device)
        return whole

    def block_until_ready(self) -> Self:
        """Return the array once its values are computed, as in JAX; for timing what makes it.

        Returns:
            The same object.

        Raises:
            BackendError: it was donated or lost, or a process that computes is gone.
        """
        self.engine.wait_for([self.shards])
        return self

    def item(self) -> Scalar:
        """Return the only element as a Python number.

        Raises:
            ShapeError: there is more than one.
        """
        if self.size != 1:
            raise ShapeError(
                f"array {self.type} has {self.size} elements; item() needs exactly one; index the "
                f"array, or use numpy()"
            )
        value: Scalar = self.numpy().item()
        return value

    def __getattr__(self, name: str) -> Any:
        """Return a method that the backend's framework adds, such as `jax`."""
        methods = {} if name in Array.__slots__ else self.kind.backend.interop.array_methods
        if name not in methods and name.startswith("_"):
            raise AttributeError(name)
        if name not in methods:
            raise AttributeError(
                f"array {self.type} of backend '{self.backend.name}' has no attribute '{name}'"
                f"{suggest_attribute(name, [*methods, *dir(type(self))])}"
            )
        return partial(methods[name], self)

    def __array_function__(
        self, function: Any, types: object, arguments: Sequence[Any], options: Mapping[str, Any]
    ) -> Any:
        return call_numpy(function, arguments, options, lambda x: x.numpy())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise BackendError(
                f"array {self.type} lies on devices and reaches NumPy as a copy only; leave "
                f"copy=False out"
            )
        whole = self.numpy()
        return whole if dtype is None else whole.astype(dtype)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Array:
        copy = self._copy_part
        return self.backend.place(self.type, self.sharding, copy, is_placed=self.is_placed)

    def __reduce_ex__(self, protocol: object) -> Never:
        refuse_pickle("an array")

    def __getitem__(self, index: Any) -> Self:
        items = index if isinstance(index, tuple) else (index,)
        taken = [self.backend.convert(i) for i in items]
        return super().__getitem__(tuple(taken))

    def __setitem__(self, index: Any, value: Any) -> None:
        raise BackendError(
            f"array {self.type} does not change in place; make a new one with "
            f"backend.where(mask, value, x), or of changed NumPy values with backend.array(values)"
        )

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __index__(self) -> int:
        if self.ndim or not self.dtype.is_integer:
            raise ShapeError(f"array {self.type} is no index; an integer scalar is one")
        return int(self.item())

    def __iter__(self) -> Iterator[Array]:
        """Yield the parts along the first dimension, each split as the rest of the array is."""
        count, type = len(self), self.type.with_shape(self.shape[1:])
        whole = self.numpy()
        rest = Sharding(self.sharding.mesh, self.sharding.dims[1:])
        for i in range(count):
            produce = partial(_part_of_row, whole, i)
            yield self.backend.place(type, rest, produce, is_placed=self.is_placed)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __repr__(self) -> str:
        return print_array(self)

    def _repr_html_(self) -> str:
        return render_html([tabulate_array(self)])

    def _apply(self, op: Op, operands: Sequence[Operand]) -> tuple[Array, ...]:
        return self.backend.run(op, operands)

    def _constant(self, value: Scalar, dtype: DType) -> Array:
        return self.backend.full((), value, dtype=dtype)

    def _number(self, value: Scalar, dtype: DType) -> Array:
        return self.kind.backend.constant(value, dtype)

    def _adopt(self, other: object, dtype: DType | None = None) -> Operand | None:
        return self.backend.array(other, dtype=dtype) if isinstance(other, np.ndarray) else None

    @property
    def _default_float(self) -> DType:
        return self.backend.precision.default

    def _call(self, function: str, *arguments: object, **options: object) -> Self:
        """Apply a function of the ops; arrays of NumPy and of the framework are taken along."""
        backend = self.kind.backend
        if not options:
            made = backend.calls.repeat(function, arguments)
            if made is None:
                key = name_call(function, arguments, Array)
                made = key and backend.calls.call(key, arguments, getattr(ops, function))
            if made is not None:
                return cast("Self", made)
        for x in arguments:
            if type(x) not in _AS_THEY_ARE:
                arguments = tuple(map(backend.convert, arguments))
                break
        result: Self = getattr(ops, function)(*arguments, **options)
        return result

    @property
    def _is_everywhere(self) -> bool:
        """Whether every process can read the whole array without asking others."""
        whole = self.backend.engine
        in_one_process = len(whole.local_devices) == whole.mesh.size
        return self.is_addressable and (in_one_process or not self.sharding.mesh.devices)

    def _copy_part(self, box: Box) -> np.ndarray:
        held = ((d, self.sharding.box(d, self.shape)) for d in self.engine.local_devices)
        return self.read_part(next(d for d, found in held if edges(found) == edges(box))).copy()

    def list_holders(self) -> list[int]:
        """Return one device of this process for each distinct part."""
        found: dict[tuple[int, ...], int] = {}
        mesh = self.sharding.mesh
        for device in self.engine.local_devices:
            place = tuple(mesh.index_over(device, axes) for axes in self.sharding.dims)
            found.setdefault(place, device)
        return list(found.values())


_AS_THEY_ARE = frozenset({Array, int, float, bool, type(None)})
"""Classes of what an op is applied to without another look."""


def _part_of_row(whole: np.ndarray, row: int, box: Box) -> np.ndarray:
    part: np.ndarray = whole[(slice(row, row + 1), *box)][0].copy()
    return part
