"""Reshard paths: there and back is the identity, and no path costs more than gathering everything."""

from __future__ import annotations

import itertools

import mithril as ml
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mithril.compiler import Request, Target, make_plan
from mithril.cost import SIMULATED, Hardware
from mithril.engine.numpy_engine import NumpyEngine
from mithril.engine.shards import trim_padding
from mithril.errors import PlanError
from mithril.ir import Builder
from mithril.mesh import Mesh, P, Sharding, refine
from mithril.sharding import Layout, Resharder
from mithril.sharding.moves import list_moves
from mithril.types import DType, TensorType

from tests.profiles import quick

MESH = Mesh(data=4, tensor=2)
TYPE = TensorType((16, 8), DType.float32)
UNEVEN = TensorType((10, 5), DType.float32)
SPECS = [
    P(),
    P("data"),
    P("tensor"),
    P(None, "data"),
    P(None, "tensor"),
    P("data", "tensor"),
    P("tensor", "data"),
    P(("data", "tensor")),
    P(("tensor", "data")),
    P(None, ("data", "tensor")),
    P(None, ("tensor", "data")),
]

PAIRS = list(itertools.product(SPECS, SPECS))


def sharding(spec: P) -> Sharding:
    return Sharding.of(MESH, spec, 2)


def kinds(start: P, goal: P, type: TensorType = TYPE) -> list[str]:
    path = Resharder(MESH, SIMULATED).path(sharding(start), sharding(goal), type)
    return [move.kind for move in path.moves]


@quick(lambda type: type is UNEVEN)
@pytest.mark.parametrize("type", [TYPE, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize(("start", "goal"), PAIRS, ids=str)
def test_any_spec_reaches_any_other_with_the_same_values(
    start: P, goal: P, type: TensorType
) -> None:
    """Plan the identity with promised output; the values arrive, by the moves the path names."""
    builder = Builder()
    x = builder.input(type, "x")
    request = Request({"x": Layout(sharding(start)), "y": Layout(leaves=sharding(goal))})
    engine = NumpyEngine(MESH)
    plan = make_plan(builder.build({"y": x}), request, Target.of(engine))
    values = np.arange(type.size, dtype=np.float32).reshape(type.shape)
    program = plan.stages[0].program
    moved: list[str] = []
    (parts,) = engine.lower(program)(
        [engine.put(type, sharding(start), lambda box: values[box])],
        lambda issued: moved.append(issued.kind),
    )
    for device, part in enumerate(parts):
        box = sharding(goal).box(device, type.shape)
        np.testing.assert_array_equal(trim_padding(part, box), values[box])
    expected = [kind for kind in kinds(start, goal, type) if kind not in ("slice", "to_partial")]
    assert moved == expected


Journey = tuple[Mesh, tuple[int, ...], Sharding, Sharding]


@st.composite
def placements(draw: st.DrawFn, mesh: Mesh, rank: int) -> Sharding:
    """A sharding on a mesh, or on a refinement of it."""
    wide = [axis.name for axis in mesh.axes if axis.size == 4]
    if wide and draw(st.booleans()):
        mesh = refine(mesh, {wide[0]: (2, 2)})
    dims: list[tuple[str, ...]] = [()] * rank
    for axis in draw(st.permutations(mesh.names)):
        where = draw(st.integers(-1, rank - 1))
        if where >= 0:
            dims[where] += (axis,)
    return Sharding.of(mesh, P(*dims), rank)


@st.composite
def journeys(draw: st.DrawFn, *meshes: Mesh) -> Journey:
    """A mesh, a shape that need not divide, and two places on it."""
    mesh = draw(st.sampled_from(meshes))
    shape = draw(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 3)))
    return mesh, shape, draw(placements(mesh, 3)), draw(placements(mesh, 3))


def go_there_and_back(backend: ml.Backend, journey: Journey) -> None:
    _, shape, start, goal = journey
    values = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    x = backend.array(values, sharding=start)
    there = backend.reshard(x, goal)
    np.testing.assert_array_equal(there.numpy(), values)
    back = backend.reshard(there, x.sharding)
    if x.sharding.is_even(shape):
        assert back.sharding == x.sharding
    for one, other in zip(back.addressable_shards, x.addressable_shards, strict=True):
        assert one.index == other.index
        np.testing.assert_array_equal(one.data, other.data)


@given(journeys(MESH, Mesh(a=4, b=4), Mesh(a=2, b=3, c=2)))
def test_there_and_back_is_the_identity(journey: Journey) -> None:
    go_there_and_back(ml.NumpyBackend(journey[0]), journey)


