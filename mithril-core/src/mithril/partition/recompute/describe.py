"""Say of each layer what is kept of it and what is computed again: the policy of a plan as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mithril.cost.hardware import Hardware
from mithril.ir import Node
from mithril.ir.rewrite import regions, walk
from mithril.partition.bucket_limits import count_moved
from mithril.partition.recompute.buffers import Prices
from mithril.partition.recompute.layers import find_layers, list_prefixes
from mithril.partition.recompute.residuals import Residual, find_residuals, split_phases
from mithril.partition.recompute.rewrite import Recomputed, list_in_time
from mithril.plan import Program
from mithril.plan.policy import LayerPolicy

INSIDE = "layer is computed again from what enters it"
"""Why a layer keeps little where layers are recomputed whole."""


@dataclass(slots=True)
class _Row:
    before: int = 0
    kept: int = 0
    seconds: float = 0.0


def describe_policy(
    programs: Sequence[Program],
    recomputed: Sequence[Recomputed],
    hardware: Hardware,
    why: str = INSIDE,
) -> tuple[LayerPolicy, ...]:
    """Return what becomes of each layer, in the order of the forward.

    Args:
        programs: the local programs that keep everything.
        recomputed: what has become of them.
        hardware: the profile that prices what runs again.
        why: the reason, for layers that keep less than they did.
    """
    rows: dict[str, _Row] = {}
    for program, found in zip(programs, recomputed, strict=True):
        _describe_part(program, found, hardware, rows)
    return tuple(
        LayerPolicy(
            layer,
            kept=row.kept,
            recomputed=max(0, row.before - row.kept),
            seconds=row.seconds,
            why=why if row.before > row.kept else "",
        )
        for layer, row in rows.items()
        if row.before or row.kept
    )


def _describe_part(
    program: Program, found: Recomputed, hardware: Hardware, rows: dict[str, _Row]
) -> None:
    layers, seconds = _Layers(program), _price(program, hardware)
    for residual in _list_residuals(program):
        rows.setdefault(layers.of(residual.scope), _Row()).before += residual.bytes
    for residual in _list_residuals(found.program):
        rows.setdefault(layers.of(residual.scope), _Row()).kept += residual.bytes
    for node, times in found.nodes:
        row = rows.setdefault(layers.of(node.scope), _Row())
        row.seconds += times * _count_seconds(node, seconds)


def _list_residuals(program: Program) -> Iterator[Residual]:
    """Yield what is kept of each micro-batch, not what is there once for all of them."""
    in_time, made = list_in_time(program), program.graph.producers()
    for residual in find_residuals(program.graph):
        if in_time is None or residual.value in in_time or residual.value not in made:
            yield residual


class _Layers:
    """The layers of a program that a policy has a row for, by the paths of what is in them."""

    def __init__(self, program: Program) -> None:
        early, _ = split_phases(program.graph)
        layer_of = find_layers(early)
        self._known = {node.scope: layer_of(node) or "" for node in early}

    def of(self, scope: str) -> str:
        """Return the path of the one that a layer is in."""
        paths = [scope, *reversed(list_prefixes(scope))]
        return next((self._known[path] for path in paths if path in self._known), "")


def _price(program: Program, hardware: Hardware) -> dict[Node, float]:
    """Return what the nodes of a program take, those of bodies for one iteration."""
    prices, found = Prices(program.mesh, hardware, count_moved(program.graph)), dict[Node, float]()
    for region in regions(program.graph):
        found |= prices.of(region.graph)
    return found


def _count_seconds(node: Node, seconds: Mapping[Node, float]) -> float:
    """Return what a node takes, with all iterations of its bodies."""
    return sum(times * seconds.get(inner, 0.0) for inner, times in walk(node))
