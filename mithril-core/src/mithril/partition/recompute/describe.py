"""Say of each layer what is kept of it and what is computed again: the policy of a plan as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mithril.cost.hardware import Hardware
from mithril.cost.work import op_seconds
from mithril.ir import Node
from mithril.partition.recompute.blocks import find_blocks, list_prefixes
from mithril.partition.recompute.residuals import find_residuals, split_phases
from mithril.partition.recompute.rewrite import Recomputed
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
    layers = _Layers(program)
    for residual in find_residuals(program.graph):
        rows.setdefault(layers.of(residual.scope), _Row()).before += residual.bytes
    for residual in find_residuals(found.program.graph):
        rows.setdefault(layers.of(residual.scope), _Row()).kept += residual.bytes
    for node, times in found.nodes:
        row = rows.setdefault(layers.of(node.scope), _Row())
        row.seconds += times * _count_seconds(node, hardware)


class _Layers:
    """The blocks of a program, by the paths of what is in them."""

    def __init__(self, program: Program) -> None:
        early, _ = split_phases(program.graph)
        block_of = find_blocks(early)
        self._known = {node.scope: block_of(node) or "" for node in early}

    def of(self, scope: str) -> str:
        """Return the path of the block that a layer is in."""
        paths = [scope, *reversed(list_prefixes(scope))]
        return next((self._known[path] for path in paths if path in self._known), "")


def _count_seconds(node: Node, hardware: Hardware) -> float:
    if node.cause is not None:
        return node.cause.seconds
    if node.op.bodies:
        inside = (inner for body in node.op.bodies for inner in body.nodes)
        return node.op.iterations * sum(_count_seconds(inner, hardware) for inner in inside)
    inputs, outputs = [v.type for v in node.inputs], [v.type for v in node.outputs]
    return op_seconds(node.op, inputs, outputs, hardware)
