"""Searches over the shardings of a model: what is fixed for them, and which models have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mithril.errors import OptionError
from mithril.mesh import Mesh, PartitionSpec
from mithril.models import Layer
from mithril.models.annotations import Annotation
from mithril.models.composition import Composition
from mithril.models.placement import placement_spec_of
from mithril.models.prefixes import component_of
from mithril.runtime.patterns import match_patterns, read_patterns
from mithril.runtime.settings import Settings

OPTION = "partition_constraints['shardings']"


@dataclass(frozen=True, slots=True)
class Fixed:
    """How some tensors lie, whatever is searched for.

    Args:
        parameters: by name.
        inputs: by name.
    """

    parameters: Mapping[str, Annotation] = field(default_factory=dict)
    inputs: Mapping[str, PartitionSpec] = field(default_factory=dict)


def join_annotations(
    first: Mapping[str, Annotation], second: Mapping[str, Annotation]
) -> dict[str, Annotation]:
    """Return how parameters are computed with, as two say it that may not contradict each other.

    Raises:
        OptionError: they say different things of one parameter.
    """
    for name, own in second.items():
        given = first.get(name, own)
        if given.spec != own.spec:
            raise OptionError(
                f"parameter '{name}' is to lie as {own}{own.place}, and as {given}"
                f"{given.place or ' of the model'}; give one"
            )
    return {**first, **second}


def read_fixed(
    given: object, parameters: Sequence[str], inputs: Sequence[str], mesh: Mesh
) -> Fixed:
    """Return what `partition_constraints['shardings']` say.

    Args:
        given: as a user passed them.
        parameters: names of the parameters.
        inputs: names of the inputs.
        mesh: of the backend.

    Raises:
        ShardingError: they give no specs, or a pattern matches nothing.
        MeshError: a sharding is of another mesh.
    """
    names, patterns = [*parameters, *inputs], read_patterns(given, OPTION, mesh)
    matches = match_patterns(patterns, [(name,) for name in names], OPTION)
    found = {n: match.spec for n, match in zip(names, matches, strict=True) if match is not None}
    place = f" of {OPTION}"
    own = {n: Annotation(found[n], place=place) for n in parameters if n in found}
    return Fixed(own, {n: found[n] for n in inputs if n in found})


def check_searched(model: Composition | Layer, settings: Settings) -> None:
    """Raise where a search is asked for, and layers run on parts of the mesh or of the batch.

    Raises:
        OptionError: that is so.
    """
    if settings.plan.search is None:
        return
    if placement_spec_of(component_of(model)).is_placed:
        raise OptionError(
            "auto_partition=True is given for a model with stages or placed layers, which are not "
            "searched for; leave out one"
        )
    if settings.accumulate > 1:
        raise OptionError(
            f"auto_partition=True is given together with accumulate={settings.accumulate}, whose "
            f"micro-batches are not searched for; leave out one"
        )
