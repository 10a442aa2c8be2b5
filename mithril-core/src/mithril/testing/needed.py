"""Which layers need an op: found by planning the case of every layer once, with its gradients."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

import mithril as ml
from mithril.ir.rewrite import all_nodes
from mithril.testing.layer_cases import CASES

MOST = 6
"""Layers that are named; the others are counted."""


def list_layers_with(op: str) -> list[str]:
    """Return the layers that run an op, forward or backward, in order; many are cut short."""
    found = sorted(_find_ops().get(op, ()))
    return found if len(found) <= MOST else [*found[:MOST], f"{len(found) - MOST} more"]


@cache
def _find_ops() -> dict[str, set[str]]:
    """Return the layers that run each op."""
    needed: dict[str, set[str]] = defaultdict(set)
    for case in CASES:
        compiled = ml.compile(
            case.model(), ml.NumpyBackend(), shapes=case.arrays("float32"),
            inference=case.inference, differentiable=list(case.inputs),
        )  # fmt: skip
        for stage in compiled.plan.stages:
            for node in all_nodes(stage.program.graph):
                needed[node.op.name].add(type(case.layer).__name__)
    return dict(needed)