@quick(lambda type: type is TYPE)
@pytest.mark.parametrize("type", [TYPE, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize(("start", "goal"), PAIRS, ids=str)
def test_no_path_moves_more_than_gathering_everything(start: P, goal: P, type: TensorType) -> None:
    resharder = Resharder(MESH, SIMULATED)

    def moved(end: P) -> int:
        moves = resharder.path(sharding(start), sharding(end), type).moves
        return sum(resharder.move_bytes(move, type) for move in moves if move.is_collective)

    assert moved(goal) <= moved(P())


@pytest.mark.parametrize(
    ("start", "goal", "expected"),
    [
        (P(), P("data", "tensor"), ["slice", "slice"]),
        (P("data"), P(), ["all_gather"]),
        (P(("data", "tensor")), P(), ["all_gather"]),
        (P(("data", "tensor")), P("data"), ["all_gather"]),
        (P("data"), P(None, "data"), ["all_to_all"]),
        (P(("data", "tensor")), P(("tensor", "data")), ["permute"]),
        (P(("tensor", "data")), P("data"), ["permute", "all_gather"]),
    ],
    ids=str,
)
def test_moves_of_well_known_cases(start: P, goal: P, expected: list[str]) -> None:
    assert kinds(start, goal) == expected


def test_partial_values_are_reduced_or_scattered() -> None:
    resharder = Resharder(MESH, SIMULATED)
    partial = Sharding(MESH, ((), ()), (("data", "sum"), ("tensor", "sum")))

    def moves(goal: P) -> list[tuple[str, tuple[str, ...]]]:
        path = resharder.path(partial, sharding(goal), TYPE)
        return [(move.kind, move.axes) for move in path.moves]

    assert moves(P()) == [("all_reduce", ("data", "tensor"))]
    assert set(moves(P("data"))) == {("all_reduce", ("tensor",)), ("reduce_scatter", ("data",))}
    one = Sharding(MESH, ((), ()), (("data", "sum"),))
    assert [m.kind for m in resharder.path(sharding(P()), one, TYPE).moves] == ["to_partial"]


def test_a_goal_in_another_reduction_cannot_be_reached() -> None:
    largest = Sharding(MESH, ((), ()), (("data", "max"),))
    total = Sharding(MESH, ((), ()), (("data", "sum"),))
    with pytest.raises(PlanError, match=r"cannot reshard float32.* partial sum over data to"):
        Resharder(MESH, SIMULATED).path(total, largest, TYPE)


@given(st.sampled_from(SPECS), st.sampled_from(SPECS), st.sampled_from(SPECS))
def test_prices_obey_the_triangle_inequality_up_to_merging(a: P, b: P, c: P) -> None:
    resharder = Resharder(MESH, SIMULATED)
    direct = resharder.path(sharding(a), sharding(c), TYPE).price
    detour = resharder.path(sharding(a), sharding(b), TYPE).price
    detour += resharder.path(sharding(b), sharding(c), TYPE).price
    assert direct <= detour


@given(st.lists(st.sampled_from(PAIRS), min_size=2, max_size=12), st.sampled_from([TYPE, UNEVEN]))
def test_what_was_found_for_other_paths_changes_none(
    pairs: list[tuple[P, P]], type: TensorType
) -> None:
    shared = Resharder(MESH, SIMULATED)
    for start, goal in pairs:
        found = shared.path(sharding(start), sharding(goal), type)
        assert found == Resharder(MESH, SIMULATED).path(sharding(start), sharding(goal), type)


H100 = Hardware.load("h100-sxm")
NODES = Mesh(a=8, c=8)
"""Whose second axis is within a node."""


@pytest.mark.parametrize(
    ("start", "goal", "expected", "apart"),
    [
        (
            Sharding(NODES, ((), ()), (("a", "sum"), ("c", "sum"))),
            Sharding(NODES, (("a",), ())),
            [("all_reduce", "a", "c"), ("slice", "a")],
            [("reduce_scatter", "a"), ("all_reduce", "c")],
        ),
        (
            Sharding(NODES, (("a", "c"), ())),
            Sharding(NODES, ((), ()), (("c", "sum"),)),
            [("all_gather", "a", "c"), ("to_partial", "c")],
            [("all_gather", "c"), ("all_gather", "a"), ("to_partial", "c")],
        ),
    ],
    ids=["reduced", "gathered"],
)
def test_what_goes_over_several_axes_at_once_is_compared_with_what_goes_over_each(
    start: Sharding,
    goal: Sharding,
    expected: list[tuple[str, ...]],
    apart: list[tuple[str, ...]],
) -> None:
    """All devices of a node then share its links, which one axis after the other does not."""
    resharder, large = Resharder(NODES, H100), TensorType((4096, 4096), DType.float32)
    path = resharder.path(start, goal, large)
    assert [(move.kind, *move.axes) for move in path.moves] == expected
    seconds, here = 0.0, start
    for kind, *axes in apart:
        moves = list_moves(here, goal, large.shape)
        move = next(m for m in moves if (m.kind, *m.axes) == (kind, *axes))
        seconds, here = seconds + resharder.seconds(move, large), move.after
    assert here == goal
    assert path.price < 0.5e12 * seconds


def test_sums_and_maxima_are_not_scattered_together() -> None:
    start = Sharding(MESH, ((), ()), (("data", "sum"), ("tensor", "max")))
    path = Resharder(MESH, SIMULATED).path(start, sharding(P(("data", "tensor"))), TYPE)
    assert [(move.kind, *move.axes) for move in path.moves] == [
        ("reduce_scatter", "data"),
        ("reduce_scatter", "tensor"),
    ]


def test_two_collectives_are_not_taken_for_less_than_a_nanosecond() -> None:
    mesh, few = Mesh(a=2, b=3, c=2), TensorType((7, 5), DType.float32)
    start, goal = Sharding(mesh, (("b", "a"), ())), Sharding(mesh, ((), ("b",)))
    resharder = Resharder(mesh, H100)
    path = resharder.path(start, goal, few)
    assert [(move.kind, *move.axes) for move in path.moves] == [
        ("all_gather", "b", "a"),
        ("slice", "b"),
    ]
    seconds, here = 0.0, start
    for kind, axis in (("all_gather", "a"), ("all_to_all", "b")):
        moves = list_moves(here, goal, few.shape)
        move = next(m for m in moves if (m.kind, *m.axes) == (kind, axis))
        seconds, here = seconds + resharder.seconds(move, few), move.after
    assert here == goal
    assert path.price - 1000 < 1e12 * seconds < path.price
