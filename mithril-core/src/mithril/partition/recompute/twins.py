"""Twins: nodes of the backward that compute what a node of the forward has computed.

Gradients compute some values anew, and what ZeRO has spread out is gathered again. Where the result
of the node of the forward is dropped and made again, its twin is left out (see `levels`): the two
take no longer than the twin alone, and there is one result instead of two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mithril.ir import Node, Value


@dataclass(frozen=True, slots=True)
class Twin:
    """A node of the backward that computes what a node of the forward does.

    Args:
        at: its position in the backward.
        until: position of the last node that needs its result.
        bytes: that this takes.
        others: positions of nodes of the forward that it is the twin of only if they run again.
    """

    at: int
    until: int
    bytes: int
    others: tuple[int, ...] = ()


def find_twins(
    early: Sequence[Node],
    late: Sequence[Node],
    original: Callable[[Value], Value | None],
    made: Mapping[int, tuple[int, int]],
) -> dict[int, Twin]:
    """Return the first twin of each node of a forward that has one, by its position.

    Args:
        early: the nodes of the forward, in order.
        late: those of the backward.
        original: returns the value of the forward that one of the backward is, if it is one.
        made: for nodes of the backward, by their positions, the bytes that they make and the
            position of the last node that needs them.
    """
    known = {(node.op, node.inputs): at for at, node in enumerate(early) if not node.op.bodies}
    same: dict[Value, tuple[Value, int]] = {}
    found: dict[int, Twin] = {}
    for position, node in enumerate(late):
        if node.op.bodies:
            continue
        inputs = tuple(same[v][0] if v in same else original(v) or v for v in node.inputs)
        at = known.get((node.op, inputs))
        if at is None:
            continue
        same.update(
            (new, (old, at)) for new, old in zip(node.outputs, early[at].outputs, strict=True)
        )
        size, until = made.get(position, (0, position))
        others = tuple(sorted({same[v][1] for v in node.inputs if v in same}))
        found.setdefault(at, Twin(position, until, size, others))
    return found


__all__ = ["Twin", "find_twins"]
