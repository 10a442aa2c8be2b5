"""Arenas: offsets of all values of a program in one block of memory, from when they are needed.

Buffers are placed the largest first, each into the smallest gap that fits among those that are
needed at the same time, as XLA's buffer assignment does; Pisarchyk and Lee ("Efficient Memory
Management for Deep Neural Net Inference", arXiv 2001.03288) call it greedy by size, and found it
within some per cent of the bound: the most bytes that are needed at once, less than which no
assignment takes. To find the best assignment is NP-hard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mithril.cost.storages import Storages
from mithril.engine.alignment import align
from mithril.engine.arena import Arena, Writing
from mithril.ir import Node, Value
from mithril.plan.execution import ALL


@dataclass(frozen=True, slots=True)
class Block:
    """Memory that is needed for a time.

    Args:
        bytes: how much.
        birth: the first moment at which it is needed.
        death: the last one.
    """

    bytes: int
    birth: int
    death: int


def place(blocks: Sequence[Block]) -> list[int]:
    """Return an offset for each block, so that no two that are needed at one moment overlap.

    Args:
        blocks: sizes and times; sizes are rounded up to whole lines of a cache.

    >>> place([Block(64, 0, 1), Block(128, 1, 2), Block(64, 2, 3)])
    [128, 0, 128]
    """
    order = sorted(range(len(blocks)), key=lambda i: (-blocks[i].bytes, blocks[i].birth))
    offsets = [0] * len(blocks)
    placed = np.zeros((4, len(blocks)), np.int64)  # birth, death, start, end; by their starts
    for count, number in enumerate(order):
        block = blocks[number]
        size = align(block.bytes)
        birth, death, start, end = placed[:, :count]
        is_beside = (birth <= block.death) & (death >= block.birth)
        offsets[number] = found = _find_gap(start[is_beside], end[is_beside], size)
        at = int(np.searchsorted(start, found))
        placed[:, at + 1 : count + 1] = placed[:, at:count]
        placed[:, at] = block.birth, block.death, found, found + size
    return offsets


def _find_gap(starts: np.ndarray, ends: np.ndarray, size: int) -> int:
    """Return where the smallest gap between taken parts begins that is large enough.

    Args:
        starts: of the parts, in order.
        ends: of the parts.
        size: of what is put there.
    """
    if not len(starts):
        return 0
    before = np.concatenate(([0], np.maximum.accumulate(ends)))
    room = starts - before[:-1]
    fits = np.flatnonzero(room >= size)
    return int(before[fits[np.argmin(room[fits])]] if len(fits) else before[-1])


def find_bound(blocks: Sequence[Block]) -> int:
    """Return the most bytes that blocks need at one moment.

    >>> find_bound([Block(64, 0, 1), Block(128, 1, 2), Block(64, 2, 3)])
    192
    """
    changes: dict[int, int] = {}
    for block in blocks:
        size = align(block.bytes)
        changes[block.birth] = changes.get(block.birth, 0) + size
        changes[block.death + 1] = changes.get(block.death + 1, 0) - size
    now = most = 0
    for moment in sorted(changes):
        now += changes[moment]
        most = max(most, now)
    return most


def writing_by_name(names: Sequence[str]) -> Writing:
    """Return what kernels write into an arena, as `Execution.in_arena` says it."""
    if tuple(names) == ALL:
        return Writing(lambda node: node.outputs, lambda node: True)
    known = frozenset(names)

    def results(node: Node) -> Sequence[Value]:
        if node.op.name not in known:
            return ()
        return node.stacks if node.op.bodies else node.outputs

    return Writing(results)


def fill(
    storages: Storages, writing: Writing, bodies: Mapping[Node, Arena], leaving: Sequence[Value]
) -> tuple[Arena, set[int]]:
    """Return where the storages of a graph lie in its arena, and the numbers of those that do.

    Args:
        storages: of the graph, which know until when they are needed.
        writing: what kernels do with memory that is given.
        bodies: the arenas of the bodies of its loops.
        leaving: outputs that outlive a run of the graph.
    """
    outside = {storages.of[value].number for value in leaving if value in storages.of}
    written = {node: writing.results(node) for node in storages.graph.nodes}
    _extend_shared(storages, writing.is_anew, written, outside)
    inside = [
        (value, storages.of[value])
        for node, values in written.items()
        for value in values
        if value in storages.of
        and storages.of[value].node is node
        and storages.of[value].bytes
        and not storages.of[value].is_on_host
        and storages.of[value].number not in outside
    ]
    loops = [(at, node) for at, node in enumerate(storages.graph.nodes) if node in bodies]
    blocks = [Block(storage.bytes, storage.birth, storage.death) for _, storage in inside]
    blocks += [Block(bodies[node].size, at, at) for at, node in loops]
    offsets = place(blocks)
    ends = (offset + align(block.bytes) for offset, block in zip(offsets, blocks, strict=True))
    starts = dict(zip((node for _, node in loops), offsets[len(inside) :], strict=True))
    arena = Arena(
        max(ends, default=0),
        find_bound(blocks),
        {value: offset for (value, _), offset in zip(inside, offsets, strict=False)},
        {node: (start, bodies[node]) for node, start in starts.items()},
    )
    return arena, {storage.number for _, storage in inside}


def _extend_shared(
    storages: Storages,
    is_anew: Callable[[Node], bool],
    written: Mapping[Node, Sequence[Value]],
    outside: set[int],
) -> None:
    """Keep operands as long as results that may lie in their memory; add to what is outside."""
    of = storages.of
    for node in reversed(storages.graph.nodes):
        if is_anew(node) and not node.op.bodies:
            continue
        for value in (value for value in node.outputs if value in of):
            if value in node.stacks:  # which are copies
                continue
            result = of[value]
            if value in written[node] and result.number not in outside:
                continue
            for operand in (of[x] for x in node.inputs if x in of):
                operand.death = max(operand.death, result.death)
                if result.number in outside:
                    outside.add(operand.number)
