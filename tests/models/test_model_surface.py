"""What a model says of itself and is asked for: inputs, outputs, parameters, and slips in names."""

from __future__ import annotations

import time

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.models.slips import is_slip

from tests.tolerances import TOLERANCE

X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
TARGET = np.zeros((4, 2), np.float32)


def regression() -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(8, name="up")(input="x", output="hidden")
    model += ml.Tanh()
    model += ml.Linear(2, name="down")(output="guess")
    model += ml.MeanSquaredError()(target="target", output="loss")
    return model


# ------------------------------------------------------------------ what a model says of itself


def test_a_model_and_its_compiled_form_list_their_names() -> None:
    model = regression()
    assert model.inputs == ("x", "target")
    assert model.outputs == ("loss",)
    assert model.parameters == ("up.weight", "up.bias", "down.weight", "down.bias")
    compiled = ml.compile(model, ml.NumpyBackend())
    assert compiled.inputs == model.inputs
    assert compiled.outputs == model.outputs
    assert compiled.parameters == model.parameters
    with pytest.raises(AttributeError):
        model.inputs = ("y",)
    empty = ml.Model()
    assert (empty.inputs, empty.outputs, empty.parameters) == ((), (), ())


def blocks(count: int) -> ml.Model:
    block = ml.Model()
    block |= ml.Add()(inputs=["x", "extra"], output="y")
    model = ml.Model()
    for index in range(count):
        model |= block(x=f"x{index}", y=f"x{index + 1}")
    return model


def test_names_of_free_inputs_stay_when_siblings_are_added() -> None:
    assert blocks(1).inputs == ("x0", "extra")
    assert blocks(2).inputs == ("x0", "extra", "model_1.extra")
    assert blocks(3).inputs == (*blocks(2).inputs, "model_2.extra")
    model, before = ml.Model(), ()
    for _ in range(4):
        model |= ml.Linear(3)
        assert model.inputs[: len(before)] == before
        before = model.inputs
    assert before == ("input", "linear_1.input", "linear_2.input", "linear_3.input")


def test_the_first_of_several_inputs_is_meant_by_its_name() -> None:
    model = blocks(2)
    model |= ml.Relu()(input="extra", output="seen")
    assert model.inputs == ("x0", "extra", "model_1.extra")
    compiled = ml.compile(model, ml.NumpyBackend())
    given = {"x0": X, "extra": -X, "model_1.extra": X}
    outputs = compiled.evaluate({}, given)
    np.testing.assert_array_equal(outputs["seen"].numpy(), np.maximum(-X, 0))
    np.testing.assert_array_equal(outputs["x2"].numpy(), X - X + X)


def test_an_input_that_is_fed_gives_its_name_to_the_next() -> None:
    model = blocks(2)
    model.connect(source="x0", destination="extra")
    assert model.inputs == ("x0", "extra")
    model.connect(source="x0", destination="extra")
    assert model.inputs == ("x0",)


# ------------------------------------------------------------------ outputs


@pytest.mark.parametrize("mesh", [None, ml.Mesh(data=2, tensor=2)], ids=str)
def test_a_value_that_is_read_may_be_an_output_too(mesh: ml.Mesh | None) -> None:
    model = regression()
    model.output("guess", "hidden")
    assert model.outputs == ("hidden", "guess", "loss")
    if mesh:
        model.shard({"up.weight": P("tensor", None)})
    compiled = ml.compile(model, ml.NumpyBackend(mesh))
    params = compiled.randomize_params()
    outputs, gradients = compiled.evaluate(params, {"x": X, "target": TARGET}, {"loss": 1.0})
    w = {name: x.numpy() for name, x in params.items()}
    hidden = X @ w["up.weight"].T + w["up.bias"]
    guess = np.tanh(hidden) @ w["down.weight"].T + w["down.bias"]
    np.testing.assert_allclose(outputs["hidden"].numpy(), hidden, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs["guess"].numpy(), guess, rtol=1e-5, atol=1e-6)
    both = {"loss": 0.0, "guess": np.ones((4, 2), np.float32)}
    _, of_guess = compiled.evaluate(params, {"x": X, "target": TARGET}, both)
    np.testing.assert_allclose(of_guess["down.bias"].numpy(), [4, 4], rtol=1e-5)
    assert set(gradients) == set(params)


