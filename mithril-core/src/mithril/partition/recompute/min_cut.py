"""Minimum cuts of small directed graphs, by Dinic's algorithm.

Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation"
(1970): flows along shortest paths only, until there is none.
"""

from __future__ import annotations

from collections import deque

INFINITE = 1 << 90
"""A capacity that no cut goes through, unless every cut does."""
_SOURCE, _SINK = 0, 1


class Network:
    """A directed graph with capacities between a source and a sink.

    >>> network = Network(1)
    >>> network.link_from_source(0, 3)
    >>> network.link_to_sink(0, 2)
    >>> network.cut()
    (2, {0})
    """

    def __init__(self, count: int) -> None:
        """Make a network without edges; its vertices are numbered from 0."""
        self._out: list[list[int]] = [[] for _ in range(count + 2)]
        self._to: list[int] = []
        self._left: list[int] = []

    def link(self, start: int, end: int, capacity: int) -> None:
        """Let the cut pay a capacity if `start` is on the source's side and `end` is not."""
        self._link(start + 2, end + 2, capacity)

    def link_from_source(self, vertex: int, capacity: int = INFINITE) -> None:
        """Let the cut pay a capacity if a vertex is not on the source's side."""
        self._link(_SOURCE, vertex + 2, capacity)

    def link_to_sink(self, vertex: int, capacity: int = INFINITE) -> None:
        """Let the cut pay a capacity if a vertex is on the source's side."""
        self._link(vertex + 2, _SINK, capacity)

    def cut(self) -> tuple[int, set[int]]:
        """Return the capacity of the cheapest cut, and the vertices on the source's side.

        Of the cheapest cuts it is the one with the fewest vertices on that side.
        """
        flow = 0
        while (levels := self._find_levels())[_SINK] >= 0:
            edges = [0] * len(self._out)
            while sent := self._send(levels, edges):
                flow += sent
        return flow, {vertex - 2 for vertex, level in enumerate(levels) if level >= 0 < vertex - 1}

    def _link(self, start: int, end: int, capacity: int) -> None:
        for source, target, room in ((start, end, capacity), (end, start, 0)):
            self._out[source].append(len(self._to))
            self._to.append(target)
            self._left.append(room)

    def _find_levels(self) -> list[int]:
        """Return how many edges with room lead from the source to each vertex; -1 for none."""
        levels = [-1] * len(self._out)
        levels[_SOURCE] = 0
        waiting = deque([_SOURCE])
        while waiting:
            vertex = waiting.popleft()
            for edge in self._out[vertex]:
                target = self._to[edge]
                if self._left[edge] and levels[target] < 0:
                    levels[target] = levels[vertex] + 1
                    waiting.append(target)
        return levels

    def _send(self, levels: list[int], edges: list[int]) -> int:
        """Send along one shortest path as much as it takes; 0 if none is left.

        Args:
            levels: of the vertices.
            edges: of each vertex, which of its edges may still lead to the sink.
        """
        path: list[int] = []
        vertex = _SOURCE
        while vertex != _SINK:
            out, at = self._out[vertex], edges[vertex]
            while at < len(out):
                edge = out[at]
                if self._left[edge] and levels[self._to[edge]] == levels[vertex] + 1:
                    break
                at += 1
            edges[vertex] = at
            if at < len(out):
                path.append(out[at])
                vertex = self._to[out[at]]
            elif not path:
                return 0
            else:
                vertex = self._to[path.pop() ^ 1]
                edges[vertex] += 1
        sent = min(self._left[edge] for edge in path)
        for edge in path:
            self._left[edge] -= sent
            self._left[edge ^ 1] += sent
        return sent
