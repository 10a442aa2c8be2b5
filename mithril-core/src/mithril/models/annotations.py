"""How users say where a parameter is split, and what that means on a mesh.

Two forms: a `PartitionSpec` with axis names, and the `weight_shard_spec`, `device_mesh` and
`device_mesh_partition` of the guides, which count mesh dimensions. Both stay as the user gave them
until a mesh is known; `resolve` turns either into a PartitionSpec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from mithril.errors import MeshError, OptionError, ShardingError, listing, nearest
from mithril.mesh import Mesh, PartitionSpec, Sharding, check_spec_mesh, read_spec
from mithril.mesh.axes import as_shape
from mithril.mesh.refinement import part
from mithril.types import TensorType

WeightSpec = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Slices:
    """What a stack of equal things needs of the devices it is split over.

    Args:
        layer: whose stack it is, for messages.
        things: what they are, such as `experts`.
        count: how many of them there are.
        devices: how many devices there must be, where that is known.
        dimension: of the tensor, along which they are stacked.
    """

    layer: str
    things: str
    count: int
    devices: int | None = None
    dimension: int = 0

    def check(self, devices: int, place: str = "") -> None:
        """Raise unless every device gets equally many.

        Raises:
            OptionError: the stack does not divide, or there are more or fewer devices.
        """
        if self.devices not in (None, devices):
            raise OptionError(
                f"{self.layer} places {self.count} {self.things} on {self.devices} devices, and "
                f"the mesh dimension they are split over has {devices}; use a dimension of "
                f'{self.devices} devices, or expert_distribution="balanced"{place}'
            )
        if self.count % devices:
            legal = [n for n in range(1, self.count + 1) if self.count % n == 0]
            raise OptionError(
                f"{self.layer} cannot place {self.count} {self.things} on {devices} devices "
                f"equally; use a mesh dimension of {' or '.join(map(str, legal))} devices, or a "
                f"multiple of {devices} {self.things}{place}"
            )


@dataclass(frozen=True, slots=True)
class Annotation:
    """A user's wish for one tensor, not yet tied to a mesh.

    Args:
        spec: axis names, or for each tensor dimension the index of a usable mesh dimension;
            -1 is the last one.
        device_mesh: which part of the mesh is used; None means all of it.
        device_mesh_partition: which of those dimensions may split; None means all.
        place: who said so, for messages and explanations.
        slices: what a dimension needs of the devices it is split over, if it is a stack.
        least_rank: of the tensors it is for; what is said of many at once leaves out scalars.
    """

    spec: PartitionSpec | WeightSpec
    device_mesh: tuple[int, ...] | None = None
    device_mesh_partition: tuple[bool, ...] | None = None
    place: str = ""
    slices: Slices | None = None
    least_rank: int = 0

    def __str__(self) -> str:
        if isinstance(self.spec, PartitionSpec):
            return repr(self.spec)
        mesh = f" on {self.device_mesh}" if self.device_mesh else ""
        return f"{self.spec}{mesh}"


def resolve(annotation: Annotation, mesh: Mesh, parameter_type: TensorType, name: str) -> Sharding:
    """Return the sharding an annotation means for a tensor, on the mesh or a refinement of it.

    On a mesh of one device every annotation is ignored: the spec splits nothing.

    Args:
        annotation: what the user gave.
        mesh: the backend's mesh.
        parameter_type: type of the tensor.
        name: its name, for messages.

    Raises:
        MeshError: the mesh cannot hold the annotation, or the spec is of a sharding on another.
        ShardingError: the spec has more entries than the tensor has dimensions.
    """
    rank = parameter_type.rank
    if mesh.size == 1:
        return Sharding.replicated(mesh, rank)
    if isinstance(annotation.spec, PartitionSpec):
        what = f"'{name}'{annotation.place}"
        check_spec_mesh(annotation.spec, mesh, what)
        return Sharding.of(mesh, annotation.spec, rank, what)
    finer, usable = _usable(annotation, mesh, name)
    spec = annotation.spec
    if len(spec) > rank:
        raise ShardingError(
            f"weight_shard_spec {spec} of '{name}' has {len(spec)} entries for {parameter_type} of "
            f"rank {rank}; give at most one entry per dimension{annotation.place}"
        )
    entries = [_axes(entry, usable, annotation, mesh, name) for entry in spec]
    slices = annotation.slices
    if slices is not None and (axes := entries[slices.dimension]):
        slices.check(finer.product(axes), annotation.place)
    return Sharding.of(finer, PartitionSpec(*entries), rank, f"'{name}'")


def read_annotations(
    layer: str,
    parameters: Sequence[str],
    weights: Sequence[Sequence[str]],
    options: Mapping[str, Any],
    place: str,
) -> dict[str, Annotation]:
    """Return the annotation of each parameter from a layer's sharding options.

    Args:
        layer: the layer's name.
        parameters: names of its parameters.
        weights: which parameters each spec of `weight_shard_spec` is for, as patterns.
        options: `weight_shard_spec`, `device_mesh`, `device_mesh_partition`, `sharding`; None or
            absent when not given.
        place: where it was said, for messages.

    Raises:
        OptionError: an option has a value of the wrong form, or no effect.
    """
    spec, sharding = options.get("weight_shard_spec"), options.get("sharding")
    mesh, partition = options.get("device_mesh"), options.get("device_mesh_partition")
    if spec is not None and sharding is not None:
        raise OptionError(
            f"{layer} has both sharding and weight_shard_spec; give one of them, sharding=P(…) "
            f"with axis names or weight_shard_spec with mesh dimensions"
        )
    if sharding is not None:
        _refuse_lone(layer, "without weight_shard_spec", mesh, partition)
        return _from_sharding(layer, parameters, sharding, place)
    if spec is None:
        _refuse_lone(layer, "without weight_shard_spec", mesh, partition)
        return {}
    groups = [
        [name for name in parameters if any(fnmatchcase(name, pattern) for pattern in group)]
        for group in weights
    ]
    groups = [group for group in groups if group]
    shape = None if mesh is None else as_shape(mesh, "device_mesh")
    flags = _flags(layer, partition, shape)
    chosen = _from_weight_spec(layer, groups, spec)
    return {name: Annotation(entry, shape, flags, place) for name, entry in chosen.items()}


def read_stack(slices: Slices, mesh: object, partition: object, place: str) -> Annotation | None:
    """Return the wish to split a stack over the last usable mesh dimension.

    Args:
        slices: what the stack needs of that dimension.
        mesh: the layer's option `device_mesh`.
        partition: its option `device_mesh_partition`.
        place: where it was said, for messages.

    Returns:
        None where all dimensions of `device_mesh` have one device.

    Raises:
        OptionError: an option has a value of the wrong form, no dimension may be used, or the
            stack does not divide.
    """
    shape = None if mesh is None else as_shape(mesh, "device_mesh")
    flags = _flags(slices.layer, partition, shape)
    if flags is not None and not any(flags):
        raise OptionError(
            f"{slices.layer} option device_mesh_partition is {flags!r}, which leaves no dimension "
            f"to split {slices.things} over; allow one, or leave device_mesh out"
        )
    if shape is not None:
        allowed = zip(shape, flags or (True,) * len(shape), strict=True)
        usable = [size for size, flag in allowed if flag and size > 1]
        slices.check(usable[-1] if usable else 1, place)
        if not usable:
            return None
    return Annotation((-1,), shape, flags, place, slices)


def read_at_rest(
    layer: str, parameters: Sequence[str], given: object, place: str
) -> dict[str, Annotation]:
    """Return how each parameter is kept between uses, from a layer's option `at_rest`.

    A lone spec is for all parameters but scalars.

    Raises:
        OptionError: the option has a value of the wrong form, or the layer has no parameters.
    """
    if given is None:
        return {}
    lone = read_spec(given)
    if lone is not None:
        if not parameters:
            raise OptionError(f"{layer} has no parameters to keep; remove at_rest={given!r}")
        return dict.fromkeys(parameters, Annotation(lone, place=place, least_rank=1))
    return _from_sharding(layer, parameters, given, place, "at_rest")


def _from_weight_spec(
    layer: str, groups: Sequence[Sequence[str]], spec: object
) -> dict[str, WeightSpec]:
    if not groups:
        raise OptionError(f"{layer} has no weights; remove weight_shard_spec={spec!r}")
    found = {}
    for index, entry in enumerate(_per_weight(layer, spec)):
        if entry is None:
            continue
        if index >= len(groups):
            raise OptionError(
                f"{layer} takes {len(groups)} weight specs, and weight_shard_spec {spec!r} gives "
                f"a spec for weight {index + 1}; give at most {len(groups)}: "
                f"{'; '.join(', '.join(group) for group in groups)}"
            )
        found.update(dict.fromkeys(groups[index], entry))
    return found


def _usable(
    annotation: Annotation, mesh: Mesh, name: str
) -> tuple[Mesh, tuple[tuple[str, ...], ...]]:
    """The mesh dimensions the annotation may use, in order, each as the axes it consists of."""
    shape = mesh.shape if annotation.device_mesh is None else annotation.device_mesh
    finer, entries = part(mesh, shape, f" of '{name}'", annotation.place)
    flags = annotation.device_mesh_partition or (True,) * len(entries)
    if any(flags[len(entries) :]):
        raise MeshError(
            f"device_mesh_partition={flags} of '{name}' allows {len(flags)} dimensions, and mesh "
            f"{mesh} has {len(entries)}; give one flag per dimension{annotation.place}"
        )
    return finer, tuple(axes for axes, flag in zip(entries, flags, strict=False) if axes and flag)


def _axes(
    entry: int | None,
    usable: tuple[tuple[str, ...], ...],
    annotation: Annotation,
    mesh: Mesh,
    name: str,
) -> tuple[str, ...] | None:
    if entry is None:
        return None
    if not -len(usable) <= entry < len(usable):
        raise MeshError(
            f"weight_shard_spec {annotation.spec} of '{name}' names usable mesh dimension {entry}, "
            f"and there are {len(usable)} on mesh {mesh}: {listing(map('+'.join, usable))}; count "
            f"from 0 the dimensions of device_mesh larger than 1 that device_mesh_partition "
            f"allows{annotation.place}"
        )
    return usable[entry]


def _refuse_lone(layer: str, why: str, mesh: object, partition: object) -> None:
    for option, value in (("device_mesh", mesh), ("device_mesh_partition", partition)):
        if value is not None:
            raise OptionError(
                f"{layer} option {option}={value!r} has no effect {why}; give "
                f"weight_shard_spec=(0, None) too, or remove it"
            )


def _from_sharding(
    layer: str,
    parameters: Sequence[str],
    sharding: object,
    place: str,
    option: str = "sharding",
) -> dict[str, Annotation]:
    if not isinstance(sharding, Mapping):
        raise OptionError(
            f"{layer} option {option} is {sharding!r}; give a mapping from parameter to spec, such "
            f'as {option}={{"weight": P("tensor", None)}}'
        )
    found = {}
    for name, value in sharding.items():
        if name not in parameters:
            raise OptionError(
                f"{layer} has no parameter '{name}' to shard; parameters: {listing(parameters)}"
                f"{nearest(str(name), parameters)}"
            )
        spec = read_spec(value)
        if spec is None:
            raise OptionError(
                f"{layer} option {option} gives '{name}' {value!r}; give a partition spec, such as "
                f'P("tensor", None)'
            )
        found[name] = Annotation(spec, place=place)
    return found


def _per_weight(layer: str, spec: object) -> list[WeightSpec | None]:
    """The specs in order of weights; a plain tuple of dimensions is the first weight's."""
    if not isinstance(spec, list | tuple):
        raise _bad_spec(layer, spec)
    nested = any(isinstance(entry, list | tuple) for entry in spec)
    if nested or (isinstance(spec, list) and all(entry is None for entry in spec)):
        return [None if entry is None else _weight_spec(layer, entry) for entry in spec]
    return [_weight_spec(layer, spec)]