def test_an_unnamed_output_keeps_the_name_by_which_it_was_asked_for() -> None:
    model = ml.Model()
    model += ml.Linear(4)
    model.output("output")
    model.output("linear_0.output")  # the same once more
    model += ml.Relu()
    assert model.outputs == ("output", "relu_0.output")
    model.output("relu_0")
    with pytest.raises(
        ml.GraphError,
        match=r"connection 'output' is what model.output shows 'linear_0.output' as and cannot also",
    ):
        model += ml.Tanh()(output="output")
    full = ml.Model()
    full += ml.Linear(4)
    full += ml.Relu()
    full.output("linear_0.output")
    assert full.outputs == ("linear_0.output", "output")


def test_outputs_of_a_nested_model_are_those_it_names() -> None:
    inner = ml.Model(name="block")
    inner |= ml.Linear(6)(input="x", output="seen")
    inner += ml.Relu()(output="y")
    inner.output("seen")
    model = ml.Model()
    model |= inner(x="x", y="h")
    model += ml.Tanh()(input="h", output="z")
    assert model.outputs == ("seen", "z")
    compiled = ml.compile(model, ml.NumpyBackend())
    outputs = compiled.evaluate(compiled.randomize_params(), {"x": X})
    expected = np.tanh(np.maximum(outputs["seen"].numpy(), 0))
    np.testing.assert_allclose(outputs["z"].numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("mesh", [None, ml.Mesh(data=2)], ids=str)
def test_compile_takes_the_outputs_that_are_wanted_and_leaves_the_rest_out(
    mesh: ml.Mesh | None,
) -> None:
    model = regression()
    backend = ml.NumpyBackend(mesh)
    whole = ml.compile(model, backend)
    params = whole.randomize_params(4)
    only = ml.compile(model, backend, outputs=["guess"])
    assert (only.inputs, only.outputs, only.parameters) == (("x",), ("guess",), model.parameters)
    guess = only.evaluate(params, {"x": X})["guess"].numpy()
    loss = whole.evaluate(params, {"x": X, "target": TARGET})["loss"].numpy()
    np.testing.assert_allclose((guess**2).mean(), loss, rtol=1e-5)
    ordered = ml.compile(model, backend, outputs=["loss", "hidden"])
    assert list(ordered.evaluate(params, {"x": X, "target": TARGET})) == ["loss", "hidden"]
    early = ml.compile(model, backend, outputs=["up"])
    assert early.parameters == ("up.weight", "up.bias")
    assert early.outputs == ("up",)


def test_rules_for_what_is_left_out_are_no_mistake_but_wrong_ones_are() -> None:
    model = regression()
    model.shard({"down.weight": P(None, "tensor"), "up.*": P("tensor")})
    model.freeze("down.*")
    model.initialize({"down.bias": ml.Zeros()})
    model.at_rest({"down.*": P("tensor")})
    backend = ml.NumpyBackend(ml.Mesh(tensor=2))
    compiled = ml.compile(model, backend, outputs=["hidden"], shapes={"x": (4, 6)})
    assert compiled.trainable == ("up.weight", "up.bias")
    assert compiled.randomize_params()["up.weight"].sharding.spec == P("tensor", None)
    model.freeze("dwon.*")
    with pytest.raises(ml.GraphError, match=r"'dwon\.\*' of model.freeze"):
        ml.compile(model, backend, outputs=["hidden"])


def test_inputs_keep_their_names_when_others_are_left_out() -> None:
    model = ml.Model()
    model |= ml.Relu()(output="a")
    model |= ml.Tanh()(output="b")
    assert model.inputs == ("input", "tanh_0.input")
    compiled = ml.compile(model, ml.NumpyBackend(), outputs=["b"])
    assert compiled.inputs == ("tanh_0.input",)
    outputs = compiled.evaluate({}, {"tanh_0.input": X})
    np.testing.assert_allclose(outputs["b"].numpy(), np.tanh(X), rtol=1e-5)


def test_outputs_of_a_lone_layer_and_of_a_pipeline() -> None:
    assert ml.compile(ml.Linear(3), ml.NumpyBackend(), outputs=["output"]).outputs == ("output",)
    with pytest.raises(ml.GraphError, match=r"has no output 'outptu'; outputs: .* mean 'output'"):
        ml.compile(ml.Linear(3), ml.NumpyBackend(), outputs=["outptu"])
    with pytest.raises(
        ml.OptionError, match=r"leaves out outputs of MoE\(.*; add the layer to a Model to choose"
    ):
        ml.compile(ml.MoE(4, 8), ml.NumpyBackend(), outputs=["output"])
    model = ml.Model()
    model |= ml.Pipeline([ml.Linear(8), ml.Linear(2)], microbatch_size=2)(input="x", output="y")
    model += ml.MeanSquaredError()(target="target", output="loss")
    compiled = ml.compile(model, ml.NumpyBackend(ml.Mesh(pipeline=2)), outputs=["y"])
    assert compiled.inputs == ("x",)
    found = compiled.evaluate(compiled.randomize_params(), {"x": X})["y"]
    assert found.shape == (4, 2)


@pytest.mark.parametrize("mesh", [{}, {"pipeline": 2}, {"pipeline": 2, "data": 2}], ids=str)
@pytest.mark.parametrize("kind", ["Pipeline", "stage", "Repeat in stages"])
def test_outputs_of_an_early_stage_leave_later_ones_idle(kind: str, mesh: dict[str, int]) -> None:
    model: ml.Model
    if kind == "Pipeline":
        model = ml.Pipeline([ml.Linear(4, name="up"), ml.Linear(4)])
    else:
        model = ml.Model()
        model |= ml.Linear(4, name="up")(input="input", output="stage_0")
        model += ml.Repeat(ml.Linear(4), 2, name="rest") if "Repeat" in kind else ml.Linear(4)
        model.stage("up", 0)
        model.stage("rest" if "Repeat" in kind else "linear_0", (0, 1) if "Repeat" in kind else 1)
    early = "stage_0"
    compiled = ml.compile(model, ml.NumpyBackend(ml.Mesh(**mesh)), outputs=[early])
    params = compiled.randomize_params(seed=1)
    outputs, gradients = compiled.evaluate(params, {"input": X}, output_gradients={early: X[:, :4]})
    weight, bias = (params[name].numpy() for name in compiled.parameters[:2])
    np.testing.assert_allclose(outputs[early].numpy(), X @ weight.T + bias, *TOLERANCE["float32"])
    np.testing.assert_allclose(
        gradients[compiled.parameters[0]].numpy(), X[:, :4].T @ X, *TOLERANCE["float32"]
    )
    assert list(compiled.shardings) == list(compiled.parameters) == list(params)
    assert all(not gradients[name].numpy().any() for name in compiled.parameters[2:])


@pytest.mark.parametrize(
    ("ask", "error", "text"),
    [
        (lambda m: m.output("gues"), ml.GraphError, "output 'gues' is not a connection of the .*'guess'"),
        (lambda m: m.output("x"), ml.GraphError, "output 'x' is an input of the model and no layer"),
        (lambda m: m.output(3), ml.GraphError, "output is 3; give a name"),
        (lambda m: compiled(m, ["hiden"]), ml.GraphError, "did you mean 'hidden'?"),
        (lambda m: compiled(m, ["x"]), ml.GraphError, "'x' is an input of the model"),
        (lambda m: compiled(m, ["up", "hidden"]), ml.GraphError, r"outputs=\['up', 'hidden'\] names one value twice"),
        (lambda m: compiled(m, "loss"), ml.OptionError, "outputs='loss' is no list of outputs"),
        (lambda m: compiled(m, []), ml.OptionError, r"outputs=\[\] is no list of outputs; give"),
    ],
)  # fmt: skip
def test_outputs_that_cannot_be_are_refused(ask, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ask(regression())


def compiled(model: ml.Model, outputs: object) -> ml.CompiledModel:
    return ml.compile(model, ml.NumpyBackend(), outputs=outputs)


# ------------------------------------------------------------------ slips


def slipped() -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(4, name="up")(input="x", output="hidden")
    model |= ml.Linear(4, name="other")(input="x", output="hiding")
    model |= ml.Relu(name="act")(input="hiden", output="y")
    return model


MEANT = (
    r"'act' \(test_model_surface.py:\d+\) reads it and no layer makes it; give it, or connect it; "
    r"did you mean 'hidden', which 'up' \(test_model_surface.py:\d+\) makes and nobody reads\?"
)


@pytest.mark.parametrize("wrap", [False, True])
def test_a_wire_one_letter_off_an_unread_output_is_named(wrap: bool) -> None:
    model = slipped()
    if wrap:
        model = ml.Model()
        model += slipped()
    meant = (
        MEANT.replace("'act'", "'model_0.act'").replace("'up'", "'model_0.up'") if wrap else MEANT
    )
    backend = ml.NumpyBackend()
    with pytest.raises(
        ml.GraphError, match="input 'hiden' is missing; inputs: 'x', 'hiden'; " + meant
    ):
        ml.compile(model, backend, shapes={"x": (4, 6)})
    lazy = ml.compile(model, backend)
    with pytest.raises(ml.GraphError, match="input 'hiden' is missing; .*; " + meant):
        lazy.evaluate(lazy.randomize_params(), {"x": X})
    with pytest.raises(ml.GraphError, match="needs input 'hiden'; " + meant):
        model.summary({"x": (4, 6)})


def test_statistics_that_are_left_out_are_told_from_other_inputs() -> None:
    model = ml.Model()
    model |= ml.BatchNorm(name="norm")(input="x", output="y")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"x": (4, 6)})
    with pytest.raises(
        ml.GraphError,
        match=r"'norm' \(.*\) keeps it from step to step, a running statistic that begins with 0\.0; "
        r"give its values, or its shape where shapes are asked for",
    ):
        compiled.evaluate(compiled.randomize_params(), {"x": X})


