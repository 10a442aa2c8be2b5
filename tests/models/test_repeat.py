"""Repeat: a block with stacked parameters equals as many blocks one after another."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.ir import Repeat as Loop
from mithril.models.trace import trace
from mithril.plan import Plan
from mithril.types import DType, TensorType

from tests.tolerances import TOLERANCE

N, D, H = 4, 8, 16
COLUMN = {"weight": P("tensor", None), "bias": P("tensor")}


def block(dropout: float = 0.0) -> ml.Model:
    model = ml.Model()
    model |= ml.LayerNorm(name="norm")(input="x", output="normed")
    model += ml.Linear(H, name="up", sharding=COLUMN)(input="normed", output="hidden")
    model += ml.Gelu()(input="hidden", output="active")
    model += ml.Linear(D, name="down", sharding={"weight": P(None, "tensor")})(
        input="active", output="back"
    )
    model += ml.Dropout(rate=dropout, name="drop")(input="back", output="dropped")
    model |= ml.Add()(inputs=["x", "dropped"], output="y")
    return model


def looped(dropout: float = 0.0) -> ml.Model:
    model = ml.Model()
    model |= ml.Repeat(block(dropout), N, name="blocks")(input="input", output="deep")
    model += ml.Linear(3, name="head")(input="deep", output="logits")
    return model


def written_out() -> ml.Model:
    model, wire = ml.Model(), "input"
    for i in range(N):
        inner = block()
        model |= inner(x=wire, y=f"deep_{i}")
        wire = f"deep_{i}"
    model |= ml.Linear(3, name="head")(input=wire, output="logits")
    return model


X = np.random.default_rng(0).standard_normal((6, D)).astype(np.float32)
G = {"logits": np.random.default_rng(1).standard_normal((6, 3)).astype(np.float32)}


def step(model: ml.Model, backend: ml.Backend, params: dict | None = None, **options: object):
    compiled = ml.compile(model, backend)
    made = compiled.randomize_params(0) if params is None else params
    spec = P("data") if "data" in backend.mesh.names else P()
    inputs = {"input": backend.array(X, sharding=spec)}
    outputs, gradients = compiled.evaluate(made, inputs, G, **options)
    return made, outputs, gradients, compiled


def test_a_repeated_block_equals_the_blocks_written_out() -> None:
    backend = ml.NumpyBackend()
    params, outputs, gradients, _ = step(looped(), backend)
    apart = {}
    for name, value in params.items():
        if name.startswith("blocks."):
            for i in range(N):
                apart[name.replace("blocks", f"model_{i}")] = backend.array(value.numpy()[i])
        else:
            apart[name] = value
    _, expected, slopes, _ = step(written_out(), backend, apart)
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(outputs["logits"], expected["logits"], rtol=rtol, atol=atol)
    for name, value in gradients.items():
        stacked = [slopes[name.replace("blocks", f"model_{i}")].numpy() for i in range(N)]
        wanted = np.stack(stacked) if name.startswith("blocks.") else slopes[name].numpy()
        np.testing.assert_allclose(value, wanted, rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("mesh", [ml.Mesh(tensor=2), ml.Mesh(data=2, tensor=2), ml.Mesh(data=4)])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_mesh_equals_one_device(mesh: ml.Mesh, dropout: float) -> None:
    if "tensor" not in mesh.names:
        mesh = ml.Mesh(data=4, tensor=1)
    _, expected, slopes, _ = step(looped(dropout), ml.NumpyBackend(), seed=5)
    _, outputs, gradients, compiled = step(looped(dropout), ml.NumpyBackend(mesh), seed=5)
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(outputs["logits"], expected["logits"], rtol=rtol, atol=atol)
    for name, value in slopes.items():
        np.testing.assert_allclose(gradients[name], value, rtol=rtol, atol=atol, err_msg=name)
    over_tensor = [row for row in compiled.plan.collectives() if row.axes == ("tensor",)]
    if mesh.sizes["tensor"] > 1:
        assert [row.times for row in over_tensor] == [N, N], "one each way and repetition"


def test_each_repetition_has_numbers_of_its_own() -> None:
    params = ml.compile(looped(), ml.NumpyBackend(), shapes={"input": (6, D)}).randomize_params(3)
    weight = params["blocks.up.weight"].numpy()
    assert weight.shape == (N, H, D)
    assert len(np.unique(weight)) == weight.size
    bound = 1 / np.sqrt(D)
    assert np.abs(weight).max() <= bound, "the fan-in is that of one repetition"
    np.testing.assert_array_equal(params["blocks.norm.weight"].numpy(), np.ones((N, D)))


def test_dropout_draws_anew_in_every_repetition() -> None:
    inner = ml.Model()
    inner |= ml.Dropout(rate=0.5)(input="x", output="y")
    model = ml.Model()
    model |= ml.Repeat(inner, 2)(input="input", output="output")
    compiled = ml.compile(model, ml.NumpyBackend())
    ones = np.ones((64, 64), np.float32)
    kept = compiled.evaluate({}, {"input": ones}, seed=1)["output"].numpy() > 0
    assert 0.2 < kept.mean() < 0.3, "half of a half, when the masks differ"


def test_names_are_those_of_the_block_under_the_layer() -> None:
    model = looped()
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": (6, D)})
    assert compiled.parameters[:3] == (
        "blocks.norm.weight",
        "blocks.norm.bias",
        "blocks.up.weight",
    )
    assert "Repeat(model, 4, name='blocks')" in model.summary()
    unnamed = ml.Model()
    unnamed += ml.Repeat(ml.Linear(4), 2)
    assert ml.compile(unnamed, ml.NumpyBackend()).parameters == (
        "repeat_0.weight",
        "repeat_0.bias",
    )


def test_the_graph_holds_the_block_once() -> None:
    traced = trace(looped(), {"input": TensorType((6, D), DType.float32)})
    assert [type(node.op) for node in traced.graph.nodes].count(Loop) == 1
    assert len(traced.graph.nodes) < 8


def test_patterns_reach_into_the_block() -> None:
    model = looped()
    model.shard({"blocks.*.bias": P(), "blocks.hidden": P("data", "tensor")})
    mesh = ml.Mesh(data=2, tensor=2)
    _, _, _, compiled = step(model, ml.NumpyBackend(mesh))
    assert compiled.plan.specs["blocks.up.bias"].sharding.spec == P()
    assert compiled.plan.specs["blocks.hidden"].decided_by == "the user"
    model.shard({"blocks.nothing": P()})
    with pytest.raises(ml.ShardingError, match="matches no parameter or value"):
        ml.compile(model, ml.NumpyBackend(mesh))


def test_loops_in_loops_show_their_names() -> None:
    inner = ml.Model()
    inner |= ml.Repeat(block(), 2, name="inner")(input="x", output="y")
    model = ml.Model()
    model |= ml.Repeat(inner, 3, name="outer")(input="input", output="output")
    model.shard({"outer.inner.hidden": P("data", "tensor")})
    backend = ml.NumpyBackend(ml.Mesh(data=2, tensor=2))
    compiled = ml.compile(model, backend, shapes={"input": (6, D)})
    assert compiled.plan.specs["outer.inner.hidden"].decided_by == "the user"


def two_inputs() -> ml.Model:
    model = ml.Model()
    model |= ml.Add()(inputs=["a", "b"], output="c")
    return model


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: ml.Repeat(3, 2), ml.OptionError, "Repeat option 'block' is 3; give a Model"),
        (lambda: ml.Repeat(block(), 0), ml.OptionError, "'count' is 0; it must be a positive"),
        (lambda: ml.Repeat(block(), 2, rate=1), ml.OptionError, "Repeat has no option 'rate'"),
        (
            lambda: ml.Repeat(two_inputs(), 2),
            ml.GraphError,
            r"inputs \['a', 'b'\] and outputs \['c'\], and cannot tell which output becomes which "
            r"input of the next repetition; say it, such as carry=\{'a': 'c'\}",
        ),
        (
            lambda: ml.Repeat(two_inputs(), 2, carry={"z": "c"}),
            ml.OptionError,
            r"'carry' names 'z', which is no input of model; inputs: 'a', 'b'",
        ),
        (
            lambda: ml.Repeat(two_inputs(), 2, carry={"a": "d"}),
            ml.OptionError,
            r"'carry' names 'd', which is no output of model; outputs: 'c'",
        ),
        (
            lambda: ml.Repeat(two_inputs(), 2, carry={"a": "c"}, stacked=("d",)),
            ml.OptionError,
            r"'stacked' names 'd', which is no input of model; inputs: 'a', 'b'",
        ),
        (
            lambda: ml.Repeat(two_inputs(), 2, carry={"a": "c"}, stacked=("a",)),
            ml.OptionError,
            r"carry and stacked both name input 'a'; carry it, or give each repetition a slice",
        ),
        (
            lambda: ml.Repeat(two_inputs(), 2, carry="a"),
            ml.OptionError,
            r"'carry' is 'a'; it must be a mapping from inputs of the block to outputs",
        ),
        (
            lambda: ml.Repeat(two_inputs(), 2, carry={"a": "c"}, stacked="b"),
            ml.OptionError,
            r"'stacked' is 'b'; it must be names of inputs of the block, in a tuple",
        ),
        (
            lambda: ml.compile(
                ml.Repeat(two_inputs(), 2, carry={"a": "c"}, stacked=("b",)),
                ml.NumpyBackend(),
                shapes={"a": (3,), "b": (4, 3)},
            ),
            ml.ShapeError,
            r"runs 2 repetitions, and its stacked input 'b' is float32\[4, 3\]; its first dim",
        ),
        (
            lambda: step_of(ml.Repeat(ml.Linear(5, name="odd"), 2)),
            ml.ShapeError,
            r"carries 'input' into an iteration as float32\[6, 8\] and out of it as .*repeat_0",
        ),
    ],
)
def test_mistakes(make, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def step_of(layer: ml.Repeat) -> None:
    model = ml.Model()
    model += layer
    ml.compile(model, ml.NumpyBackend(), shapes={"input": (6, D)})


def plan_with_rules(inside: dict[str, P], outside: dict[str, P], depth: int = 1) -> Plan:
    block: Any = ml.Model(name="block")
    block |= ml.Linear(8, name="up")(input="x", output="middle")
    block |= ml.Gelu()(input="middle", output="y")
    block.shard(inside)
    for _ in range(depth - 1):
        block = ml.Repeat(block, 2, name="inner")
    model = ml.Model()
    model |= ml.Repeat(block, 3, name="blocks")(input="x", output="y")
    model.shard(outside)
    backend = ml.NumpyBackend(ml.Mesh(data=4))
    return ml.compile(model, backend, shapes={"x": (8, 8)}, inference=True).plan


@pytest.mark.parametrize("name", ["x", "middle", "y"])
@pytest.mark.parametrize("depth", [1, 2])
def test_what_a_block_says_of_its_values_holds(name: str, depth: int) -> None:
    path = "blocks." + "inner." * (depth - 1) + name
    within = plan_with_rules({name: P("data")}, {}, depth)
    around = plan_with_rules({}, {path: P("data")}, depth)
    assert within.outputs[0].sharding.spec == P("data", None)
    assert within.collectives() == around.collectives()
    assert within.stages[0].program.outputs == around.stages[0].program.outputs


def test_the_model_around_a_block_has_the_last_word() -> None:
    plan = plan_with_rules({"middle": P("data")}, {"blocks.middle": P(None, "data")})
    assert plan.outputs[0].sharding.spec == P(None, "data")
