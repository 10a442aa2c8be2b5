"""Where parameters may rest, in a search: every sharding that cuts them evenly.

How a parameter rests is chosen apart from how it is computed with (ZeRO): it is fetched in each
phase that uses it, and its gradient goes back to where it rests. It lies there whatever the ops are
that use it, so its candidates do not come from them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from mithril.ir import Graph, Value
from mithril.mesh import MICRO, Mesh, Sharding
from mithril.sharding.constraints import Constraints
from mithril.sharding.regions import links
from mithril.sharding.search import ANNOTATIONS, DATA, FULLY_SHARDED
from mithril.types import TensorType


def find_resting(graph: Graph, given: Constraints, space: str) -> dict[Value, tuple[Sharding, ...]]:
    """Return the parameters of which nothing is said, each with the shardings it may rest in.

    Args:
        graph: the graph.
        given: what is said, and what is searched for; without a search there are none.
        space: one of `SPACES`; in `data` a parameter rests whole, in `fully_sharded` split if it
            can be, in `annotations` as it is computed with.
    """
    search, found = given.search, {}
    if search is None or space == ANNOTATIONS:
        return {}
    known: dict[tuple[TensorType, int], tuple[Sharding, ...]] = {}
    sliced = {link.source for link in links(graph) if link.slices}
    for value in graph.inputs:
        if value.name in search.parameters and given.of(value).is_free:
            # A loop takes slices along leading dimensions, which are not split for that.
            key = value.type, search.stacked.get(value.name, 1) if value in sliced else 0
            if key not in known:
                even = tuple(list_even(given.mesh, *key, is_whole=space == DATA))
                split = tuple(one for one in even if one.split_axes)
                known[key] = split if split and space == FULLY_SHARDED else even
            found[value] = given.list_admitted(value, known[key])
    return found


def list_even(mesh: Mesh, type: TensorType, stacked: int, *, is_whole: bool) -> Iterator[Sharding]:
    """Yield every sharding that cuts a tensor into equal parts, axes in the order of the mesh."""
    axes = [axis for axis in mesh.axes if axis.size > 1 and axis.name != MICRO]
    places = [None, *range(stacked, type.rank)]
    for choice in itertools.product([None] if is_whole else places, repeat=len(axes)):
        dims: list[tuple[str, ...]] = [()] * type.rank
        for axis, place in zip(axes, choice, strict=True):
            if place is not None:
                dims[place] += (axis.name,)
        found = Sharding(mesh, tuple(dims))
        shards = map(found.shards_along, range(type.rank))
        if not any(size % parts for size, parts in zip(type.shape, shards, strict=True)):
            yield found