def test_an_input_that_is_left_out_names_who_reads_it() -> None:
    lazy = ml.compile(regression(), ml.NumpyBackend())
    with pytest.raises(
        ml.GraphError,
        match=r"input 'target' is missing; .*; 'mean_squared_error_0' \(.*\) reads it and no layer",
    ):
        lazy.evaluate(lazy.randomize_params(), {"x": X})


def test_slips_are_one_letter() -> None:
    for other in ("hiden", "hiddenn", "hidfen", "hiddne", "idden", "hidde"):
        assert is_slip("hidden", other), other
        assert is_slip(other, "hidden"), other
    for other in ("hidden", "hide", "hddie", "hiedn", "hiddenxy", "output"):
        assert not is_slip("hidden", other), other


# ------------------------------------------------------------------ large models


def seconds(count: int) -> float:
    best = []
    for _ in range(3):
        start = time.process_time()
        model = ml.Model()
        for _ in range(count):
            model += ml.Relu()
        best.append(time.process_time() - start)
    assert model.inputs == ("input",)
    return min(best)


def test_adding_layers_costs_the_same_however_many_there_are() -> None:
    seconds(50)
    # four times the layers: 4 times the time if linear, 16 if quadratic
    assert seconds(1600) < 8 * seconds(400)


def test_a_model_wired_backwards_or_by_connect_is_the_same() -> None:
    forward, backward, connected = ml.Model(), ml.Model(), ml.Model()
    for i in range(300):
        forward |= ml.Relu(name=f"r{i}")(input=f"h{i}", output=f"h{i + 1}")
    for i in reversed(range(300)):
        backward |= ml.Relu(name=f"r{i}")(input=f"h{i}", output=f"h{i + 1}")
    for i in range(300):
        connected |= ml.Relu(name=f"r{i}")
        if i:
            connected.connect(source=f"r{i - 1}.output", destination=f"r{i}.input")
    for model in (forward, backward, connected):
        order = [member.name for member in model.snapshot().order]
        assert order == [f"r{i}" for i in range(300)]
        assert len(model.inputs) == len(model.outputs) == 1
    with pytest.raises(ml.GraphError, match="connections form a cycle"):
        backward |= ml.Relu()(input="h300", output="h0")


# ------------------------------------------------------------------ names of the package


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("ReLU", "did you mean 'Relu'?"),
        ("GELU", "did you mean 'Gelu'?"),
        ("linear", "did you mean 'Linear'?"),
        ("CrossEntropyLoss", "did you mean 'CrossEntropy'?"),
        ("value_and_gradient", "did you mean 'value_and_grad'?"),
        ("quux_quux", "dir(mithril) lists what there is"),
    ],
)
def test_an_unknown_name_of_the_package_gets_the_nearest(name: str, remedy: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(ml, name)
    assert str(caught.value) == f"mithril has no '{name}'; {remedy}"
