"""The leaves of a call's arguments: what they are called, how they lie, and as which arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mithril.errors import BackendError, GraphError, kind_of
from mithril.mesh import PartitionSpec, Sharding, check_spec_mesh, coarsen
from mithril.runtime.array import Array, ArrayBackend, Kind
from mithril.runtime.functional.arguments import Form
from mithril.runtime.functional.options import FunctionOptions, Specs
from mithril.runtime.patterns import Match
from mithril.runtime.specification import TensorSpec, as_spec
from mithril.types import DType, TensorType


@dataclass(frozen=True, slots=True, eq=False)
class Arriving:
    """How the leaves of a form arrive.

    Args:
        names: what they are called.
        specs: how each shall lie, or is computed with where it is kept at rest.
        resting: how each is kept between calls.
        donated: positions of those that are given up.
        function: the function's name, for messages.
        uneven: `pad` or `error`; None as the backend does.
    """

    names: list[str]
    specs: Specs
    resting: Sequence[Match | None]
    donated: tuple[int, ...]
    function: str
    uneven: str | None

    @staticmethod
    def of(form: Form, options: FunctionOptions, function: str) -> Arriving:
        """Return how the leaves of a form arrive."""
        specs, resting = options.specs(form, function), options.rest_specs(form, function)
        of_argument = form.leaf_arguments()
        donated = tuple(i for i, name in enumerate(of_argument) if name in options.donated)
        return Arriving(form.leaf_names(), specs, resting, donated, function, options.uneven)

    def arrays(
        self, backend: ArrayBackend, leaves: Sequence[Any], positions: Sequence[int] | None = None
    ) -> list[Array]:
        """Return the leaves as arrays; values of the host wait there for a plan to place them.

        Args:
            backend: whose arrays they shall be.
            leaves: of the arguments.
            positions: of those that may be no such arrays yet; by default any may.

        Raises:
            GraphError: a leaf is no array.
            BackendError: an array belongs to another backend.
        """
        positions = range(len(leaves)) if positions is None else positions
        found, wide = list(leaves), _wide_float(leaves, positions)
        for position in positions:
            found[position] = self._array(backend, leaves[position], position, wide)
        return found

    def kinds(self, backend: ArrayBackend, leaves: Sequence[Any]) -> list[Kind]:
        """Return the kinds of leaves, some of which may be `TensorSpec`s; nothing is moved."""
        found, wide = [], _wide_float(leaves, range(len(leaves)))
        for position, leaf in enumerate(leaves):
            if isinstance(leaf, TensorSpec):
                spec = as_spec(leaf, self.what(position), backend.precision.default)
                kind = self._kind_of_spec(backend, spec, position)
            else:
                kind = self._as_it_lies(backend, leaf, position, wide).kind
            resting = self.rest_sharding(backend, kind.type, position)
            found.append(kind if resting is None else Kind(backend, kind.type, resting))
        return found

    def _kind_of_spec(self, backend: ArrayBackend, spec: TensorSpec, position: int) -> Kind:
        free = Kind.of_type(backend, spec.type)
        if spec.sharding is None:
            return free
        what = self.what(position)
        sharding = sharding_of(backend, spec.sharding, spec.type, what, self.uneven)
        return free if backend.mesh.size == 1 else Kind(backend, spec.type, sharding)

    def say(self, kinds: Sequence[Kind]) -> list[Kind]:
        """Return what is said of leaves; one that lies as the options say is told it by them."""
        return [self._say(kind, position) for position, kind in enumerate(kinds)]

    def _say(self, kind: Kind, position: int) -> Kind:
        if not kind.is_placed or (self.specs[position] is None and self.resting[position] is None):
            return kind.said
        free = Kind.of_type(kind.backend, kind.type)
        return free if self.arrival(free, position) == kind.sharding else kind

    def arrival(self, kind: Kind, position: int) -> Sharding | None:
        """Return how a leaf arrives: as it is placed, or told to; None where nobody says it."""
        if kind.is_placed:
            return kind.sharding
        resting = self.rest_sharding(kind.backend, kind.type, position)
        spec = self.specs[position]
        if resting is not None or spec is None:
            return resting
        return self._find_sharding(kind.backend, spec, kind.type, position)

    def rest_spec(self, type: TensorType, position: int) -> PartitionSpec | None:
        """Return what is said of how a leaf is kept between calls, None for nothing."""
        match = self.resting[position]
        return None if match is None else match.find_spec(type)

    def rest_sharding(
        self, backend: ArrayBackend, type: TensorType, position: int
    ) -> Sharding | None:
        """Return how a leaf is kept between calls, None where nothing says so."""
        spec = self.rest_spec(type, position)
        return None if spec is None else self._find_sharding(backend, spec, type, position)

    def _find_sharding(
        self, backend: ArrayBackend, spec: PartitionSpec, type: TensorType, position: int
    ) -> Sharding | None:
        """Return how a leaf lies by a spec, None on one device, where it says nothing."""
        sharding = sharding_of(backend, spec, type, self.what(position), self.uneven)
        return None if backend.mesh.size == 1 else coarsen(sharding, type.shape)

    def _array(self, backend: ArrayBackend, leaf: Any, position: int, wide: DType | None) -> Array:
        """Return a leaf as an array; a placed one that is kept at rest is brought there."""
        array = self._as_it_lies(backend, leaf, position, wide)
        if not array.is_placed:
            return array
        resting = self.rest_sharding(backend, array.type, position)
        return array if resting is None else backend.reshard(array, resting)

    def _as_it_lies(
        self, backend: ArrayBackend, leaf: Any, position: int, wide: DType | None
    ) -> Array:
        what = self.what(position)
        if isinstance(leaf, Array):
            array = backend.own(leaf, what)
            if not array.is_materialised:
                raise BackendError(
                    f"{what} is a parameter without a size; it is made at the first evaluate() of "
                    f"its model; evaluate once, or pass shapes= to compile()"
                )
            return array
        is_host = isinstance(leaf, bool | int | float | np.ndarray | np.generic)
        if not is_host and backend.adopt(leaf) is None:
            raise GraphError(
                f"{what} is {kind_of(leaf)}; give an array of backend '{backend.name}', such as "
                f"backend.array(…), or a number, or name the argument in static=… if it is a value "
                f"of Python"
            )
        return backend.as_unplaced(leaf, what, wide if isinstance(leaf, float) else None)

    def what(self, position: int) -> str:
        """Return what a leaf is called in messages."""
        return f"argument '{self.names[position]}' of function '{self.function}'"


def _wide_float(leaves: Sequence[Any], positions: Iterable[int]) -> DType | None:
    """Return the dtype of numbers that may meet arrays of float64; None where there are none.

    The dtype of what a number meets is known when the function was called; by then it would have
    been rounded to the backend's.

    Args:
        leaves: of the arguments.
        positions: of those that may be numbers.
    """
    if not any(isinstance(leaves[position], float) for position in positions):
        return None
    return DType.float64 if any(map(_is_wide, leaves)) else None


def _is_wide(leaf: Any) -> bool:
    if isinstance(leaf, Array):
        return leaf.is_materialised and leaf.kind.type.dtype is DType.float64
    return isinstance(leaf, TensorSpec) and leaf.dtype == DType.float64


def sharding_of(
    backend: ArrayBackend, spec: PartitionSpec, type: TensorType, what: str, uneven: str | None
) -> Sharding:
    """Return the sharding that a spec means for a tensor; on one device it says nothing.

    Args:
        backend: where the tensor is.
        spec: how it shall lie.
        type: of the tensor.
        what: it is, for messages.
        uneven: `pad` or `error`; None as the backend does.

    Raises:
        MeshError: the mesh lacks an axis, or the spec is of a sharding on another one.
        ShardingError: the spec is longer than the rank, or a dimension does not divide.
    """
    check_spec_mesh(spec, backend.mesh, what)
    if backend.mesh.size == 1:
        return Sharding.replicated(backend.mesh, type.rank)
    sharding = Sharding.of(backend.mesh, spec, type.rank, what)
    if (uneven or backend.uneven) == "error":
        sharding.check_even(type.shape, what)
    return sharding
