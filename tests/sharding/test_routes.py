"""The cheapest path for any number of bytes, from few searches; axes that may be exchanged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mithril.cost import SIMULATED, Hardware, Level
from mithril.mesh import MICRO, Axis, Mesh, Sharding
from mithril.sharding.exchanges import list_exchanges
from mithril.sharding.reshard import Path, Resharder
from mithril.sharding.routes import Routes
from mithril.types import DType, TensorType

from tests.sharding.test_move_prices import placements

H100 = Hardware.load("h100-sxm")
NODES = replace(SIMULATED, levels=(Level("node", 4, 1e-6, 1e11), Level("pod", None, 1e-5, 1e10)))
MESH = Mesh(a=4, b=2, c=2)


def is_possible(start: Sharding, goal: Sharding) -> bool:
    return all(start.reduction_of(axis) in (kind, "sum") for axis, kind in goal.partial)


@given(
    placements(MESH, 3),
    placements(MESH, 3),
    st.lists(st.integers(1, 2**40), min_size=1, max_size=12),
    st.sampled_from([SIMULATED, H100, NODES]),
    st.sampled_from([DType.float32, DType.bfloat16]),
)
def test_each_size_costs_what_is_found_for_it_alone(
    start: Sharding, goal: Sharding, sizes: list[int], hardware: Hardware, dtype: DType
) -> None:
    start, goal = (Sharding(MESH, (*s.dims, ()), ()) for s in (start, goal))
    least = TensorType((16, 16, 16, 1), dtype)
    routes = Routes(Resharder(MESH, hardware), (start, goal, least), dtype)
    for size in sizes:
        type = TensorType((16, 16, 16, size), dtype)
        found, alone = routes.find(type.nbytes), Resharder(MESH, hardware).path(start, goal, type)
        assert found is not None
        assert (found.price, found.collectives) == (alone.price, alone.collectives)


def count_searches(resharder: Resharder, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many searches are made for tensors of so many rows that are gathered."""
    searched: list[TensorType] = []
    find = Resharder.find_path

    def count(self: Resharder, journey: object, type: TensorType) -> Path | None:
        searched.append(type)
        return find(self, journey, type)  # type: ignore[arg-type]

    monkeypatch.setattr(Resharder, "find_path", count)
    start, goal = Sharding(MESH, (("a", "b"), ())), Sharding(MESH, ((), ()))
    routes = Routes(resharder, (start, goal, TensorType((8, 1), DType.int8)), DType.int8)
    for size in sizes:
        assert routes.find(8 * size) is not None
    return len(searched)


def test_a_path_that_is_best_for_less_and_more_is_not_searched_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = [1000, 3000, 2000, 500, 7, 2500, 10**6]
    assert count_searches(Resharder(MESH, SIMULATED), sizes, monkeypatch) == 3


def test_what_is_refused_by_its_bytes_is_searched_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resharder = Resharder(MESH, SIMULATED, refuses=lambda kind, nbytes: nbytes > 2**40)
    assert count_searches(resharder, [1000, 3000, 2000], monkeypatch) == 3


def exchange(mesh: Mesh, **others: str) -> dict[str, str]:
    return {name: others.get(name, name) for name in mesh.names}


def test_axes_over_the_same_links_are_exchanged() -> None:
    mesh = Mesh(a=4, b=4, c=4)
    assert list_exchanges(mesh, NODES) == [exchange(mesh, a="b", b="a")]  # c is a node
    assert len(list_exchanges(mesh, SIMULATED)) == 5
    assert list_exchanges(Mesh(a=4, b=2, c=1), SIMULATED) == []


def test_axes_of_a_ring_or_in_time_are_told_apart() -> None:
    ring = replace(SIMULATED, levels=(Level("ring", 16, 1e-6, 1e9, topology="ring"),))
    assert list_exchanges(Mesh(a=4, b=4), ring) == []
    mesh = Mesh.of_axes([Axis(MICRO, 4), Axis("a", 4), Axis("b", 4)])
    assert list_exchanges(mesh, SIMULATED) == [exchange(mesh, a="b", b="a")]


def test_no_more_than_three_axes_are_exchanged() -> None:
    mesh = Mesh(a=2, b=2, c=2, d=2, e=2)
    ways = list_exchanges(mesh, SIMULATED)
    assert len(ways) == 5
    assert all(way["d"] == "d" and way["e"] == "e" for way in ways)
