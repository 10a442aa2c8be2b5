"""Sharding: a mesh, the axes that split each dimension of a tensor, and the axes still to reduce.

An axis is in exactly one of three states for a value: it splits one dimension, the value is partial
over it (every device holds a term of a sum, maximum, …), or the value is replicated over it.
Shardings are frozen, hashable and compared by value; a dimension's axes are ordered, major first.

A dimension whose size does not divide is cut by ceil-division, axis after axis: of 10 elements over
4 devices three hold 3 and the last one holds 1. Inside a plan every device holds `local_shape`, the
last ones with padding behind; what a device truly holds is its `box`, which may be empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mithril.errors import ShapeError, ShardingError
from mithril.mesh.cuts import find_cuts, refine_for
from mithril.mesh.mesh import Mesh
from mithril.mesh.spec import PartitionSpec
from mithril.types import Shape

Dims = tuple[tuple[str, ...], ...]
Partial = tuple[tuple[str, str], ...]
Box = tuple[slice, ...]


def edges(box: Box) -> tuple[tuple[int, int], ...]:
    """Return where each dimension of a box starts and stops, which hashes as slices do not."""
    return tuple((part.start, part.stop) for part in box)


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a tensor lies on a mesh.

    Args:
        mesh: the devices.
        dims: for each tensor dimension the axes that split it, major first.
        partial: (axis, reduction) pairs over which the value still has to be reduced; a reduction
            is one of `sum`, `max`, `min`.

    >>> Sharding.of(Mesh(data=4, tensor=2), PartitionSpec("data"), rank=2)
    Sharding(P('data', None))
    """

    mesh: Mesh
    dims: Dims
    partial: Partial = ()
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.dims, self.partial)))

    def __hash__(self) -> int:
        return self._hash

    @staticmethod
    def of(mesh: Mesh, spec: PartitionSpec, rank: int, what: str = "tensor") -> Sharding:
        """Return the sharding a PartitionSpec means for a tensor of some rank.

        Axes of one device split nothing and are left out. A spec that names sub-axes means a
        sharding on a refinement of the mesh.

        Raises:
            ShardingError: the spec is longer than the rank.
            MeshError: the mesh lacks one of the axes.
        """
        if len(spec) > rank:
            raise ShardingError(
                f"{spec!r} has {len(spec)} entries for {what} of rank {rank}; give at most one "
                f"entry per dimension"
            )
        dims = [spec.axes(dimension) for dimension in range(rank)]
        mesh = refine_for(mesh, spec, what)
        kept = (tuple(axis for axis in axes if mesh.sizes[axis] > 1) for axes in dims)
        return Sharding(mesh, tuple(kept))

    @staticmethod
    def replicated(mesh: Mesh, rank: int) -> Sharding:
        """Return the sharding that keeps a whole copy on every device."""
        return Sharding(mesh, ((),) * rank)

    @property
    def rank(self) -> int:
        """Rank of the tensors this sharding is for."""
        return len(self.dims)

    @property
    def spec(self) -> PartitionSpec:
        """The split dimensions as a PartitionSpec; one of sub-axes knows how their axes are cut."""
        spec = PartitionSpec(*(axes[0] if len(axes) == 1 else (axes or None) for axes in self.dims))
        if any(axis.parent for axis in self.mesh.axes):
            parents = {axis.parent for axis in self.mesh.axes if axis.name in self.split_axes}
            cuts = find_cuts(self.mesh).items()
            spec.cuts = tuple((name, sizes) for name, sizes in cuts if name in parents)
        return spec

    @property
    def is_replicated(self) -> bool:
        """Whether every device holds the whole, reduced value."""
        return not self.partial and not any(self.dims)

    @property
    def split_axes(self) -> tuple[str, ...]:
        """Axes that split some dimension."""
        return tuple(axis for axes in self.dims for axis in axes)

    def dimension_of(self, axis: str) -> int | None:
        """Return the dimension an axis splits, or None."""
        for dimension, axes in enumerate(self.dims):
            if axis in axes:
                return dimension
        return None

    def reduction_of(self, axis: str) -> str | None:
        """Return the reduction pending over an axis, or None."""
        for name, reduction in self.partial:
            if name == axis:
                return reduction
        return None

    def drop_partial(self) -> Sharding:
        """Return the same split without anything left to reduce."""
        return Sharding(self.mesh, self.dims)

    def leave_out(self, axis: str) -> Sharding:
        """Return the same split but for one axis, along which every device then has the same."""
        dims = (tuple(a for a in axes if a != axis) for axes in self.dims)
        return Sharding(self.mesh, tuple(dims), self.partial)

    def shards_along(self, dimension: int) -> int:
        """Return into how many parts a dimension is split."""
        return self.mesh.product(self.dims[dimension])

    def check(self, shape: Shape, what: str) -> None:
        """Raise unless the sharding is for tensors of this rank.

        Raises:
            ShapeError: the shape has another rank.
        """
        if len(shape) != self.rank:
            raise ShapeError(
                f"{what} has rank {len(shape)}; its sharding {self.spec!r} has rank {self.rank}"
            )

    def check_even(self, shape: Shape, what: str) -> None:
        """Raise unless every split dimension of `shape` divides evenly.

        Raises:
            ShardingError: a dimension does not divide; the message names the nearest legal sizes.
        """
        for dimension, size in enumerate(shape):
            count = self.shards_along(dimension)
            if size % count:
                axes = " x ".join(
                    f"'{axis}' ({self.mesh.sizes[axis]})" for axis in self.dims[dimension]
                )
                below, above = size // count * count, (size // count + 1) * count
                sizes = f"{below} or {above}" if below else f"{above}"
                raise ShardingError(
                    f"cannot split dimension {dimension} ({size}) of {what} over mesh axis {axes}; "
                    f"{size} is not a multiple of {count}; use a size of {sizes}, replicate it, or "
                    f'allow padding with uneven="pad"'
                )

    def is_even(self, shape: Shape) -> bool:
        """Return whether all devices hold equally large parts of a tensor, without padding."""
        return not any(size % self.shards_along(d) for d, size in enumerate(shape))

    def local_shape(self, shape: Shape) -> Shape:
        """Return the shape every device holds of a tensor, padding included."""
        return tuple(
            -(-size // self.mesh.product(axes)) if axes else size
            for size, axes in zip(shape, self.dims, strict=True)
        )

    def box(self, device: int, shape: Shape) -> Box:
        """Return which part of a tensor a device truly holds, as one slice per dimension."""
        where = self.mesh.coordinates(device)
        return tuple(
            self._part(where, axes, size) for axes, size in zip(self.dims, shape, strict=True)
        )

    def _part(self, where: Mapping[str, int], axes: tuple[str, ...], size: int) -> slice:
        start, stop = 0, size
        for axis in axes:
            size = -(-size // self.mesh.sizes[axis])
            start = min(start + where[axis] * size, stop)
            stop = min(start + size, stop)
        return slice(start, stop)

    def find_holders(self, shape: Shape) -> dict[tuple[tuple[int, int], ...], list[int]]:
        """Return each part of a tensor, as its edges, with the devices that hold it.

        Devices are flat indices in the whole mesh.

        >>> Sharding(Mesh(data=2, tensor=2), (("tensor",),)).find_holders((6,))
        {((0, 3),): [0, 2], ((3, 6),): [1, 3]}
        """
        found: dict[tuple[tuple[int, int], ...], list[int]] = {}
        places: dict[tuple[int, ...], list[int]] = {}
        for device in range(self.mesh.size):
            place = tuple(self.mesh.index_over(device, axes) for axes in self.dims)
            places.setdefault(place, []).append(device)
        for devices in places.values():
            held = found.setdefault(edges(self.box(devices[0], shape)), [])
            held += (self.mesh.in_whole(device) for device in devices)
        return found

    def describe(self) -> str:
        """Return the spec, and what is still partial, as one short text.

        >>> Sharding(Mesh(data=2), ((),), (("data", "sum"),)).describe()
        'P(None) partial sum over data'
        """
        pending = [f"{reduction} over {axis}" for axis, reduction in self.partial]
        return repr(self.spec) + (f" partial {', '.join(pending)}" if pending else "")

    def __repr__(self) -> str:
        return f"Sharding({self.describe()})"
