"""A shard of a node: what an op may ask when it is emitted on the part one device holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mithril.ir import Group, Op, Tensor, Types
from mithril.mesh import Mesh
from mithril.partition.padding import Extent
from mithril.sharding import Option


@dataclass(slots=True)
class LocalShard:
    """See `mithril.ir.Shard`.

    Args:
        mesh: the devices.
        sizes: global size of each factor of the node.
        option: how the node runs.
        outputs: the types of its local results.
        extent: from the axes that cut a factor, and its size, to the part of this device.
        share: from the same to the devices that share the factor.
        append: adds a node to the local program.
    """

    mesh: Mesh
    sizes: Mapping[str, int]
    option: Option
    outputs: Types
    extent: Callable[[tuple[str, ...], int], Extent]
    share: Callable[[tuple[str, ...], int], Group]
    append: Callable[..., tuple[Tensor, ...]]

    def size(self, factor: str) -> int:
        """Return the local size of a factor."""
        return -(-self.sizes[factor] // self.mesh.product(self._axes(factor)))

    def whole(self, factor: str) -> int:
        """Return the global size of a factor."""
        return self.sizes[factor]

    def offset(self, factor: str) -> Tensor | None:
        """Return where the local part of a factor starts, or None when it is not split."""
        axes = self._axes(factor)
        return self.extent(axes, self.sizes[factor]).start if axes else None

    def count(self, factor: str) -> Tensor | None:
        """Return how much of the local part is no padding, or None when all of it is."""
        axes, size = self._axes(factor), self.sizes[factor]
        return self.extent(axes, size).count if size % self.mesh.product(axes) else None

    def group(self, factor: str) -> Group | None:
        """Return who shares a special factor, or None when it is not split."""
        axes = self._axes(factor)
        return self.share(axes, self.sizes[factor]) if axes else None

    def apply(self, op: Op, *operands: Tensor) -> tuple[Tensor, ...]:
        """Append a node to the local program."""
        return self.append(op, *operands)

    def _axes(self, factor: str) -> tuple[str, ...]:
        return self.option.axes_of().get(factor, ())
