"""The space of configurations: every mesh of some devices, or every use of a mesh that is given.

Sizes of axes are divisors of the number of devices. On the network an axis that sums activations is
inside a node, one that sums gradients or passes activations on is outside, which is the order of
the axes of a mesh that is made here: data and pipeline, either one first, then context, then
tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from mithril.mesh import Mesh
from mithril.ops.collective import AllGather
from mithril.ops.context import CONTEXTS
from mithril.runtime.balancing.balance import find_reason
from mithril.tuning.config import AxisRole, Config, Role
from mithril.tuning.model import TunedModel
from mithril.tuning.recipes import can_split_stream, find_batch, find_sequence

SPACES = ("data", "tensor", "pipeline", "mixed", "mixed_parallel")
SEARCHED = ("mixed", "mixed_parallel")
"""The spaces in which any tensor may be split along any dimension."""
_ROLES = {
    "data": (Role.data,),
    "tensor": (Role.tensor,),
    "pipeline": (Role.pipeline,),
    "mixed": (Role.data, Role.tensor, Role.context),
    "mixed_parallel": (Role.data, Role.tensor, Role.pipeline, Role.context),
}
CHECKPOINTING = ("none", "all")
CONTEXT = AllGather.name
"""What attention does along a split sequence, until the search varies the best (`vary_one`)."""

MIN_TOKENS = 64
"""A device has so many tokens of a sequence that is split, at least."""
MOST_MICROBATCHES = 64
"""Of a replica's batch, in powers of two, besides those of single samples."""
FRACTIONS = (0.5, 0.75)
"""Memory budgets: parts of what keeping everything takes."""
CHUNKS = (1, 2, 4)
"""Stages a device of a pipeline."""


def list_configs(tuned: TunedModel, space: str, where: Mesh | int) -> Iterator[Config]:
    """Yield the configurations of a space that a model's sizes allow.

    Args:
        tuned: the model.
        space: one of `SPACES`.
        where: a mesh that is given, or a number of devices, of which meshes are made.
    """
    allowed = set(_ROLES[space])
    for axes in _assign(where, allowed) if isinstance(where, Mesh) else _factorise(where, allowed):
        yield from _vary(tuned, Config(axes))


def _assign(mesh: Mesh, allowed: set[Role]) -> Iterator[tuple[AxisRole, ...]]:
    """Yield every use of the axes of a mesh; one may hold copies, as it can be of no use."""
    axes = [axis for axis in mesh.axes if axis.size > 1]
    for roles in product((*sorted(allowed), Role.nothing), repeat=len(axes)):
        if roles.count(Role.pipeline) <= 1:
            of = dict(zip((axis.name for axis in axes), roles, strict=True))
            yield tuple(
                AxisRole(axis.name, axis.size, of.get(axis.name, Role.nothing))
                for axis in mesh.axes
            )


def _factorise(devices: int, allowed: set[Role]) -> Iterator[tuple[AxisRole, ...]]:
    """Yield every mesh of so many devices."""
    order = (Role.data, Role.pipeline, Role.context, Role.tensor)
    choices = [_divisors(devices) if role in allowed else [1] for role in order]
    for sizes in product(*choices):
        data, pipeline, *_ = sizes
        if _product(sizes) != devices:
            continue
        axes = [AxisRole(r.value, n, r) for r, n in zip(order, sizes, strict=True)]
        orders = [axes]
        if data > 1 and pipeline > 1:
            orders.append([axes[1], axes[0], *axes[2:]])
        for arranged in orders:
            kept = tuple(axis for axis in arranged if axis.size > 1)
            yield kept or (AxisRole(Role.data.value, 1, Role.data),)


def _vary(tuned: TunedModel, config: Config) -> Iterator[Config]:
    """Yield a mesh with every choice of micro-batches, ZeRO and what is computed again."""
    if not _fits_sizes(tuned, config):
        return
    forward = tuned.is_forward
    context = CONTEXT if config.size(Role.context) > 1 else ""
    stream = not forward and can_split_stream(tuned, config)
    experts = (False, True) if _has_experts(tuned, config) else (False,)
    again = ("none",) if forward else CHECKPOINTING
    for varied in _vary_stages(tuned, config):
        zeros = _list_zeros(tuned, varied)
        for zero, spread, kept in product(zeros, experts, again):
            yield replace(
                varied, zero=zero, context=context, splits_stream=stream, has_experts=spread,
                checkpointing=kept,
            )  # fmt: skip


