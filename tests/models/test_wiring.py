"""The index of a model that grows says what the model says when all of it is looked at."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mithril.errors import GraphError
from mithril.models import Add, Linear, Model, Relu
from mithril.models.wiring import Wiring

from tests.profiles import scaled

WIRES = st.sampled_from(["a", "b", "c", "input", "output", "x"])
SHORT = st.sampled_from(
    ["a", "b", "x", "input", "output", "relu_0.input", "relu_1.output", "model_0.x"]
)


def nested() -> Model:
    inner = Model()
    inner |= Relu()(input="x", output="b")
    inner |= Linear(3)
    return inner


@st.composite
def steps(draw: st.DrawFn) -> list[tuple]:
    """Draw what is done to a model: layers with some connections named, links, and outputs."""
    kinds = st.sampled_from(["or", "add", "join", "nest", "connect", "output"])
    found = []
    for _ in range(draw(st.integers(1, 9))):
        kind = draw(kinds)
        given = {port: draw(WIRES) for port in ("input", "output") if draw(st.booleans())}
        found.append((kind, given, draw(SHORT), draw(SHORT)))
    return found


def apply(model: Model, step: tuple) -> None:
    kind, given, one, other = step
    if kind == "or":
        model |= Relu()(**given)
    elif kind == "add":
        model += Linear(3)(**given)
    elif kind == "join":
        output = {"output": given["output"]} if "output" in given else {}
        model += Add()(inputs=[one, other], **output)
    elif kind == "nest":
        model += nested()
    elif kind == "connect":
        model.connect(source=one, destination=other)
    else:
        model.output(one)


@settings(max_examples=scaled(400), deadline=None)
@given(steps())
@example([("or", {}, "", ""), ("or", {}, "", ""), ("output", {}, "relu_1.output", "")])
@example([("nest", {}, "", ""), ("or", {}, "", ""), ("connect", {}, "relu_0.input", "model_0.x")])
def test_what_is_open_and_what_names_mean_agree_with_the_whole(done: list[tuple]) -> None:
    model = Model()
    for step in done:
        before = model.snapshot()
        try:
            apply(model, step)
        except GraphError:
            assert model.snapshot() is before
            continue
        state, wiring = model.snapshot(), model._wiring
        assert len(state.order) == len(state.members)  # no cycle
        assert len(set(state.shown.values())) == len(state.shown)
        again = Wiring(state)
        for index in (wiring, again):
            for name in state.open_inputs:
                assert index.open_input(state.shown[name]) == name
                assert index.find_destination(state.shown[name]) == name
            for name in state.open_outputs:
                assert index.root(index.find_source(state.shown[name])) == name
            for name in state.producers:
                consumed = {state.root(read) for read in state.consumers}
                assert index.is_read(name) == (name in consumed)


def test_a_cycle_is_found_through_links_and_whatever_direction() -> None:
    model = Model()
    model |= Relu(name="p")
    model |= Relu(name="q")
    model |= Relu(name="r")(output="last")
    model.connect(source="p.output", destination="q.input")
    model.connect(source="q.output", destination="r.input")
    with pytest.raises(GraphError, match="connections form a cycle; "):
        model.connect(source="last", destination="p.input")
    assert model.inputs == ("input",)
