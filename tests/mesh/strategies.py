"""Hypothesis strategies for small meshes, axes of them, specs, and shardings."""

from __future__ import annotations

from hypothesis import strategies as st
from mithril.mesh import Mesh, P, Sharding

NAMES = ("data", "tensor", "pipeline", "expert")
meshes = st.lists(st.integers(1, 4), max_size=4).map(
    lambda sizes: Mesh(dict(zip(NAMES, sizes, strict=False)))
)


@st.composite
def reordered(draw: st.DrawFn) -> Mesh:
    """A mesh whose axes lie on the network in any order."""
    mesh = draw(meshes)
    return mesh.reorder(draw(st.permutations(mesh.names)))


orders = reordered()


@st.composite
def meshes_and_axes(draw: st.DrawFn) -> tuple[Mesh, tuple[str, ...]]:
    """A mesh in any order, and some of its axes in another one."""
    mesh = draw(orders)
    order = draw(st.permutations(mesh.names))
    return mesh, tuple(order[: draw(st.integers(0, len(order)))])


@st.composite
def shardings(draw: st.DrawFn) -> tuple[Sharding, tuple[int, ...]]:
    """A sharding without partial axes, and a shape it divides evenly."""
    mesh, axes = draw(meshes_and_axes())
    rank = draw(st.integers(1, 3))
    dims: list[tuple[str, ...]] = [()] * rank
    for axis in axes:
        dimension = draw(st.integers(0, rank - 1))
        dims[dimension] += (axis,)
    sharding = Sharding.of(mesh, P(*dims), rank)
    parts = draw(st.tuples(*[st.integers(1, 2)] * rank))
    return sharding, tuple(n * sharding.shards_along(d) for d, n in enumerate(parts))


@st.composite
def specs(draw: st.DrawFn, mesh: Mesh, rank: int) -> P:
    """A spec that uses each axis at most once."""
    entries: list[list[str]] = [[] for _ in range(rank)]
    for axis in draw(st.permutations(mesh.names)):
        place = draw(st.integers(-2, rank - 1))
        if place >= 0:
            entries[place].append(axis)
    return P(*(tuple(entry) or None for entry in entries))
