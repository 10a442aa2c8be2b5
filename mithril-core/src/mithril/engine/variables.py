"""Variables: the names under which a program in lockstep has the values of all devices.

A value *varies* over some axes of the mesh, and has a variable for each coordinate along these;
devices that differ along other axes alone share one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from mithril.ir import Value
from mithril.mesh import Mesh

Axes = tuple[str, ...]
Coordinate = tuple[int, ...]  # along the axes a value varies over, in mesh order


class Variables:
    """The variables of one function; see the module's text.

    Args:
        mesh: the devices.

    Attributes:
        axes: over what each value varies, in mesh order.
        names: what the names of a value's variables begin with.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.axes: dict[Value, Axes] = {}
        self.names: dict[Value, str] = {}
        self._mesh = mesh

    def declare(self, value: Value, axes: Axes) -> None:
        """Give a value its variables, along axes in any order."""
        self.axes[value] = self.in_mesh_order(axes)
        self.names[value] = f"v{len(self.names)}"

    def in_mesh_order(self, axes: Axes) -> Axes:
        """Return axes as the mesh has them, each once."""
        return tuple(name for name in self._mesh.names if name in axes)

    def coordinates(self, axes: Axes) -> Iterator[Coordinate]:
        """Yield all coordinates along axes."""
        return itertools.product(*(range(self._mesh.sizes[axis]) for axis in axes))

    def of(self, value: Value) -> Iterable[tuple[Coordinate, str]]:
        """Return the variables of a value, each with its coordinate."""
        axes = self.axes[value]
        return zip(self.coordinates(axes), self.along(value, axes), strict=True)

    def of_all(self, values: Iterable[Value]) -> list[str]:
        """Return the variables of several values."""
        return [name for value in values for name in self.along(value, self.axes[value])]

    def along(self, value: Value, axes: Axes) -> list[str]:
        """Return the variable that holds a value at each coordinate along some axes."""
        return [self.at(value, axes, at) for at in self.coordinates(axes)]

    def at(self, value: Value, axes: Axes, at: Coordinate) -> str:
        """Return the variable that holds a value at a coordinate given along some axes."""
        where = dict(zip(axes, at, strict=True))
        own = [str(where[axis]) for axis in self.axes[value]]
        return "_".join([self.names[value], *own])

    def by_device(self, value: Value) -> list[str]:
        """Return the variable in which each device has a value."""
        axes = self.axes[value]
        everywhere = (self._mesh.coordinates(device) for device in range(self._mesh.size))
        return [self.at(value, axes, tuple(where[a] for a in axes)) for where in everywhere]

    def members(self, outer: Axes, at: Coordinate, axes: Axes) -> Iterator[tuple[Axes, Coordinate]]:
        """Yield the members of a group of devices, the first of `axes` being the major one.

        Args:
            outer: axes along which the group has one coordinate.
            at: that coordinate.
            axes: those along which its members differ.
        """
        both = self.in_mesh_order((*outer, *axes))
        fixed = dict(zip(outer, at, strict=True))
        for inner in self.coordinates(axes):
            where = {**fixed, **dict(zip(axes, inner, strict=True))}
            yield both, tuple(where[axis] for axis in both)

    def find_device(self, value: Value, at: Coordinate) -> int:
        """Return the first device that has a variable of a value, by its coordinate."""
        return self._mesh.device_at(dict(zip(self.axes[value], at, strict=True)))
