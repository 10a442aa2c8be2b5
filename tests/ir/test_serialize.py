"""Graphs and plans survive JSON; other texts are refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import ops
from mithril.errors import GraphError, MeshError, MithrilError, UnknownNameError
from mithril.ir import Builder
from mithril.ir.serialize import graph_from_json, graph_to_json
from mithril.mesh import Mesh, P
from mithril.plan.serialize import plan_from_json, plan_to_json
from mithril.types import DType, TensorType

from tests.graphs import BLOCK_PARAMETERS, MEGATRON_BLOCK, block, mlp, run, values_for
from tests.profiles import scaled


def test_graph_prints_the_same_after_a_round_trip(golden: Callable[[str, str], None]) -> None:
    graph = block()
    text = graph_to_json(graph)
    assert str(graph_from_json(text)) == str(graph)
    assert graph_to_json(graph_from_json(text)) == text
    golden("block_graph.txt", str(graph))
    golden("mlp_graph.json", graph_to_json(mlp()))


def test_every_kind_of_attribute_survives() -> None:
    builder = Builder()
    x = builder.input(TensorType((2, 3), DType.float32), "x")
    y = ops.cast(x[:, 1:], "bfloat16") * math.inf
    graph = builder.build({"y": ops.where(ops.one_hot(ops.argmax(x, 1), 2, "bool"), y, -math.inf)})
    again = graph_from_json(graph_to_json(graph))
    for old, new in zip(graph.nodes, again.nodes, strict=True):
        assert old.op == new.op


def test_plan_runs_the_same_after_a_round_trip() -> None:
    graph = block()
    values = values_for(graph)
    mesh = Mesh(data=2, tensor=2)
    inputs = {**MEGATRON_BLOCK, "x": P("data")}
    plan = run(
        graph, mesh, values, inputs, compute=[*MEGATRON_BLOCK], differentiated=BLOCK_PARAMETERS
    ).plan
    again = plan_from_json(plan_to_json(plan))
    assert str(again) == str(plan)
    assert again.specs == plan.specs
    assert again.collectives() == plan.collectives()
    np.testing.assert_equal(str(again.stages[0].program.graph), str(plan.stages[0].program.graph))


BAD = {
    "no JSON": ("{", "does not describe a graph"),
    "another schema": ('{"schema": 2, "graph": {}}', "not a graph of schema 1"),
    "no graph": ('{"schema": 1}', "not a graph of schema 1"),
    "empty graph": ('{"schema": 1, "graph": {}}', "does not describe a graph; KeyError"),
    "deep lists": ("[" * 100_000, "JSON text of a graph is nested too deep; write it anew"),
    "deep objects": ('{"schema": 1, "graph": ' + '{"a":' * 100_000, "graph is nested too deep"),
    "half a character": ('{"schema": 1, "graph": "\\ud800"}', "UnicodeEncodeError: 'utf-8' codec"),
    "another half": ('{"schema": 1, "graph": "\udc80"}', "UnicodeEncodeError: 'utf-8' codec"),
    "no text": (None, "does not describe a graph; TypeError"),
}


@pytest.mark.parametrize("case", BAD)
def test_other_texts_are_refused(case: str) -> None:
    text, message = BAD[case]
    with pytest.raises(GraphError, match=message):
        graph_from_json(text)


def changed(change: Callable[[dict], None]) -> str:
    content = json.loads(graph_to_json(mlp()))
    change(content["graph"])
    return json.dumps(content)


def test_faulty_graphs_are_refused() -> None:
    with pytest.raises(
        UnknownNameError, match="op 'einsun' is not known here; did you mean 'einsum'"
    ):
        graph_from_json(changed(lambda g: g["nodes"][0].update(op="einsun")))
    with pytest.raises(
        GraphError, match=r"'einsum' has attributes \['equation'\], the text gives \[\]"
    ):
        graph_from_json(changed(lambda g: g["nodes"][0].update(attributes={})))
    with pytest.raises(GraphError, match=r"makes float32\[4, 4, 64\], the graph says"):
        graph_from_json(changed(lambda g: g["nodes"][0]["outputs"][0].update(shape=[1])))


def test_plan_with_an_unknown_axis_is_refused() -> None:
    plan = run(mlp(), Mesh(data=2), values_for(mlp()), {"x": P("data")}).plan
    content = json.loads(plan_to_json(plan))
    content["plan"]["stages"][0]["inputs"][0]["dims"][0] = ["dta"]
    with pytest.raises(MeshError, match="no axis 'dta'"):
        plan_from_json(json.dumps(content))


HOSTILE = [
    None, True, -1, 0, 1e400, 10**30, "", "x", "\0", 'a"""', [], [[]], {}, {"a": {}}, [None], ["x", 1],
    "float32", "-inf",
]  # fmt: skip


def places(content: object, at: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """Yield the paths to all that a JSON text holds."""
    items = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    for key, value in items:
        yield (*at, key)
        yield from places(value, (*at, key))


@given(data=st.data())
@settings(max_examples=scaled(400))
def test_a_changed_plan_is_read_or_refused(data: st.DataObject) -> None:
    """Whatever stands there, the error is one of Mithril's."""
    content = json.loads(SMALL_PLAN)
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(list(places(content))))
        inside = content
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = deepcopy(data.draw(st.sampled_from(HOSTILE)))
    try:
        plan = plan_from_json(json.dumps(content))
    except MithrilError:
        return
    str(plan).encode()


def _small_plan() -> str:
    inputs = {"x": P("data")}
    return plan_to_json(run(mlp(), Mesh(data=2), values_for(mlp()), inputs).plan)


SMALL_PLAN = _small_plan()
HOSTILE_AXES = {
    "no identifier": ([{"name": 'a"""', "size": 2, "parent": ""}], "is no identifier"),
    "no part": ([{"name": "x", "size": 2, "parent": "data"}], "'x' is no part of axis 'data'"),
    "twice": ([{"name": "data", "size": 2, "parent": ""}] * 2, "repeat a name"),
}


@pytest.mark.parametrize("case", HOSTILE_AXES)
def test_axes_that_are_none_are_refused(case: str) -> None:
    axes, message = HOSTILE_AXES[case]
    content = json.loads(SMALL_PLAN)
    content["plan"]["mesh"]["axes"] = axes
    with pytest.raises(MithrilError, match=message):
        plan_from_json(json.dumps(content))


def test_a_sharding_of_another_rank_is_refused() -> None:
    content = json.loads(SMALL_PLAN)
    content["plan"]["stages"][0]["inputs"][0]["dims"] = []
    message = r"a sharding of 0 dimensions for float32\[4, 4, 32\]"
    with pytest.raises(GraphError, match=message):
        plan_from_json(json.dumps(content))
