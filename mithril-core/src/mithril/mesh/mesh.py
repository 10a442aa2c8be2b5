"""A mesh names the axes of a grid of devices.

Devices are numbered in the order in which they stand on the network: row-major, the last axis
varying fastest, unless `order` says which axis does. A mesh is plain data; it does not know what
the devices are, only how many there are along each axis. The empty mesh is one device. A part of a
mesh is a mesh, too: it has the same axes, some of fewer devices, and knows which of the whole it
consists of.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Never

import numpy as np

from mithril.errors import MeshError, listing, nearest
from mithril.mesh.axes import Axis, as_shape, explain_names, make_axis, read_order
from mithril.mesh.tables import tabulate_devices
from mithril.tables import Table, render_html

MICRO = "micro-batch"
"""The axis along which a pipeline cuts a batch: an axis of time, which only planning knows.

No axis of a user has this name, as it is no identifier.
"""
MOST_DEVICES = 1 << 20
"""Plans know each device by its index, so that there is a list of them in many places."""
DEFAULT_NAMES = {
    1: ("data",),
    2: ("data", "model"),
    3: ("data", "tensor", "pipeline"),
}


@dataclass(frozen=True, init=False)
class Mesh:
    """A grid of devices with named axes.

    `devices` are the flat indices in the whole mesh of the devices of a part; empty for the whole.

    Args:
        axes: axis names and sizes, major first, as a mapping or as keywords.
        order: all axis names in the order in which flat indices count them, the slowest first;
            devices that differ along the last of them alone are neighbours. By default that of the
            axes. Coordinates, groups and results are the same in any order; only which device has
            which coordinates differs.

    Raises:
        MeshError: a size is not a positive integer, a name is no identifier or is used twice, there
            are more devices than 2**20, or `order` does not name each axis once.

    >>> mesh = Mesh(data=4, tensor=2)
    >>> mesh.size, mesh.shape, mesh.names
    (8, (4, 2), ('data', 'tensor'))
    >>> Mesh(data=4, tensor=2, order=("tensor", "data")).groups(["data"])
    ((0, 1, 2, 3), (4, 5, 6, 7))
    """

    axes: tuple[Axis, ...]
    devices: tuple[int, ...]
    order: tuple[str, ...]

    def __init__(
        self,
        axes: Mapping[str, int] | None = None,
        /,
        *sizes: Never,
        order: Sequence[str] | None = None,
        **named: int,
    ) -> None:
        if sizes or (axes is not None and not isinstance(axes, Mapping)):
            raise explain_names((axes, *sizes) if sizes else axes)
        both = sorted(set(axes or ()) & set(named))
        if both:
            raise MeshError(f"mesh names axis '{both[0]}' twice; give each axis one size")
        items = [*(axes or {}).items(), *named.items()]
        object.__setattr__(self, "axes", tuple(make_axis(name, size) for name, size in items))
        object.__setattr__(self, "devices", ())
        object.__setattr__(self, "order", ())
        count = math.prod(axis.size for axis in self.axes)
        if count > MOST_DEVICES:
            raise MeshError(
                f"mesh has {count} devices; at most {MOST_DEVICES} can be planned for; give "
                f"its axes smaller sizes"
            )
        if order is not None:
            object.__setattr__(self, "order", read_order(order, self.names))

    @staticmethod
    def from_shape(shape: int | Sequence[int], names: Sequence[str] | None = None) -> Mesh:
        """Return the mesh of a shape, with the default axis names unless some are given.

        Args:
            shape: devices along each axis; an integer means a 1-tuple.
            names: one name an axis; by default `data`, `data, model`, `data, tensor, pipeline`,
                and `axis_0, axis_1, …` from four dimensions on.

        Raises:
            MeshError: the number of names differs from the number of dimensions.

        >>> Mesh.from_shape((4, 2))
        Mesh(data=4, model=2)
        """
        sizes = as_shape(shape, "device_mesh")
        default = DEFAULT_NAMES.get(len(sizes), tuple(f"axis_{i}" for i in range(len(sizes))))
        chosen = default if names is None else tuple(names)
        if len(chosen) != len(sizes):
            raise MeshError(
                f"mesh_axis_names has {len(chosen)} names for a mesh of {len(sizes)} dimensions "
                f"{sizes}; give one name per dimension"
            )
        if len(set(chosen)) != len(chosen):
            raise MeshError(f"mesh_axis_names {chosen} repeats a name; give each axis its own")
        return Mesh(dict(zip(chosen, sizes, strict=True)))

    @staticmethod
    def of_axes(
        axes: Iterable[Axis], devices: Sequence[int] = (), order: Sequence[str] = ()
    ) -> Mesh:
        """Return the mesh of given axes.

        Args:
            axes: which may be sub-axes.
            devices: of a whole that it is a part of; empty for all.
            order: as of a mesh, of which these axes may be some; empty for their own.
        """
        mesh = Mesh()
        object.__setattr__(mesh, "axes", tuple(axes))
        object.__setattr__(mesh, "devices", tuple(devices))
        kept = tuple(name for name in order if name in mesh.sizes)
        object.__setattr__(mesh, "order", () if kept == mesh.names else kept)
        return mesh

    def reorder(self, order: Sequence[str]) -> Mesh:
        """Return the whole mesh with its axes in another order on the network.

        Args:
            order: all axis names, the slowest first.

        Raises:
            MeshError: it does not name each axis once.

        >>> Mesh(data=2, tensor=4).reorder(("tensor", "data"))
        Mesh(data=2, tensor=4, order=('tensor', 'data'))
        """
        return Mesh.of_axes(self.axes, (), read_order(order, self.names))

    def part(self, at: Mapping[str, int]) -> Mesh:
        """Return the devices at given coordinates of some axes, which then have one device.

        Raises:
            MeshError: the mesh has no such axis.

        >>> Mesh(data=2, pipeline=4).part({"pipeline": 3})
        Mesh(data=2, pipeline=1, devices=(3, 7))
        """
        for name in at:
            self.require(name)
        inside = sorted(self.grid[tuple(at.get(n, slice(None)) for n in self.names)].flat)
        axes = [replace(axis, size=1) if axis.name in at else axis for axis in self.axes]
        return Mesh.of_axes(axes, [self.in_whole(int(device)) for device in inside], self.order)

    def in_whole(self, device: int) -> int:
        """Return the flat index a device of this mesh has in the whole that this is a part of."""
        return self.devices[device] if self.devices else device

    @cached_property
    def flat(self) -> tuple[int, ...]:
        """The flat index of every device in the whole."""
        return self.devices or tuple(range(self.size))

    @cached_property
    def numbering(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Which devices there are, and in which order its axes count them.

        Meshes of the same axes, of which one may be cut into sub-axes, give each device the same
        coordinates if this is equal.
        """
        return self.devices, tuple(dict.fromkeys(list_origins(self, self.order)))

    @cached_property
    def grid(self) -> np.ndarray:
        """The flat index of the device at each coordinate; its shape is that of the mesh.

        >>> Mesh(data=2, tensor=2, order=("tensor", "data")).grid.tolist()
        [[0, 2], [1, 3]]
        """
        sizes = [self.sizes[name] for name in self.order or self.names]
        grid = np.arange(self.size).reshape(sizes)
        if self.order:
            grid = grid.transpose([self.order.index(name) for name in self.names])
        grid.flags.writeable = False
        return grid

    @cached_property
    def strides(self) -> dict[str, int]:
        """How far apart neighbours along each axis are in flat order, by name.

        >>> Mesh(data=2, tensor=4, order=("tensor", "data")).strides
        {'data': 1, 'tensor': 2}
        """
        found, stride = {}, 1
        for name in reversed(self.order or self.names):
            found[name] = stride
            stride *= self.sizes[name]
        return {name: found[name] for name in self.names}

    @cached_property
    def row_major(self) -> tuple[int, ...]:
        """The flat index in the whole of every device, row-major by the axes."""
        return tuple(map(self.in_whole, self.grid.ravel().tolist()))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Devices along each axis."""
        return tuple(axis.size for axis in self.axes)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Axis names, major first."""
        return tuple(axis.name for axis in self.axes)

    @cached_property
    def size(self) -> int:
        """Number of devices."""
        return math.prod(self.shape)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Devices along each axis, by name."""
        return {axis.name: axis.size for axis in self.axes}

    def axis_size(self, name: str) -> int:
        """Return the number of devices along an axis.

        Raises:
            MeshError: the mesh has no such axis.
        """
        self.require(name)
        return self.sizes[name]

    def require(self, name: str) -> None:
        """Raise a MeshError unless the mesh has an axis of that name."""
        if name not in self.sizes:
            raise MeshError(self.lacking(name))

    def lacking(self, name: str) -> str:
        """Return what a message says of an axis that the mesh does not have."""
        return (
            f"mesh {self} has no axis '{name}'; axes: {listing(self.names)}"
            f"{nearest(name, self.names)}"
        )

    def product(self, names: Iterable[str]) -> int:
        """Return the number of devices over several axes."""
        return math.prod(map(self.sizes.__getitem__, names))

    def join_axes(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return axis names with complete runs of sub-axes replaced by the axis they make up.

        >>> Mesh.of_axes([Axis("t.0", 2, "t"), Axis("t.1", 2, "t")]).join_axes(("t.0", "t.1"))
        ('t',)
        """
        found, rest = [], list(names)
        while rest:
            origin = next(axis.origin for axis in self.axes if axis.name == rest[0])
            run = [axis.name for axis in self.axes if axis.origin == origin]
            is_complete = rest[: len(run)] == run
            found.append(origin if is_complete else rest[0])
            rest = rest[len(run) if is_complete else 1 :]
        return tuple(found)

    def coordinates(self, device: int) -> dict[str, int]:
        """Return where a device sits, one coordinate per axis.

        >>> Mesh(data=4, tensor=2).coordinates(3)
        {'data': 1, 'tensor': 1}
        """
        found: dict[str, int] = {}
        for name in reversed(self.order or self.names):
            device, found[name] = divmod(device, self.sizes[name])
        return {name: found[name] for name in self.names}

    def device_at(self, coordinates: Mapping[str, int]) -> int:
        """Return the device at some coordinates, which are 0 along axes that are not named.

        >>> Mesh(data=4, tensor=2).device_at({"data": 1, "tensor": 1})
        3
        """
        device = 0
        for name in self.order or self.names:
            device = device * self.sizes[name] + coordinates.get(name, 0)
        return device

    def index_over(self, device: int, names: Sequence[str]) -> int:
        """Return a device's row-major index over some axes, the first name being the major one."""
        coordinates = self.coordinates(device)
        index = 0
        for name in names:
            index = index * self.sizes[name] + coordinates[name]
        return index

    def groups(self, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return the groups of devices that differ only in their coordinates on `names`.

        Within a group devices are ordered by `index_over(names)`.

        >>> Mesh(data=2, tensor=2).groups(["data"])
        ((0, 2), (1, 3))
        """
        return tuple(map(tuple, self.group_rows(names).tolist()))

    def group_rows(self, names: Sequence[str]) -> np.ndarray:
        """Return the groups of `groups` as an array, a group a row.

        >>> Mesh(data=2, tensor=2).group_rows(["data"]).tolist()
        [[0, 2], [1, 3]]
        """
        others = [name for name in self.names if name not in names]
        order = [self.names.index(name) for name in (*others, *names)]
        return self.grid.transpose(order).reshape(-1, self.product(names))

    def _repr_html_(self) -> str:
        return render_html([self.tabulate()])

    def tabulate(self) -> Table:
        """Return the grid of its devices."""
        whole = Mesh.of_axes(self.axes, (), self.order)
        title = f"{self!r}" if not self.devices else f"part of a mesh: {whole!r}"
        return tabulate_devices(f"{title}, {self.size} devices", self.sizes, self.row_major)

    def __repr__(self) -> str:
        shown = [f"{axis.name}={axis.size}" for axis in self.axes]
        order = [f"order={self.order}"] if self.order else []
        part = [f"devices={self.devices}"] if self.devices else []
        return f"Mesh({', '.join([*shown, *order, *part])})"


def list_origins(mesh: Mesh, axes: Iterable[str]) -> list[str]:
    """Return for names of axes, of which one may be cut into sub-axes, what a user calls them.

    Args:
        mesh: that has them.
        axes: names, sub-axes included.

    >>> list_origins(Mesh(x=2, y=4), ["y"])
    ['y']
    """
    origins = {axis.name: axis.origin for axis in mesh.axes}
    return [origins[name] for name in axes]