def _list_zeros(tuned: TunedModel, config: Config) -> tuple[int, ...]:
    """Return the stages of ZeRO that are of use.

    Stages of a pipeline hold few parameters each, which every micro-batch needs: only the state of
    the optimiser is split there. Stages 1 and 2 gather parameters after the update: without one
    they would have scattered gradients and nothing to pay for it.
    """
    if tuned.is_forward or config.size(Role.data, Role.context) == 1:
        return (0,)
    state = (1, *((2,) if config.stages == 1 else ())) if tuned.optimizer is not None else ()
    return (0, *state, *((3,) if config.stages == 1 else ()))


def _vary_stages(tuned: TunedModel, config: Config) -> Iterator[Config]:
    samples = tuned.batch // config.size(Role.data)
    counts = [n for n in _divisors(samples) if n <= MOST_MICROBATCHES or n == samples]
    depth = config.size(Role.pipeline)
    counts = [n for n in counts if n & (n - 1) == 0 or n == samples]
    if depth == 1:
        counts = [1] if tuned.has_stages or tuned.is_forward else counts
        yield from (replace(config, microbatches=count) for count in counts)
        return
    for count, chunks in product(counts, CHUNKS):
        config = replace(config, chunks=chunks)
        is_even = count >= depth and (chunks == 1 or count % depth == 0)
        places = tuned.cut(config.stages) if is_even else ""
        if not isinstance(places, str) and (chunks == 1 or not _cuts_loops(places)):
            yield replace(config, microbatches=count, chunks=chunks)


def _cuts_loops(places: Mapping[str, int | tuple[int, ...]]) -> bool:
    """Return whether loops are cut: devices with several of its stages hold all of the stack."""
    return any(isinstance(stage, tuple) for stage in places.values())


def _fits_sizes(tuned: TunedModel, config: Config) -> bool:
    """Return whether batch, sequences, weights and layers divide."""
    batch, data = find_batch(tuned), config.size(Role.data)
    if data > 1 and (batch is None or batch.size % data):
        return False
    if config.size(Role.pipeline) > 1 and not tuned.can_have_stages:
        return False
    context, tensor = config.size(Role.context), config.size(Role.tensor)
    if context > 1:
        sequence = find_sequence(tuned)
        least = MIN_TOKENS * context if tuned.backend is None else context
        if sequence is None or sequence.size % context or sequence.size < least:
            return False
    return tensor == 1 or any(family.flops for family in tuned.choose_families(tensor))


def explain_none(tuned: TunedModel, space: str, where: Mesh | int) -> str:
    """Return why a space has no configuration for a model and some devices.

    Args:
        tuned: the model.
        space: one of `SPACES`.
        where: a mesh that is given, or a number of devices.
    """
    if space != Role.pipeline:
        return "sizes of the model do not divide among its devices"
    if not tuned.can_have_stages:
        return find_reason(tuned.component, space)
    stages = where.size if isinstance(where, Mesh) else where
    if tuned.batch < stages:
        return f"a batch of {tuned.batch} gives {stages} stages no micro-batch each"
    return str(tuned.cut(stages))


def vary_one(tuned: TunedModel, config: Config) -> Iterator[Config]:
    """Yield the configurations that do one thing otherwise, which `list_configs` may leave out.

    Args:
        tuned: the model.
        config: the best so far.
    """
    if not tuned.is_forward:
        for kept in (*CHECKPOINTING, "selective", *FRACTIONS):
            yield replace(config, checkpointing=kept)
    if is_flat(tuned, config):
        yield as_searched(config)
    if can_split_stream(tuned, config):
        yield replace(config, splits_stream=not config.splits_stream)
    for context in filter(None, CONTEXTS if config.context else ()):
        yield replace(config, context=context)
    for count in (config.microbatches * 2, config.microbatches // 2):
        samples = tuned.batch // config.size(Role.data)
        if count >= 1 and samples % count == 0 and count >= config.size(Role.pipeline):
            yield replace(config, microbatches=count)


def is_flat(tuned: TunedModel, config: Config) -> bool:
    """Return whether a configuration has neither stages nor micro-batches."""
    return config.stages == config.microbatches == 1 and not tuned.has_stages


def as_searched(config: Config) -> Config:
    """Return a configuration in which an exact search splits the tensors on the same mesh."""
    return replace(
        config, is_searched=True, zero=0, context="", splits_stream=False, has_experts=False
    )


def _has_experts(tuned: TunedModel, config: Config) -> bool:
    data = config.size(Role.data)
    stacks = [family for family in tuned.families if family.is_stack]
    return data > 1 and bool(stacks) and all(family.size % data == 0 for family in stacks)


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return small + [number // n for n in reversed(small) if n * n != number]


def _product(sizes: Sequence[int]) -> int:
    found = 1
    for size in sizes:
        found *= size
    return found


__all__ = ["SEARCHED", "SPACES", "explain_none", "is_flat", "list_configs", "vary_one"]
