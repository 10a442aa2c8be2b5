"""`partition_search_space="pipeline"`: the stages of which the slowest is as fast as can be.

Layers stay in order, so a cut is all there is to choose, and dynamic programming finds the best.
What is found is told as other searches tell it: its cost is the time of the slowest stage for a
batch.
"""

from __future__ import annotations

import math
from time import perf_counter

from mithril.errors import OptionError
from mithril.models.composition import Composition
from mithril.models.layer import Layer
from mithril.plan.search import PICOSECONDS, SearchResult
from mithril.runtime.balancing.balance import Balancing, Job, find_reason, price_layers
from mithril.runtime.balancing.cut import Cut, cut_optimally, find_least_time
from mithril.runtime.balancing.units import list_units
from mithril.runtime.strategy.apply import set_stages
from mithril.sharding import Search
from mithril.sharding.search import PIPELINE

SPACE = f"partition_search_space='{PIPELINE}'"
PER_SECOND = 1e12
"""Picoseconds, which costs are counted in."""
PREDICTED = Balancing("optimal", is_measured=False)


def search_stages(
    model: Composition | Layer, search: Search, job: Job
) -> tuple[Composition, SearchResult]:
    """Return the model with its layers in the best stages, and how good these are.

    Args:
        model: its snapshot.
        search: its memory limits what parameters of a stage hold.
        job: what is compiled.

    Raises:
        OptionError: there is nothing to cut into stages, or sizes of inputs are missing.
        PlanError: there are fewer layers than stages, or no cut keeps to the memory.
    """
    started = perf_counter()
    axis = job.axis
    reason = find_reason(model, axis)
    if reason or not isinstance(model, Composition):
        raise OptionError(f"{SPACE} finds no stages: {reason}; use another space")
    job.require_shapes(SPACE)
    stages = job.backend.mesh.sizes[axis]
    units = list_units(model, price_layers(model, PREDICTED, job), stages)
    cut = cut_optimally(units, stages, math.inf if search.memory is None else search.memory)
    bound = find_least_time(units, stages, cut)
    ways = math.log10(math.comb(len(cut.units) - 1, stages - 1))
    found = SearchResult(
        search.objective,
        PIPELINE,
        PICOSECONDS,
        cut.slowest * PER_SECOND,
        bound * PER_SECOND,
        sum(cut.seconds),
        _find_fullest(cut),
        search.memory,
        len(cut.units),
        ways,
        perf_counter() - started,
    )
    return set_stages(model, cut.places), found


def _find_fullest(cut: Cut) -> int:
    """Return the bytes of the parameters of the stage that has most of them."""
    held = [0.0] * len(cut.seconds)
    for unit, stage in zip(cut.units, cut.stages, strict=True):
        held[stage] += unit.bytes
    return int(max(held))


__all__ = ["search_stages"]
