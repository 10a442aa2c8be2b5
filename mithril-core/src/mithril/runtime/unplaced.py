"""Unplaced arrays: nobody said how they lie, so they are brought to where a plan wants them.

An array that lies otherwise is moved once, in place: it stays unplaced, and the next call finds it
where it belongs. Values of the host are put there at once, each device getting its part alone, and
parameters without a size are made there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import is_
from typing import Any, Self

import numpy as np

from mithril.errors import BackendError
from mithril.mesh import Sharding
from mithril.runtime.array import Array, ArrayBackend, Kind
from mithril.tables import Table, render_html
from mithril.types import TensorType, as_dtype


class HostArray(Array):
    """Values of the host that are not on devices yet; they are put where a plan wants them.

    It becomes an ordinary array, in place, when its plan is known; users never see one. Until then
    `shards` holds the values.
    """

    __slots__ = ()

    def __init__(self, backend: ArrayBackend, type: TensorType, host: np.ndarray) -> None:
        self.kind = Kind.of_type(backend, type)
        self.shards = host

    def astype(self, dtype: object) -> HostArray:
        """Return the values in another dtype, still on the host."""
        chosen = as_dtype(dtype)
        host = np.asarray(self.shards, chosen.numpy)
        return HostArray(self.kind.backend, TensorType(host.shape, chosen), host)


class PendingArray(Array):
    """A parameter whose size is not known before the model has seen an input.

    It becomes an ordinary array, in place, at the first `evaluate`. Until then `shards` holds its
    name and the seed that its values will come from.
    """

    __slots__ = ()

    def __init__(self, backend: ArrayBackend, name: str, seed: int) -> None:
        self.kind = Kind.open(backend)
        self.shards = name, seed

    @property
    def is_materialised(self) -> bool:
        """Whether the values exist."""
        return False

    @property
    def type(self) -> TensorType:
        """Global shape and dtype: not known yet."""
        raise self._error()

    @property
    def sharding(self) -> Sharding:
        """How the array lies on the mesh: not known yet."""
        raise self._error()

    @property
    def seed(self) -> int:
        """The seed that the values will come from."""
        seed: int = self.shards[1]
        return seed

    def block_until_ready(self) -> Self:
        """Return the array: nothing of it is being computed."""
        return self

    def materialise(self, made: Array) -> None:
        """Become the given array."""
        self.kind, self.shards = made.kind, made.shards
        self.__class__ = Array  # type: ignore[assignment]

    def __deepcopy__(self, memo: object) -> PendingArray:
        return PendingArray(self.backend, *self.shards)

    def __repr__(self) -> str:
        return f"PendingArray('{self.shards[0]}')"

    def _repr_html_(self) -> str:
        return render_html([Table(f"Array '{self.shards[0]}', size not known yet", (), ())])

    def _error(self) -> BackendError:
        return BackendError(
            f"parameter '{self.shards[0]}' has no size yet; it is made at the first evaluate(); "
            f"evaluate once, or pass shapes= to compile()"
        )


def settle(
    arrays: Sequence[Array], wanted: Sequence[Sharding], positions: Sequence[int] | None = None
) -> list[Array]:
    """Return arrays as a plan takes them; unplaced ones are moved, in place where that can be.

    Args:
        arrays: what is passed.
        wanted: how each shall lie.
        positions: of those that may lie otherwise; by default any may.
    """
    found = list(arrays)
    for position in find_unsettled(arrays, wanted, positions):
        x, sharding = arrays[position], wanted[position]
        # One that is passed twice, and wanted in two ways, stays as it is, and copies are moved.
        if sum(map(is_, arrays, repeat(x))) == 1 or _is_wanted_alike(x, arrays, wanted):
            settle_one(x, sharding)
        else:
            found[position] = _lay_out(x, sharding)
    return found


def find_unsettled(
    arrays: Sequence[Array], wanted: Sequence[Sharding], positions: Sequence[int] | None = None
) -> list[int]:
    """Return the positions of arrays that do not lie as a plan takes them, and may be moved.

    Args:
        arrays: what is passed.
        wanted: how each shall lie.
        positions: of those that may lie otherwise; by default any may.
    """
    found = []
    for position in range(len(arrays)) if positions is None else positions:
        kind, sharding = arrays[position].kind, wanted[position]
        if not (kind.is_placed or kind.sharding is sharding or kind.sharding == sharding):
            found.append(position)
    return found


def _is_wanted_alike(x: Array, arrays: Sequence[Array], wanted: Sequence[Sharding]) -> bool:
    """Return whether an array is wanted in one way wherever it is passed."""
    return len({lies for y, lies in zip(arrays, wanted, strict=False) if y is x}) == 1


def settle_one(x: Array, sharding: Sharding) -> Array:
    """Return an unplaced array after it was brought, in place, to where it is wanted."""
    if isinstance(x, HostArray):
        (backend, type, _, _), host = x.kind, x.shards
        engine = backend.engine_on(sharding.mesh)
        x.shards = engine.put(type, sharding, lambda box: host[box].copy())
        x.kind = Kind(backend, type, sharding, False)
        x.__class__ = Array  # type: ignore[assignment]
    elif x.kind.sharding != sharding:
        x.shards = _lay_out(x, sharding).shards
        x.kind = Kind(x.kind.backend, x.kind.type, sharding, False)
    return x


def _lay_out(x: Array, sharding: Sharding) -> Array:
    """Return an unplaced array that lies otherwise, with the values of another one."""
    backend, type = x.kind.backend, x.kind.type
    if isinstance(x, HostArray):
        host: Any = x.shards
        return backend.place(type, sharding, lambda box: host[box].copy(), is_placed=False)
    moved = backend.lay_out(x, sharding)
    return Array(backend, type, sharding, moved.shards, is_placed=False)
