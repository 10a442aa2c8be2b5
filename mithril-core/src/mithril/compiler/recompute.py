"""Recomputation among the passes: from parts and options to a plan that keeps less."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

from mithril.compiler.budget import plan_within
from mithril.compiler.overlap import wait_at_once
from mithril.compiler.request import PlanOptions, Request
from mithril.cost import Target
from mithril.errors import OptionError, listing, near_names
from mithril.ir.rewrite import all_nodes
from mithril.partition.partition import Partitioned
from mithril.partition.recompute import (
    Recompute,
    describe_policy,
    drop_in_layers,
    find_residuals,
    rewrite_program,
)
from mithril.partition.recompute.layers import list_paths
from mithril.plan import Plan, Program
from mithril.plan.policy import MemoryPolicy

Finish = Callable[[Plan], Plan]
"""Returns a plan after the passes over its programs."""


def plan_recomputed(
    parts: Partitioned, finish: Finish, request: Request, target: Target, options: PlanOptions
) -> Plan:
    """Return the plan of parts whose backwards compute again what is asked for.

    Args:
        parts: laid out and localised once.
        finish: the passes over the programs of a plan.
        request: which inputs are given up.
        target: where it will run.
        options: say what is computed again.

    Raises:
        OptionError: a pattern matches no layer.
        PlanError: no policy keeps to the budget.
    """
    asked = options.recompute
    if asked.is_on and asked.repeated_axes and parts.placement.microbatches > 1:
        parts = parts.with_gathers_again(asked.repeated_axes)
    kept = finish(parts.plan)
    programs = [local.program for local in parts.locals]
    _check_patterns(asked, programs)
    if not asked.is_on or not any(find_residuals(program.graph) for program in programs):
        return kept
    if asked.is_solved:
        wait = partial(wait_at_once, target=target, asked=options.overlap)
        return plan_within(parts, asked, finish, wait, target, request.donated)
    layouts = request.layouts.items()
    once = [name for name, layout in layouts if layout.is_brought and layout.rests is None]
    found = [rewrite_program(program, drop_in_layers(program, asked, once)) for program in programs]
    plan = finish(parts.plan_with([item.program for item in found]))
    layers = describe_policy(programs, found, target.hardware)
    policy = MemoryPolicy(
        asked.said,
        layers,
        keeping=kept.memory(donated=request.donated).peak,
        seconds=sum(layer.seconds for layer in layers),
    )
    return replace(plan, policy=policy)


def _check_patterns(asked: Recompute, programs: Sequence[Program]) -> None:
    """Raise for a pattern that matches no layer."""
    scopes = (node.scope for program in programs for node in all_nodes(program.graph))
    paths = list_paths(scopes) if asked.layers else []
    for pattern in asked.layers:
        if not any(fnmatchcase(path, pattern) for path in paths):
            raise OptionError(
                f"pattern '{pattern}' of {asked.said} matches no layer; near paths: "
                f"{listing(near_names(pattern, paths))}"
            )
