"""The cheapest path for any number of bytes, from few searches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from mithril.cost import SIMULATED, Hardware, Level
from mithril.mesh import Mesh, Sharding
from mithril.sharding.reshard import Path, Resharder
from mithril.sharding.routes import Routes
from mithril.types import DType, TensorType

from tests.sharding.test_move_prices import placements

H100 = Hardware.load("h100-sxm")
NODES = replace(SIMULATED, levels=(Level("node", 4, 1e-6, 1e11), Level("pod", None, 1e-5, 1e10)))
MESH = Mesh(a=4, b=2, c=2)


def is_possible(start: Sharding, goal: Sharding) -> bool:
    """Whether a value gets there: what is partial was so before, or is a sum made of a whole."""
    held = dict(start.partial)
    return all(held.get(axis, "sum") == reduction for axis, reduction in goal.partial)


@given(
    placements(MESH, 3),
    placements(MESH, 3),
    st.lists(st.integers(1, 2**24), min_size=1, max_size=12),
    st.sampled_from([SIMULATED, H100, NODES]),
    st.sampled_from([DType.float32, DType.bfloat16]),
)
def test_each_size_costs_what_is_found_for_it_alone(
    start: Sharding, goal: Sharding, sizes: list[int], hardware: Hardware, dtype: DType
) -> None:
    start, goal = (Sharding(MESH, (*s.dims, ()), s.partial) for s in (start, goal))
    assume(is_possible(start, goal))
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
