"""A search finds what trying everything finds, and its bound is never above that."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mithril import ops
from mithril.errors import PlanError
from mithril.ir import Builder, Graph, Tensor
from mithril.mesh import Mesh
from mithril.sharding import Search, find
from mithril.sharding.budget import Limit
from mithril.sharding.moments import list_moments
from mithril.sharding.objective import PRICE_UNIT, Objective
from mithril.sharding.widen import widen
from mithril.types import DType, TensorType

from tests.profiles import scaled
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
    space = draw(st.sampled_from(["mixed", "mixed", "data", "tensor"]))
    search = Search(spaces=(space,), batches=frozenset(["x"]), parameters=frozenset(weights))
    with_gradients = draw(st.booleans())
    everything = Everything(graph, mesh, weights if with_gradients else (), search)
    assume(everything.count() <= MOST)
    return everything, search


@settings(max_examples=scaled(200))
@given(problems())
def test_what_is_found_is_the_best_of_all(problem: tuple[Everything, Search]) -> None:
    every, _ = problem
    best = min(price for _, _, price in every.list_all())
    found = find(every.graph, every.given, every.candidates, every.resharder).result
    assert found.is_exact
    assert found.bound <= found.cost
    assert math.floor(found.cost) == best  # ties are decided below a picosecond


def solve_with_highs(objective: Objective, limits: list[Limit]) -> float:
    """Return the least cost within limits, by HiGHS: a variable for each entry of each table."""
    optimize, sparse = pytest.importorskip("scipy.optimize"), pytest.importorskip("scipy.sparse")
    domains, costs, rows = objective.domains, [], []
    first = np.concatenate([[0], np.cumsum(domains)])
    costs = [0.0] * int(first[-1])
    upper = [1.0] * len(costs)
    for variable, size in enumerate(domains):
        rows.append(({int(first[variable]) + i: 1.0 for i in range(size)}, 1.0, 1.0))
    constant = 0.0
    for table in objective.tables:
        if not table.variables:
            constant += float(table.costs)
        elif len(table.variables) == 1:
            for i, cost in enumerate(table.costs):
                at = int(first[table.variables[0]]) + i
                costs[at] += 0.0 if np.isinf(cost) else cost
                upper[at] = 0.0 if np.isinf(cost) else upper[at]
        else:
            start = len(costs)
            index = np.arange(table.costs.size).reshape(table.costs.shape) + start
            costs += [0.0 if np.isinf(c) else c for c in table.costs.ravel()]
            upper += [0.0 if np.isinf(c) else 1.0 for c in table.costs.ravel()]
            for axis, variable in enumerate(table.variables):
                for i, several in enumerate(np.moveaxis(index, axis, 0)):
                    terms = {int(j): 1.0 for j in several.ravel()}
                    rows.append(({**terms, int(first[variable]) + i: -1.0}, 0.0, 0.0))
    for limit in limits:
        terms, fixed = {}, 0.0
        for table in limit.tables:
            if not table.variables:
                fixed += float(table.costs)
                continue
            for i, size in enumerate(table.costs):
                at = int(first[table.variables[0]]) + i
                terms[at] = terms.get(at, 0.0) + size / limit.most
        rows.append((terms, -np.inf, 1.0 - fixed / limit.most))
    places = [(row, at) for row, (terms, _, _) in enumerate(rows) for at in terms]
    values = [value for terms, _, _ in rows for value in terms.values()]
    at, columns = np.array(places).T
    matrix = sparse.csr_array((values, (at, columns)), shape=(len(rows), len(costs)))
    scale = max(costs)
    found = optimize.milp(
        np.array(costs) / scale,
        integrality=np.array([1] * int(first[-1]) + [0] * (len(costs) - int(first[-1]))),
        bounds=optimize.Bounds(np.zeros(len(upper)), np.array(upper)),
        constraints=optimize.LinearConstraint(matrix, *np.array([r[1:] for r in rows]).T),
        options={"mip_rel_gap": 0.0},
    )
    return math.inf if found.x is None else found.fun * scale + constant


@settings(max_examples=scaled(32))
@given(problems(), st.floats(0.0, 1.0))
def test_within_memory_the_answer_is_that_of_the_integer_program(
    problem: tuple[Everything, Search], share: float
) -> None:
    every, search = problem
    wide = widen(every.candidates, every.graph, every.given, search.spaces[0])
    objective = Objective(every.graph, every.given, wide, every.resharder, search.spaces[0])
    moments = list_moments(every.graph, objective)

    def run(**changes: object) -> object:
        given = replace(every.given, search=replace(search, **changes))
        return find(every.graph, given, every.candidates, every.resharder).result

    least, most = run(objective="memory_usage").memory, run().memory
    limit = int(least + share * (most - least))
    found = run(memory=limit)
    best = solve_with_highs(objective, [Limit(m.tables, limit) for m in moments]) / PRICE_UNIT
    assert found.memory <= limit
    assert found.cost == pytest.approx(best, rel=1e-5)
    assert found.bound <= found.cost
    assert found.bound <= best * (1 + 1e-5)
    with pytest.raises(PlanError, match=r"finds no plan within .* a device: the least is"):
        run(memory=least - 1)
