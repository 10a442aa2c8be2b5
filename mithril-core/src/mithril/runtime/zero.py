"""Where parameters and what belongs to them live between steps: ZeRO's stages.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2020):
over the devices that process different samples, stage 1 splits the optimiser's state, 2 the
gradients, too, and 3 the parameters. Between steps parameters are split at all of them: at stages 1
and 2 a step gathers each once, at stage 3 each phase does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mithril.errors import MeshError, OptionError
from mithril.mesh import Mesh, Sharding
from mithril.models.annotations import Annotation
from mithril.models.trace import Traced
from mithril.sharding import Layout
from mithril.types import Shape, TensorType, to_python

STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class Zero:
    """What is split further than it is computed with.

    Args:
        stage: 0 nothing, 1 the optimiser's state, 2 gradients, too, 3 parameters, too, while a step
            computes.
        axes: of the mesh, over which it is split.
    """

    stage: int
    axes: tuple[str, ...]

    def split(self, sharding: Sharding, shape: Shape, stacked: int = 0) -> Sharding:
        """Return how a tensor lies between steps; see `split_further`."""
        return split_further(sharding, self.axes, shape, stacked)

    def rest(self, traced: Traced, decided: Mapping[str, Sharding]) -> dict[str, Annotation]:
        """Return how parameters rest of which the model does not say it.

        Args:
            traced: the model.
            decided: how they are computed with, by name.
        """
        found = {}
        for name, sharding in decided.items():
            shape, stacked = traced.graph.input(name).type.shape, traced.stacked.get(name, 0)
            home = self.split(sharding, shape, stacked)
            if name not in traced.at_rest and home != sharding:
                found[name] = Annotation(home.spec, place=f" of zero={self.stage}")
        return found

    def find_home(
        self, layout: Layout, type: TensorType, mesh: Mesh, stacked: int
    ) -> tuple[Sharding, Sharding]:
        """Return what a parameter is computed with, and how it, or what belongs to it, lies.

        Args:
            layout: of the parameter; where it says nothing, that is whole on every device.
            type: of the parameter.
            mesh: of the backend.
            stacked: how many leading dimensions only stack layers.
        """
        whole = Sharding.replicated(mesh, type.rank)
        computed = layout.computed or layout.existing or whole
        return computed, self.split(computed, type.shape, stacked)


AXIS = "data"
"""The mesh axis that splits batches, where nobody says which."""


def read_zero(stage: object, axes: str | Sequence[str] | None, mesh: Mesh) -> Zero:
    """Return what `zero=` and `zero_axis=` mean; on one device, as annotations, nothing.

    Raises:
        OptionError: there is no such stage, or an axis is given for nothing.
        MeshError: the mesh lacks an axis.
    """
    stage = to_python(stage)
    if not isinstance(stage, int) or isinstance(stage, bool) or stage not in STAGES:
        raise OptionError(
            f"zero={stage!r} is no stage of ZeRO; give 0, 1, 2 or 3, or 'auto' to train_step()"
        )
    if axes is not None and not stage:
        raise OptionError(f"zero_axis={axes!r} has no effect without zero=; say which stage, too")
    names = _read_axes(axes)
    if mesh.size == 1:
        return NOTHING
    for axis in names if stage else ():
        if axis not in mesh.names:
            remedy = "" if axes is not None else "; give zero_axis=, the axis that splits the batch"
            raise MeshError(f"zero_axis: {mesh.lacking(str(axis))}{remedy}")
    return Zero(stage, names)


def _read_axes(axes: object) -> tuple[str, ...]:
    """Return the names of `zero_axis=`."""
    given = (AXIS,) if axes is None else (axes,) if isinstance(axes, str) else axes
    if not isinstance(given, Sequence) or not all(isinstance(axis, str) for axis in given):
        raise OptionError(
            f"zero_axis={axes!r} names no mesh axes; give one, such as 'data', or several"
        )
    if not given or len(set(given)) < len(given):
        raise OptionError(f"zero_axis={axes!r} names no axis, or one twice; give each once")
    return tuple(given)


NOTHING = Zero(0, ())


def split_further(
    sharding: Sharding, axes: Sequence[str], shape: Shape, stacked: int = 0
) -> Sharding:
    """Return a sharding with a dimension split over further axes.

    The dimension is the first that divides evenly, else the largest; what is split already is split
    again: `("tensor", "data")`. What is too small for a part a device stays as it is.

    Args:
        sharding: how a tensor is computed with.
        axes: that split none of its dimensions yet; others are left out.
        shape: of the tensor.
        stacked: how many leading dimensions only stack layers, and are left whole.

    >>> mesh = Mesh(data=2, tensor=2)
    >>> split_further(Sharding(mesh, (("tensor",), ())), ["data"], (8, 3))
    Sharding(P(('tensor', 'data'), None))
    """
    mesh = sharding.mesh
    new = tuple(axis for axis in _list_parts(mesh, axes) if axis not in sharding.split_axes)
    count = mesh.product(new)
    if count == 1 or len(shape) <= stacked:
        return sharding
    parts = {d: shape[d] / sharding.shards_along(d) for d in range(stacked, len(shape))}
    even = [d for d, size in parts.items() if size >= count and size % count == 0]
    best = even[0] if even else max(parts, key=lambda d: parts[d])
    if parts[best] < count:
        return sharding
    dims = tuple((*held, *new) if d == best else held for d, held in enumerate(sharding.dims))
    return Sharding(mesh, dims)


def _list_parts(mesh: Mesh, axes: Sequence[str]) -> list[str]:
    """Return the axes of a mesh that some names mean: sub-axes for an axis that was cut."""
    return [axis.name for name in axes for axis in mesh.axes if name in (axis.name, axis.origin)]


__all__ = ["NOTHING", "Zero", "read_zero", "split_further"]
