"""TensorSpec: shape, dtype and sharding of an input that does not exist yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import numpy as np

from mithril.errors import ShapeError, ShardingError
from mithril.keywords import checked_options
from mithril.mesh import PartitionSpec, Sharding, check_spec_mesh, is_whole, read_spec
from mithril.runtime.array import Array, ArrayBackend, Kind
from mithril.types import DType, TensorType, as_dtype, dtype_of_values, to_python


@checked_options
@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input to plan for: what it is and how it will lie on the mesh.

    Args:
        shape: global sizes.
        dtype: element type; the float dtype of the backend by default.
        sharding: a PartitionSpec, or the sharding of an array; by default nobody says it, and a
            plan has it where it wants.

    >>> TensorSpec((32, 16), sharding=PartitionSpec("data")).type
    TensorType(shape=(32, 16), dtype=<DType.float32: 'float32'>)
    """

    shape: tuple[int, ...]
    dtype: str | None = None
    sharding: PartitionSpec | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", to_python(self.shape))
        if not _is_shape(self.shape):
            raise ShapeError(
                f"TensorSpec has shape {self.shape!r}; give a tuple of integers of 0 or more"
            )
        if self.dtype is not None:
            as_dtype(self.dtype)
        spec = read_spec(self.sharding)
        if self.sharding is not None and spec is None:
            raise ShardingError(
                f"TensorSpec has sharding {self.sharding!r}; give a spec, such as P('data')"
            )
        object.__setattr__(self, "sharding", spec)

    @property
    def type(self) -> TensorType:
        """Shape and dtype; float32 where no backend says otherwise."""
        return TensorType(tuple(self.shape), as_dtype(self.dtype or DType.float32))


def as_spec(given: object, what: str, dtype: DType = DType.float32) -> TensorSpec:
    """Return the TensorSpec meant by a shape, a type, an array or a TensorSpec.

    Args:
        given: one of these; how an array lies is said by one that was placed on the whole mesh.
        what: what it describes, for messages.
        dtype: what is said by none, and the dtype of float64 of NumPy.

    Raises:
        ShapeError: it is none of these.
    """
    given = to_python(given)
    if isinstance(given, TensorSpec):
        return given if given.dtype is not None else replace(given, dtype=dtype)
    if isinstance(given, TensorType):
        return TensorSpec(given.shape, given.dtype)
    if isinstance(given, Array):
        says = given.is_placed and is_whole(given.sharding.mesh, given.backend.mesh)
        return TensorSpec(given.shape, given.dtype, read_spec(given.sharding) if says else None)
    if isinstance(given, np.ndarray):
        return TensorSpec(given.shape, dtype_of_values(given, dtype))
    if _is_shape(given):
        return TensorSpec(tuple(given), dtype)
    raise ShapeError(
        f"shape of {what} is {given!r}; give a tuple of integers or ml.TensorSpec(shape, dtype)"
    )


def read_kind(
    given: object, wanted: PartitionSpec | None, backend: ArrayBackend, what: str
) -> Kind:
    """Return the kind of an input that is described by a shape, a kind, an array or a TensorSpec.

    Args:
        given: one of these.
        wanted: how it is told to lie, unless a TensorSpec says otherwise.
        backend: where it will be.
        what: what it is, for messages.

    Raises:
        ShapeError: `given` is none of these.
        MeshError: the mesh lacks an axis, or a sharding is of another one.
        ShardingError: a spec is longer than the rank.
    """
    if isinstance(given, Kind) and (wanted is None or not given.is_placed):
        return given
    described = given.type if isinstance(given, Kind) else given
    spec = as_spec(described, what, backend.precision.default)
    if isinstance(described, TensorSpec) and spec.sharding is not None:
        wanted = spec.sharding
    if wanted is None:
        return Kind.of_type(backend, spec.type)
    check_spec_mesh(wanted, backend.mesh, what)
    sharding = Sharding.of(backend.mesh, wanted, len(spec.shape), what)
    return Kind(backend, spec.type, sharding, backend.mesh.size > 1)


def _is_shape(given: object) -> TypeGuard[Sequence[int]]:
    return (
        isinstance(given, Sequence)
        and not isinstance(given, str)
        and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in given)
    )
