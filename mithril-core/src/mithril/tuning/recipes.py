"""From outer choices to a strategy: how tensors are split when the roles of mesh axes are known.

This is the inner question of the search, behind one interface, `Maker`: a model and a configuration
give a strategy. `make_by_recipe` answers it by the families of dimensions (`dimensions`): the batch
over data axes, sequences over context axes, and over tensor axes the families that divide most work
for what is then summed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from mithril.mesh import PartitionSpec
from mithril.runtime.strategy import Strategy
from mithril.tuning.config import Config, Role
from mithril.tuning.dimensions import Family
from mithril.tuning.model import TunedModel

Maker = Callable[[TunedModel, Config], Strategy | str]
"""Returns the strategy of a configuration, or why the model cannot be split so."""


def make_strategy(tuned: TunedModel, config: Config) -> Strategy | str:
    """Return the strategy of a configuration, by the maker that it asks for, or why there is none.

    Args:
        tuned: the model.
        config: the outer choices.
    """
    return (make_by_search if config.is_searched else make_by_recipe)(tuned, config)


def make_by_search(tuned: TunedModel, config: Config) -> Strategy:
    """Return the strategy that leaves tensors to an exact search on the mesh (`docs/search.md`).

    Args:
        tuned: the model.
        config: the outer choices, of which the mesh counts, and what is computed again.
    """
    made = _assemble(tuned, config, {}, {}, {})
    return replace(made, auto_partition=tuned.objective)


def make_by_recipe(tuned: TunedModel, config: Config) -> Strategy | str:
    """Return the strategy of a configuration by the families of dimensions, or why there is none.

    Args:
        tuned: the model.
        config: the outer choices.
    """
    stages = _find_undivided(tuned, config) or _cut(tuned, config)
    if isinstance(stages, str):
        return stages
    batch, sequence = find_batch(tuned), find_sequence(tuned)
    data, context = config.names(Role.data), config.names(Role.context)
    inputs = _split({}, batch.inputs if batch else {}, data)
    inputs = _split(inputs, sequence.inputs if sequence else {}, context)
    splits: dict[str, dict[int, tuple[str, ...]]] = {}
    for family in _list_experts(tuned, config) if config.has_experts else ():
        splits = _split(splits, family.parameters, data)
    for family in tuned.choose_families(config.size(Role.tensor)):
        splits = _split(splits, family.parameters, config.names(Role.tensor))
    stream = _split_stream(tuned, config) if config.splits_stream else {}
    made = _assemble(tuned, config, inputs, splits, stages)
    return replace(made, value_shardings={name: _spec(dims) for name, dims in stream.items()})


def _find_undivided(tuned: TunedModel, config: Config) -> str:
    """Return what does not divide among the devices that are to split it; empty if all does."""
    data, context, tensor = (config.size(r) for r in (Role.data, Role.context, Role.tensor))
    has_experts, splits_stream = config.has_experts, config.splits_stream
    checked = (
        ("samples", data, data == 1 or _divides(find_batch(tuned), data)),
        ("sequences", context, context == 1 or _divides(find_sequence(tuned), context)),
        ("stacks of experts", data, not has_experts or bool(_list_experts(tuned, config))),
        ("weights", tensor, tensor == 1 or bool(tuned.choose_families(tensor))),
        (
            "sequences between layers",
            context * tensor,
            not splits_stream or can_split_stream(tuned, config),
        ),
    )
    found = (f"{what} do not divide among {n} devices" for what, n, is_met in checked if not is_met)
    return next(found, "")


def _divides(family: Family | None, devices: int) -> bool:
    return family is not None and family.size % devices == 0


def _list_experts(tuned: TunedModel, config: Config) -> list[Family]:
    """Return the families of stacks that divide over the axes that split the batch."""
    data = config.size(Role.data)
    return [family for family in tuned.families if family.is_stack and _divides(family, data)]


def _assemble(
    tuned: TunedModel,
    config: Config,
    inputs: Mapping[str, Mapping[int, tuple[str, ...]]],
    splits: Mapping[str, Mapping[int, tuple[str, ...]]],
    stages: Mapping[str, int | tuple[int, ...]],
) -> Strategy:
    traced, data = tuned.traced, config.names(Role.data, Role.context)
    said = {n: spec.sharding for n, spec in tuned.shapes.items() if spec.sharding is not None}
    samples = tuned.batch // config.size(Role.data) // config.microbatches
    is_cut = config.microbatches > 1
    return Strategy(
        mesh=dict(config.mesh),
        parameters={n: traced.graph.input(n).type.shape for n in traced.parameter_names},
        inputs={name: tuple(spec.shape) for name, spec in tuned.shapes.items()},
        shardings={n: _spec(d) for n, d in splits.items() if n not in traced.annotations},
        in_shardings={**{name: _spec(dims) for name, dims in inputs.items()}, **said},
        stages=dict(stages),
        axis=config.names(Role.pipeline)[0] if stages else "",
        schedule=config.schedule if stages and is_cut else "",
        microbatch_size=samples if stages and is_cut else None,
        accumulate=config.microbatches if not stages else 1,
        zero=config.zero if data else 0,
        zero_axes=data if config.zero else (),
        checkpointing=config.checkpointing,
        context_parallel=config.context if config.names(Role.context) else "",
    )


def _split_stream(tuned: TunedModel, config: Config) -> Mapping[str, Mapping[int, tuple[str, ...]]]:
    """Return how values between layers are split whose sequence a tensor axis can split, too.

    Norms and dropout on them are then computed, and kept, once instead of on every device, and each
    sum becomes a reduce-scatter and an all-gather of the same bytes (Korthikanti et al., 2022).
    """
    axes = (*config.names(Role.context), *config.names(Role.tensor))
    batch, sequence = find_batch(tuned), find_sequence(tuned)
    assert sequence is not None
    samples_of = sequence.values if batch is None else batch.values  # one sample is no family
    taken = {n for family in tuned.choose_families(config.size(Role.tensor)) for n in family.values}
    names = {n: d for n, d in sequence.values.items() if n in samples_of and n not in taken}
    samples = {} if batch is None else {name: batch.values[name] for name in names}
    return _split(_split({}, samples, config.names(Role.data)), names, axes)


def can_split_stream(tuned: TunedModel, config: Config) -> bool:
    """Return whether there are sequences that axes of a configuration split beside weights."""
    sequence, size = find_sequence(tuned), config.size(Role.context, Role.tensor)
    splits = config.size(Role.tensor) > 1 and sequence is not None and sequence.values
    return bool(splits) and sequence is not None and sequence.size % size == 0


def find_batch(tuned: TunedModel) -> Family | None:
    """Return the family of samples: that of the leading dimension of the first input."""
    return _find_of_input(tuned, 0)


def find_sequence(tuned: TunedModel) -> Family | None:
    """Return the family of tokens: that of the second dimension of the first input that has one.

    Features are none: parameters have dimensions of their size, and attention does not mix them.
    """
    found = _find_of_input(tuned, 1)
    return found if found is not None and not found.parameters else None


def _find_of_input(tuned: TunedModel, dimension: int) -> Family | None:
    for name, spec in tuned.shapes.items():
        if len(spec.shape) > dimension:
            families = (f for f in tuned.families if f.inputs.get(name) == dimension)
            return next(families, None)
    return None


def _split(
    splits: Mapping[str, Mapping[int, tuple[str, ...]]],
    dimensions: Mapping[str, int],
    axes: tuple[str, ...],
) -> dict[str, dict[int, tuple[str, ...]]]:
    """Return what splits dimensions of tensors, with axes added to one of each."""
    found = {name: dict(dims) for name, dims in splits.items()}
    for name, dimension in dimensions.items() if axes else ():
        dims = found.setdefault(name, {})
        dims[dimension] = (*dims.get(dimension, ()), *axes)
    return found


def _spec(dims: Mapping[int, tuple[str, ...]]) -> PartitionSpec:
    entries: list[Any] = [None] * (1 + max(dims))
    for dimension, axes in dims.items():
        entries[dimension] = axes[0] if len(axes) == 1 else axes
    return PartitionSpec(*entries)


def _cut(tuned: TunedModel, config: Config) -> Mapping[str, int | tuple[int, ...]] | str:
    """Return the stages of layers, balanced within the memory for what stays there, or why not."""
    if config.stages == 1:
        return {}
    room = tuned.hardware.memory_bytes
    if room is None:
        return tuned.cut(config.stages)
    share = config.size(Role.tensor) * (config.size(Role.data) if config.zero == 3 else 1)
    return tuned.cut(config.stages, room * share / config.chunks)


__all__ = [
    "Maker", "can_split_stream", "find_batch", "find_sequence", "make_by_recipe", "make_strategy",
]  # fmt: skip
