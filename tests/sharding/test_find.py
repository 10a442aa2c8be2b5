"""A search finds what trying everything finds, and its bound is never above that."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mithril import ops
from mithril.errors import PlanError
from mithril.ir import Builder, Graph, Tensor
from mithril.mesh import Mesh
from mithril.sharding import Search, Way, find
from mithril.sharding.budget import Limit
from mithril.sharding.moments import list_moments
from mithril.sharding.move_prices import PRICE_UNIT, MovePrices
from mithril.sharding.objective import Objective
from mithril.sharding.widen import widen
from mithril.types import DType, TensorType

from benchmarks.search_program import solve_program
from tests.profiles import runs_all, scaled
from tests.sharding.brute import Everything

MESHES = [Mesh(a=2), Mesh(a=4), Mesh(a=8), Mesh(a=2, b=2)]
MOST = 60_000
"""So many combinations are tried at most."""


def parameter(builder: Builder, name: str, *shape: int) -> Tensor:
    return builder.input(TensorType(shape, DType.float32), name)


STEPS = {
    "linear": lambda x, b, n: ops.einsum("rd,ed->re", x, parameter(b, f"w{n}", 8, x.shape[1])),
    "wide": lambda x, b, n: ops.einsum("rd,ed->re", x, parameter(b, f"w{n}", 64, x.shape[1])),
    "bias": lambda x, b, n: x + parameter(b, f"w{n}", x.shape[1]),
    "relu": lambda x, b, n: ops.relu(x),
    "double": lambda x, b, n: x + x,
    "swap": lambda x, b, n: x.transpose(1, 0),
    "residual": lambda x, b, n: x + ops.tanh(x),
    "mean": lambda x, b, n: ops.mean(x, 0, keepdims=True) + x,
}


def build(steps: list[str], rows: int, columns: int) -> Graph:
    builder = Builder()
    x = parameter(builder, "x", rows, columns)
    for number, step in enumerate(steps):
        x = STEPS[step](x, builder, number)
    return builder.build({"y": x})


@st.composite
def problems(draw: st.DrawFn) -> tuple[Everything, Search]:
    steps = draw(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=3))
    mesh = draw(st.sampled_from(MESHES))
    graph = build(steps, draw(st.sampled_from([4, 8, 256])), draw(st.sampled_from([3, 8, 64])))
    weights = tuple(value.name for value in graph.inputs if value.name != "x")
    space = draw(st.sampled_from(["mixed", "mixed", "data", "fully_sharded", "tensor"]))
    search = Search(spaces=(space,), batches=frozenset(["x"]), parameters=frozenset(weights))
    with_gradients = draw(st.booleans())
    everything = Everything(graph, mesh, weights if with_gradients else (), search)
    assume(everything.count() <= MOST)
    return everything, search


@settings(max_examples=200 if runs_all() else 12)
@given(problems())
def test_what_is_found_is_the_best_of_all(problem: tuple[Everything, Search]) -> None:
    every, search = problem
    best = min(price for _, _, price in every.list_all())
    way = Way(every.graph, every.given, every.candidates, MovePrices(every.resharder))
    found = find(way, search).result
    assert found.is_exact
    assert found.bound <= found.cost
    assert math.floor(found.cost) == best  # ties are decided below a picosecond


@pytest.mark.slow
@settings(max_examples=scaled(32))
@given(problems(), st.floats(0.0, 1.0))
def test_within_memory_the_answer_is_that_of_the_integer_program(
    problem: tuple[Everything, Search], share: float
) -> None:
    pytest.importorskip("scipy.optimize")
    every, search = problem
    wide = widen(every.candidates, every.graph, every.given, search.spaces[0])
    objective = Objective(
        every.graph, every.given, wide, MovePrices(every.resharder), search.spaces[0]
    )
    moments = list_moments(every.graph, objective)

    way = Way(every.graph, every.given, every.candidates, MovePrices(every.resharder))

    def run(**changes: object) -> object:
        return find(way, replace(search, **changes)).result

    least, most = run(objective="memory_usage").memory, run().memory
    limit = int(least + share * (most - least))
    found = run(memory=limit)
    limits = [Limit(m.tables, limit) for m in moments]
    best = solve_program(objective.domains, objective.list_tables(), limits).cost / PRICE_UNIT
    assert found.memory <= limit
    assert found.cost == pytest.approx(best, rel=1e-5)
    assert found.bound <= found.cost
    assert found.bound <= best * (1 + 1e-5)
    with pytest.raises(PlanError, match=r"finds no plan within .* a device: the least is"):
        run(memory=least - 1)
