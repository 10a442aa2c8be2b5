"""Tables of prices say what each path costs, whichever dimensions and sizes pairs have in common."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mithril.cost import SIMULATED, Hardware
from mithril.errors import PlanError
from mithril.mesh import Mesh, Sharding
from mithril.sharding import Resharder
from mithril.sharding.move_prices import FORBIDDEN, PRICE_UNIT, MovePrices
from mithril.types import DType, TensorType

MESHES = [Mesh(a=4, b=2), Mesh(a=2, b=3, c=2), Mesh(a=2, b=2, c=2, d=2)]
SIZES = [1, 4, 6, 10, 16, 24]
H100 = Hardware.load("h100-sxm")


@st.composite
def placements(draw: st.DrawFn, mesh: Mesh, rank: int) -> Sharding:
    """A sharding with axes in any order, of which some may be partial."""
    dims: list[tuple[str, ...]] = [()] * rank
    pending = []
    for axis in draw(st.permutations(mesh.names)):
        where = draw(st.integers(-2, rank - 1))
        if where >= 0:
            dims[where] += (axis,)
        elif where == -1:
            pending.append((axis, draw(st.sampled_from(["sum", "sum", "max"]))))
    ordered = sorted(pending, key=lambda pair: mesh.names.index(pair[0]))
    return Sharding(mesh, tuple(dims), tuple(ordered))


@st.composite
def questions(draw: st.DrawFn) -> tuple[Mesh, list[tuple[TensorType, list[Sharding]]]]:
    """Types of some ranks on a mesh, each with places it may be in."""
    mesh = draw(st.sampled_from(MESHES))
    found = []
    for _ in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(st.sampled_from(SIZES), min_size=0, max_size=4)))
        dtype = draw(st.sampled_from([DType.float32, DType.bfloat16, DType.int8]))
        places = draw(st.lists(placements(mesh, len(shape)), min_size=1, max_size=5))
        found.append((TensorType(shape, dtype), places))
    return mesh, found


def price(
    hardware: Hardware, pads: bool, type: TensorType, start: Sharding, goal: Sharding
) -> float:
    """Return what a path costs that nothing is known of beforehand."""
    for axis, reduction in goal.partial:
        if start.reduction_of(axis) not in (reduction, *([None] if reduction == "sum" else [])):
            return FORBIDDEN
    path = Resharder(start.mesh, hardware, pads).path(start, goal, type)
    return path.price * PRICE_UNIT + path.collectives


@given(questions(), st.sampled_from([SIMULATED, H100]), st.booleans())
def test_a_table_has_the_price_of_each_path(
    asked: tuple[Mesh, list[tuple[TensorType, list[Sharding]]]], hardware: Hardware, pads: bool
) -> None:
    mesh, questions = asked
    prices = MovePrices(Resharder(mesh, hardware, pads))
    for type, places in questions:
        if not pads:
            places = [place for place in places if place.is_even(type.shape)]
        both = tuple(places)
        table = prices.tabulate(type, both, both) if both else np.zeros((0, 0))
        for (i, start), (j, goal) in itertools.product(enumerate(both), repeat=2):
            assert table[i, j] == price(hardware, pads, type, start, goal)


def list_all(mesh: Mesh, rank: int) -> tuple[Sharding, ...]:
    """Return every sharding with axes in the order of the mesh, partial sums among them."""
    found = []
    for places in itertools.product([-2, -1, *range(rank)], repeat=len(mesh.names)):
        dims: list[tuple[str, ...]] = [()] * rank
        for axis, place in zip(mesh.names, places, strict=True):
            if place >= 0:
                dims[place] += (axis,)
        partial = ((a, "sum") for a, p in zip(mesh.names, places, strict=True) if p == -1)
        found.append(Sharding(mesh, tuple(dims), tuple(partial)))
    return tuple(found)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(64,), (64, 12), (64, 64, 64), (16, 64, 4)], ids=str)
def test_all_pairs_on_three_axes_cost_what_their_paths_do(shape: tuple[int, ...]) -> None:
    mesh, type = Mesh(a=4, b=4, c=2), TensorType(shape, DType.float32)
    places = list_all(mesh, len(shape))
    prices, resharder = MovePrices(Resharder(mesh, H100)), Resharder(mesh, H100)
    prices.tabulate(TensorType((128, *shape), DType.float32), *[list_all(mesh, len(shape) + 1)] * 2)
    table = prices.tabulate(type, places, places)
    for (i, start), (j, goal) in itertools.product(enumerate(places), repeat=2):
        path = resharder.path(start, goal, type)
        assert table[i, j] == path.price * PRICE_UNIT + path.collectives


def test_what_has_been_reduced_is_not_used_partial_again() -> None:
    mesh, type = Mesh(a=2), TensorType((4,), DType.float32)
    whole, partial = Sharding(mesh, ((),)), Sharding(mesh, ((),), (("a", "sum"),))
    prices = MovePrices(Resharder(mesh, SIMULATED))
    both = (whole, partial)
    moves = prices.tabulate(type, both, both)
    assert np.isfinite(moves).all()
    uses = prices.tabulate_uses(type, both, both)
    np.testing.assert_array_equal(uses, [[0.0, moves[0, 1]], [FORBIDDEN, 0.0]])
    exits = prices.tabulate_exits(type, both, (whole,))
    np.testing.assert_array_equal(exits, [[0.0], [FORBIDDEN]])
    np.testing.assert_array_equal(prices.leave(type, both, ()), [0.0, FORBIDDEN])


def test_a_move_that_is_refused_has_no_price() -> None:
    mesh, type = Mesh(a=2), TensorType((4, 4), DType.float32)
    resharder = Resharder(mesh, SIMULATED, refuses=lambda kind, nbytes: kind == "all_gather")
    split, whole = Sharding(mesh, (("a",), ())), Sharding(mesh, ((), ()))
    prices = MovePrices(resharder).tabulate(type, (split, whole), (split, whole))
    np.testing.assert_array_equal(prices, [[0.0, FORBIDDEN], [0.0, 0.0]])
    with pytest.raises(PlanError, match="cannot reshard"):
        resharder.path(split, whole, type)
