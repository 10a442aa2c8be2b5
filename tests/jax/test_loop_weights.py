"""Matrices that loops multiply by are transposed before them on CPUs, and results stay."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mithril.ir import Builder, Graph
from mithril.ir.repeat import Repeat
from mithril.ops import Add, Einsum, Transpose
from mithril.ops.recurrent import Lstm
from mithril.testing.running import run_graph
from mithril.types import DType, TensorType

jax = pytest.importorskip("jax")

from mithril_jax.kernels.table import CPU_KERNELS, KERNELS  # noqa: E402
from mithril_jax.loop_weights import FEWEST, MOST_ROWS, lay_loop_weights  # noqa: E402

from tests.tolerances import TOLERANCE  # noqa: E402

EQUATIONS = ["bi,oi->bo", "bi,goi->bgo", "bi,ogi->bgo", "bij,ogij->bog", "bi,io->bo", "bi,igo->bgo"]


def type_of(*shape: int) -> TensorType:
    return TensorType(shape, DType("float32"))


def loop(equation: str, *, count: int = 4, rows: int = 3, reads: str = "once") -> Graph:
    """Return a loop that adds up products of its slices with one matrix."""
    left, right, result = Einsum(equation).terms
    sizes = {"b": rows, "i": 5, "j": 2, "o": 4, "g": 3}
    x_type, w_type, y_type = (type_of(*(sizes[c] for c in term)) for term in (left, right, result))
    body = Builder()
    total, weight, x = (
        body.input(type, name) for type, name in ((y_type, "t"), (w_type, "w"), (x_type, "x"))
    )
    (made,) = body.apply(Einsum(equation), x, weight)
    (made,) = body.apply(Add(), total, made)
    if reads == "twice":
        (made,) = body.apply(Add(), made, body.apply(Einsum(equation), x, weight)[0])
    outputs = {"t": made, "w": weight} if reads == "stacked" else {"t": made}
    outer = Builder()
    given = [
        outer.input(type, name)
        for type, name in ((y_type, "t"), (w_type, "w"), (type_of(count, *x_type.shape), "x"))
    ]
    made_outside = outer.apply(Repeat(body.build(outputs), count, 1, 1), *given)
    return outer.build({f"y{i}": y for i, y in enumerate(made_outside)})


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


@given(st.sampled_from(EQUATIONS), st.integers(FEWEST, 6), st.integers(1, 4), st.integers(0, 99))
def test_results_are_the_same(equation: str, count: int, rows: int, seed: int) -> None:
    graph, rng = loop(equation, count=count, rows=rows), np.random.default_rng(seed)
    laid = lay_loop_weights(graph)
    (node,) = (node for node in laid.nodes if isinstance(node.op, Repeat))
    product = next(n.op for n in node.op.body.nodes if isinstance(n.op, Einsum))
    _, right, result = product.terms
    assert right[0] not in result  # what is added up comes first
    assert (laid.nodes[0].op.name == "transpose") == (Einsum(equation).terms[1] != right)
    values = {x.name: rng.standard_normal(x.type.shape).astype("float32") for x in graph.inputs}
    engine = ml.NumpyBackend().engine
    for name, found in run_graph(engine, laid, values).items():
        np.testing.assert_allclose(
            found, run_graph(engine, graph, values)[name], *TOLERANCE["float32"]
        )


@pytest.mark.parametrize(
    "how",
    [
        {"count": FEWEST - 1}, {"rows": MOST_ROWS + 1}, {"reads": "twice"}, {"reads": "stacked"},
        {"equation": "bi,io->bo"}, {"equation": "bo,bi->oi"},
    ],
)  # fmt: skip
def test_what_gains_nothing_stays(how: dict[str, object]) -> None:
    graph = loop(**{"equation": "bi,oi->bo", **how})  # type: ignore[arg-type]
    laid = lay_loop_weights(graph)
    assert names(laid) == names(graph)
    before, after = (next(n.op for n in g.nodes if isinstance(n.op, Repeat)) for g in (graph, laid))
    assert after.body.nodes == before.body.nodes


def test_a_recurrent_layer_has_them_on_cpus_alone() -> None:
    op, types = Lstm(False), [type_of(7, 3, 5), type_of(4, 6, 5), type_of(4, 6, 6)]
    types += [type_of(3, 6)] * 2
    given = [np.ones(type.shape, np.float32) for type in types]
    first, last = "(([1], [0])", "(([1], [2])"
    for kernels, has, lacks in ((CPU_KERNELS, first, last), (KERNELS, last, first)):
        traced = str(jax.make_jaxpr(kernels["lstm"](op, types))(*given))
        assert f"dimension_numbers={has}" in traced
        assert f"dimension_numbers={lacks}" not in traced


def test_the_engine_lays_out_loops_that_users_write(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Graph] = []

    def spy(graph: Graph) -> Graph:
        seen.append(lay_loop_weights(graph))
        return seen[-1]

    monkeypatch.setattr("mithril_jax.engine.lay_loop_weights", spy)
    graph, rng = loop("bi,goi->bgo"), np.random.default_rng(0)
    values = {x.name: rng.standard_normal(x.type.shape).astype("float32") for x in graph.inputs}
    found = run_graph(ml.JaxBackend().engine, graph, values)
    assert names(seen[0]) == ["transpose", "repeat"]
    for name, expected in run_graph(ml.NumpyBackend().engine, graph, values).items():
        np.testing.assert_allclose(found[name], expected, *TOLERANCE["float32"])


def test_transpose_is_the_op_that_moves() -> None:
    (move, _) = lay_loop_weights(loop("bi,goi->bgo")).nodes
    assert move.op == Transpose((2, 0, 1))
