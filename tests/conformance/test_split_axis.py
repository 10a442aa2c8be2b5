"""Ops along a dimension that devices share, on every installed backend, as on one NumPy device."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from mithril.engine import Engine
from mithril.ir import Builder, Graph, Tensor
from mithril.mesh import Mesh, P
from mithril.types import DType, TensorType

from tests.conformance.engines import BACKENDS, opened
from tests.graphs import on_one_device, run, values_for
from tests.partition.test_split_axis import COMPUTED, DECIDED, Along
from tests.profiles import quick
from tests.tolerances import TOLERANCE

pytestmark = [
    pytest.mark.parametrize("backend", BACKENDS),
    pytest.mark.parametrize("spec", [P("a"), P(("b", "a")), P(None, "b")], ids=str),
]
SHAPE, MESH = (7, 5, 3), Mesh(a=2, b=2)


def graph_of(cases: dict[str, Along], dtype: DType) -> Graph:
    """Return every op along the first dimension."""
    builder = Builder()
    x = builder.input(TensorType(SHAPE, dtype), "x")
    made: dict[str, Tensor] = {}
    for op, along in cases.items():
        made |= {f"{op} {name}": y for name, y in along(x, 0).items()}
    return builder.build(made)


def promised(graph: Graph) -> dict[str, P]:
    """Return outputs that leave in parts: every other one."""
    ranked = [name for name, value in graph.outputs.items() if value.type.rank]
    return {name: P("b") for name in ranked[::2]}


def engine_on(backend: str, mesh: Mesh) -> Engine:
    return opened(backend, **mesh.sizes).engine.on(mesh)


@quick(lambda backend, spec: spec == P(("b", "a")) and backend != "jax")
@pytest.mark.parametrize("kind", ["ties", "odd"])
def test_decisions(backend: str, spec: P, kind: str) -> None:
    graph = graph_of(DECIDED, DType.float32)
    chosen = [np.nan, -np.inf, np.inf, -1.0, 2.0] if kind == "odd" else [0.0, 1.0, -1.0]
    x = np.random.default_rng(5).choice(chosen, SHAPE).astype(np.float32)
    on = partial(engine_on, backend)
    ran = run(graph, MESH, {"x": x}, {"x": spec}, outputs=promised(graph), opened=on)
    for name, expected in on_one_device(graph, {"x": x}, ()).items():
        np.testing.assert_array_equal(ran.outputs[name], expected, err_msg=name)


@quick(lambda backend, spec: spec == P("a") and backend != "jax")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_numbers_and_gradients(backend: str, spec: P, dtype: str) -> None:
    graph = graph_of(COMPUTED, DType(dtype))
    values, on = values_for(graph), partial(engine_on, backend)
    values["x"] = (values["x"] + np.sign(values["x"])).astype(values["x"].dtype)
    wanted = ["x"] if dtype == "float32" else []  # products of 105 narrow numbers are rounded
    options = {"outputs": promised(graph), "differentiated": wanted, "opened": on}
    ran = run(graph, MESH, values, {"x": spec}, **options)
    for name, expected in on_one_device(graph, values, wanted).items():
        found, sure = (y.astype(np.float64) for y in (ran.outputs[name], expected))
        np.testing.assert_allclose(found, sure, *TOLERANCE[dtype], err_msg=name)
