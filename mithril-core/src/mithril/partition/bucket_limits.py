"""The most bytes that a bucket of what is gathered, scattered or summed has in a small program.

Where a network takes long to start, a bucket that makes its start-up a small part of its time may
be half of a small model; what lying at rest saves would be whole in memory again, and nothing would
travel before the backward ends. So it has at most a part of all that a phase moves by its kind,
unless that is little.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from mithril.ir import Graph, Phase
from mithril.ir.rewrite import walk
from mithril.ops.collective import (
    AllGather,
    AllReduce,
    Collective,
    ReduceScatter,
    collective_of,
)

PARTS = 4
"""A bucket has at most one of so many parts of what a phase of the program moves by its kind."""
LITTLE = 1 << 20
"""So many bytes may travel together in any program."""


def count_moved(graph: Graph) -> Mapping[str, int]:
    """Return the bytes that a phase gathers, scatters and sums, by kind: of the phase with most.

    Args:
        graph: a local one; what is in loops counts as often as it runs.
    """
    sizes = Counter[tuple[str, Phase]]()
    for node, times in walk(graph):
        op = collective_of(node.op)
        if isinstance(op, AllGather | AllReduce | ReduceScatter):
            sizes[op.name, node.phase] += times * op.count_bytes([x.type for x in node.inputs])
    found: dict[str, int] = {}
    for (kind, _), size in sizes.items():
        found[kind] = max(found.get(kind, 0), size)
    return found


def limit_bucket(op: Collective, nbytes: int, moved: Mapping[str, int], parts: int = PARTS) -> int:
    """Return the bytes at which a bucket is closed.

    Args:
        op: of its collectives.
        nbytes: that are worth a collective of their own.
        moved: as of `count_moved`.
    """
    return min(nbytes, max(LITTLE, moved.get(op.name, 0) // PARTS))


__all__ = ["LITTLE", "PARTS", "count_moved", "limit_bucket"]