def _weight_spec(layer: str, spec: object) -> WeightSpec:
    if not isinstance(spec, list | tuple):
        raise _bad_spec(layer, spec)
    for entry in spec:
        if entry is not None and (
            not isinstance(entry, int) or isinstance(entry, bool) or entry < 0
        ):
            raise _bad_spec(layer, spec)
    used = [entry for entry in spec if entry is not None]
    if len(set(used)) < len(used):
        raise OptionError(
            f"{layer} option weight_shard_spec {tuple(spec)} uses a mesh dimension twice; a mesh "
            f"dimension splits at most one dimension of a weight"
        )
    return tuple(spec)


def _bad_spec(layer: str, spec: object) -> OptionError:
    return OptionError(
        f"{layer} option weight_shard_spec is {spec!r}; give for each dimension of the weight the "
        f"index of a mesh dimension or None, such as (0, None), or a list of such tuples"
    )


def _flags(layer: str, partition: object, shape: tuple[int, ...] | None) -> tuple[bool, ...] | None:
    if partition is None:
        return None
    fits = isinstance(partition, list | tuple) and all(isinstance(f, bool) for f in partition)
    if not fits or (shape is not None and len(partition) != len(shape)):  # type: ignore[arg-type]
        wanted = f"{len(shape)} values" if shape is not None else "values"
        raise OptionError(
            f"{layer} option device_mesh_partition is {partition!r}; give {wanted} True or False, "
            f"one per dimension of device_mesh"
        )
    return tuple(partition)  # type: ignore[arg-type]
