"""Values whose moves nobody waits for.

Parameters are there before they are used, and gradients of them are not used before the update:
what moves them may go on beside other work. So may a number of which only outputs come, such as the
sum of a loss, while the backward runs. Whatever else moves is needed by the next op.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from mithril.ir import Graph, Phase, Value
from mithril.ir.rewrite import Region
from mithril.sharding.regions import Link


def find_unawaited(
    parts: Iterable[Region], links: Iterable[Link], parameters: Iterable[Value]
) -> frozenset[Value]:
    """Return the values whose moves nobody waits for.

    Args:
        parts: a graph and the bodies in it.
        links: between values of the one and the other; what one run of a body hands to the next is
            waited for.
        parameters: inputs that may rest in another sharding than they are used in.
    """
    parts, found = list(parts), set(parameters)
    for part in parts:
        uses = part.graph.uses()
        made = (node.outputs for node in part.graph.nodes if node.phase == Phase.backward)
        for value in itertools.chain.from_iterable(made):
            if all(user.phase == Phase.update for user, _ in uses.get(value, ())):
                found.add(value)
    found.update(_find_final(parts[0].graph))
    handed_on = (link for link in links if not link.stacks and not link.slices)
    return frozenset(found.difference(*((link.source, link.target) for link in handed_on)))


def _find_final(graph: Graph) -> set[Value]:
    """Return the numbers of a forward of which nothing but outputs comes, beside a backward."""
    if not any(node.phase == Phase.backward for node in graph.nodes):
        return set()
    found, uses = set[Value](), graph.uses()
    for node in reversed(graph.nodes):
        users = {user for value in node.outputs for user, _ in uses.get(value, ())}
        made = (value for user in users for value in user.outputs)
        is_number = all(value.type.rank == 0 for value in node.outputs)
        if node.phase == Phase.forward and is_number and found.issuperset(made):
            found.update(node.outputs)
    return found
