"""Where parameters and what belongs to them live between steps: ZeRO's stages.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2020):
over the devices that process different samples, stage 1 splits the optimiser's state, 2 the
gradients, too, and 3 the parameters. Between steps parameters are split at all of them: at stages 1
and 2 a step gathers each once, at stage 3 each phase does, but for experts that tokens travel to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mithril.errors import MeshError, OptionError
from mithril.mesh import Mesh, Sharding
from mithril.models.annotations import Annotation
from mithril.models.trace import Traced
from mithril.runtime.zero_experts import count_whole_dimensions, find_experts_of_layers
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

    def rest(self, traced: Traced, decided: Mapping[str, Sharding]) -> Resting:
        """Return how parameters rest of which the model does not say it.

        Args:
            traced: the model.
            decided: how they are computed with, by name.
        """
        homes, place = {}, f" of zero={self.stage}"
        whole = count_whole_dimensions(traced)
        for name, sharding in decided.items():
            shape = traced.graph.input(name).type.shape
            home = split_further(sharding, self.axes, shape, whole.get(name, 0))
            if name not in traced.at_rest and home != sharding:
                homes[name] = home
        fixed = self.fix_experts(traced, decided, homes)
        return Resting(
            {n: Annotation(x.spec, place=place) for n, x in homes.items() if n not in fixed},
            {n: Annotation(homes[n].spec, place=f"{place}: {why}") for n, why in fixed.items()},
        )

    def fix_experts(
        self, traced: Traced, computed: Mapping[str, Sharding], homes: Mapping[str, Sharding]
    ) -> dict[str, str]:
        """Return the experts that are computed with as they rest, and why, by name.

        What an annotation says is computed with, is gathered to be that.

        Args:
            traced: the model.
            computed: what parameters would be computed with otherwise, by name.
            homes: how those rest that stage 3 splits.
        """
        found: dict[str, str] = {}
        open_homes = {
            n: home for n, home in homes.items()
            if n not in traced.annotations and home.is_even(traced.graph.input(n).type.shape)
        }  # fmt: skip
        for experts in find_experts_of_layers(traced) if self.stage == 3 else ():
            counts = {
                _count_parts(computed[n], open_homes[n], dimension) if n in open_homes else 0
                for n, dimension in experts.dimensions.items()
            }
            if len(counts) == 1 and (count := counts.pop()) > 1:
                why = experts.explain_if_fixed(computed, count)
                found |= dict.fromkeys(experts.dimensions, why) if why else {}
        return found

    def find_home(
        self, layout: Layout, type: TensorType, mesh: Mesh, whole: int
    ) -> tuple[Sharding, Sharding]:
        """Return what a parameter is computed with, and how it, or what belongs to it, lies.

        Args:
            layout: of the parameter; where it says nothing, that is whole on every device.
            type: of the parameter.
            mesh: of the backend.
            whole: how many leading dimensions stay whole; see `count_whole_dimensions`.
        """
        replicated = Sharding.replicated(mesh, type.rank)
        computed = layout.computed or layout.existing or replicated
        return computed, split_further(computed, self.axes, type.shape, whole)


@dataclass(frozen=True, slots=True)
class Resting:
    """What a stage says of parameters, by name.

    Args:
        at_rest: how those rest that are gathered to compute with.
        annotations: how those lie that are computed with where they rest.
    """

    at_rest: Mapping[str, Annotation]
    annotations: Mapping[str, Annotation]


def _count_parts(computed: Sharding, home: Sharding, dimension: int) -> int:
    """Return in how many parts ZeRO splits a dimension; 0 if it splits another one."""
    others = (d for d in range(len(home.dims)) if d != dimension)
    if any(home.dims[d] != computed.dims[d] for d in others):
        return 0
    return home.shards_along(dimension) // computed.shards_along(dimension)


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


__all__ = ["NOTHING", "Resting", "Zero", "read_zero", "split_further"]
