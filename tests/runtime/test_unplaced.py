"""Arrays that nobody placed go where annotations and plans want them; placed ones bind."""

from __future__ import annotations

import re
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P
from mithril.runtime.planner import NOTHING
from mithril.runtime.unplaced import HostArray

from tests.runtime.loaded import (
    INPUTS,
    SEED,
    WEIGHTS,
    X,
    Y,
    check_loaded,
    megatron,
    parts,
    staged,
    train,
)
from tests.tolerances import TOLERANCE

GRID = ml.Mesh(data=2, tensor=2)


def grid() -> ml.Backend:
    return ml.NumpyBackend(GRID)


def close(found: Any, expected: Any) -> None:
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=rtol, atol=atol)


def batch(backend: ml.Backend) -> dict[str, ml.Array]:
    return {name: backend.array(x, sharding=P("data")) for name, x in INPUTS.items()}


# ------------------------------------------------------------------ who is placed


@pytest.mark.parametrize(
    ("make", "placed"),
    [
        (lambda b: b.array(X), False),
        (lambda b: b.array(X, sharding=None), False),
        (lambda b: b.array([1.0, 2.0]), False),
        (lambda b: b.ones(4), False),
        (lambda b: b.randn(4, 4), False),
        (lambda b: b.arange(4), False),
        (lambda b: b.array(X, sharding=P()), True),
        (lambda b: b.ones(4, device_mesh=(2, 1)), True),
        (lambda b: b.ones(4, 4, tensor_split=(0, None)), True),
        (lambda b: b.from_local_shards([[1.0]] * 4), True),
        (lambda b: b.ones_like(b.ones(4)), False),
        (lambda b: b.ones_like(b.ones(4, sharding=P("data"))), True),
        (lambda b: b.reshard(b.ones(4), P()), True),
        (lambda b: ml.reshard(b.ones(4), P("data")), True),
        (lambda b: ml.constrain(b.ones(4), P("data")), True),
        (lambda b: b.ones(4) + 1, False),
        (lambda b: b.ones(4) + b.ones(4, sharding=P("data")), True),
        (lambda b: next(iter(b.ones(4, 2))), False),
        (lambda b: next(iter(b.ones(4, 2, sharding=P("data")))), True),
        (lambda b: ml.jit(lambda x: x * 2)(b.ones(4)), False),
        (lambda b: ml.jit(lambda x: x * 2, in_shardings=P("data"))(b.ones(4)), True),
        (lambda b: ml.jit(lambda x: x * 2, out_shardings=P())(b.ones(4)), True),
        (lambda b: ml.jit(lambda x: ml.constrain(x, P("data")))(b.ones(4)), True),
        (lambda b: ml.jit(lambda x, y: x * y)(b.ones(4), b.ones(4, sharding=P())), True),
    ],
)
def test_an_array_is_placed_if_somebody_said_how_it_lies(make: Any, placed: bool) -> None:
    assert make(grid()).is_placed is placed


def test_on_one_device_there_is_nothing_to_say() -> None:
    backend = ml.NumpyBackend()
    assert not backend.array(X, sharding=P()).is_placed
    double = ml.jit(lambda x: x * 2)
    double(double(backend.array(X)))
    double(backend.array(X, sharding=P()))
    assert double.recompiles == 1


# ------------------------------------------------------------------ models


@pytest.mark.parametrize("at_rest", [False, True], ids=["computed", "at rest"])
@pytest.mark.parametrize("placed", [True, False], ids=["split batch", "NumPy batch"])
def test_loaded_parameters_lie_as_annotated(at_rest: bool, placed: bool) -> None:
    backend = grid()
    check_loaded(backend, megatron(at_rest), batch(backend) if placed else INPUTS)


@pytest.mark.parametrize("microbatch", [None, 2])
def test_loaded_parameters_of_a_pipeline_lie_on_their_stages(microbatch: int | None) -> None:
    options = ml.PipelineOptions(microbatch_size=microbatch, axis="pipeline")
    backend = ml.NumpyBackend(ml.Mesh(data=2, pipeline=2))
    given = options if microbatch else ml.PipelineOptions(axis="pipeline")
    inputs = {"x": X, "t": Y}
    check_loaded(backend, staged(), inputs, pipeline=given)
    compiled = ml.compile(staged(), backend, shapes=inputs, pipeline=given)
    sent = [row.cause.value for row in compiled.plan.collectives() if row.kind == "send"]
    assert len(sent) == 2, sent


def test_values_of_the_host_are_never_whole_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, put = grid(), []
    compiled = ml.compile(megatron(), backend, shapes=batch(backend))
    values = {name: x.numpy() for name, x in compiled.randomize_params().items()}
    real = type(backend.engine).put
    monkeypatch.setattr(
        type(backend.engine),
        "put",
        lambda self, type, sharding, produce: (
            put.append((type.shape, sharding.spec)) or real(self, type, sharding, produce)
        ),
    )
    compiled.evaluate(values, batch(backend), SEED)
    assert [item for item in put if item[0] == (32, 16)] == [((32, 16), P("tensor", None))]
    put.clear()
    compiled.place(values)
    assert [item for item in put if item[0] == (32, 16)] == [((32, 16), P("tensor", None))]


def test_a_numpy_batch_goes_where_an_annotation_wants_it() -> None:
    model = megatron()
    model.shard({"x": P("data")})
    compiled = ml.compile(model, grid(), shapes={"x": X.shape, "t": Y.shape})
    ports = {port.name: port.sharding.spec for port in compiled.plan.inputs}
    assert ports["x"] == ports["t"] == P("data")


def test_without_annotations_everything_is_whole() -> None:
    model = ml.Model()
    model |= ml.Linear(4, name="l")(input="x", output="y")
    compiled = ml.compile(model, grid(), shapes={"x": X})
    params = compiled.randomize_params()
    outputs, gradients = compiled.evaluate(params, {"x": X}, {"y": np.ones((8, 4), np.float32)})
    assert not compiled.plan.collectives()
    for x in (*params.values(), *outputs.values(), *gradients.values()):
        assert x.sharding.is_replicated and not x.is_placed


def test_what_was_passed_before_changes_nothing() -> None:
    backend, fresh = grid(), ml.compile(megatron(), grid(), shapes=batch(grid()))
    compiled = ml.compile(megatron(), backend)
    values = {name: x.numpy() for name, x in fresh.randomize_params(5).items()}
    whole = {name: backend.array(x, sharding=P()) for name, x in values.items()}
    gradients, _ = train(compiled, whole, batch(backend))
    assert all(x.sharding.is_replicated for x in gradients.values())
    assert compiled.shardings == fresh.shardings
    params = compiled.randomize_params(5)
    assert {n: x.sharding for n, x in params.items()} == fresh.shardings
    assert {n: x.sharding for n, x in compiled.get_parameters().items()} == fresh.shardings
    found, _ = train(compiled, values, batch(backend))
    assert {n: x.sharding for n, x in found.items()} == fresh.shardings


def test_other_plans_take_parameters_from_where_the_first_one_has_them() -> None:
    """Training and inference in turn, of a loaded dict: nothing is moved to and fro."""
    backend = grid()
    compiled = ml.compile(megatron(), backend, shapes=batch(backend))
    params = {n: backend.array(x.numpy()) for n, x in compiled.randomize_params().items()}
    for _ in range(2):
        compiled.evaluate(params, batch(backend), SEED)
        held = [x.shards for x in params.values()]
        compiled.evaluate(params, {"x": X[:4], "t": Y[:4]})
        assert [x.shards for x in params.values()] == held
    assert compiled.recompiles == 2


def test_a_step_on_loaded_parameters_keeps_the_plan() -> None:
    backend = grid()
    compiled = ml.compile(megatron(), backend, shapes=batch(backend))
    params: dict[str, Any] = {n: x.numpy() for n, x in compiled.randomize_params().items()}
    for _ in range(3):
        gradients, _ = train(compiled, params, batch(backend))
        params = {name: params[name] - 0.1 * g for name, g in gradients.items()}
    assert compiled.recompiles == 1
    assert params["up.weight"].sharding.spec == WEIGHTS["up.weight"]


def test_the_next_call_is_recognised_at_once() -> None:
    backend = grid()
    compiled = ml.compile(megatron(), backend)
    inputs = {name: backend.array(x) for name, x in INPUTS.items()}
    params = {n: backend.array(x) for n, x in values_of(compiled, inputs).items()}
    compiled.evaluate(params, inputs)
    arrays = [*inputs.values(), *params.values()]
    assert compiled._planner.bindings.of_last((None, NOTHING), arrays) is not None


def values_of(compiled: ml.CompiledModel, inputs: Any) -> dict[str, np.ndarray]:
    compiled.plan_for(inputs)
    return {name: x.numpy() for name, x in compiled.randomize_params().items()}


def test_a_placed_array_beats_the_annotation_and_a_note_says_so() -> None:
    backend = grid()
    compiled = ml.compile(megatron(), backend, shapes=batch(backend))
    assert not compiled.plan.notes
    params = compiled.randomize_params()
    params["up.weight"] = backend.reshard(params["up.weight"], P())
    gradients, _ = train(compiled, params, batch(backend))
    assert gradients["up.weight"].sharding.is_replicated
    text = (
        r"parameter 'up.weight' was placed as P\(None, None\) and stays so, against the annotation "
        r"P\('tensor', None\).*loaded\.py:\d+"
    )
    (note,) = [note for note in compiled.plan.notes if "placed" in note]
    assert re.search(text, note)
    assert f"note: {note}" in compiled.explain()


def test_a_note_names_what_was_to_rest() -> None:
    backend = grid()
    compiled = ml.compile(megatron(at_rest=True), backend, shapes=batch(backend))
    params = compiled.randomize_params()
    params["down.bias"] = backend.array(params["down.bias"].numpy(), sharding=P())
    train(compiled, params, batch(backend))
    text = "'down.bias' was placed as P(None) and stays so, against at_rest P('data')"
    assert any(text in note for note in compiled.plan.notes)


def test_one_array_in_two_places_that_want_it_otherwise() -> None:
    model = ml.Model()
    model |= ml.Linear(16, name="l", bias=False)(input="x", output="y")
    model |= ml.Multiply()(inputs=["y", "t"], output="z")
    backend = grid()
    compiled = ml.compile(model, backend, in_shardings={"x": P(None, "tensor"), "t": P("data")})
    x = backend.array(X)
    params = compiled.randomize_params()
    for _ in range(2):
        z = compiled.evaluate(params, {"x": x, "t": x})["z"]
        close(z, X @ params["l.weight"].numpy().T * X)
    assert compiled.recompiles == 1 and x.sharding.is_replicated


def test_an_unplaced_array_is_moved_for_in_shardings_once() -> None:
    backend = grid()
    compiled = ml.compile(megatron(), backend, in_shardings=P("data"))
    inputs = {name: backend.array(x) for name, x in INPUTS.items()}
    params = compiled.randomize_params()
    compiled.evaluate(params, inputs)
    held = [x.shards for x in inputs.values()]
    assert [x.sharding.spec for x in inputs.values()] == [P("data")] * 2
    compiled.evaluate(params, inputs)
    compiled.evaluate(params, INPUTS)
    compiled.evaluate(params, batch(backend))
    assert [x.shards for x in inputs.values()] == held
    assert compiled.recompiles == 1


@pytest.mark.parametrize("form", ["NumPy", "arrays"])
def test_unplaced_arrays_may_be_given_up(form: str) -> None:
    backend = grid()
    compiled = ml.compile(megatron(), backend, shapes=batch(backend), donate="params")
    values = {name: x.numpy() for name, x in compiled.randomize_params().items()}
    expected, _ = train(compiled, compiled.randomize_params(), batch(backend))
    params = values if form == "NumPy" else {n: backend.array(x) for n, x in values.items()}
    found, _ = train(compiled, params, batch(backend))
    for name, gradient in expected.items():
        close(found[name], gradient.numpy())
    if form == "arrays":
        with pytest.raises(ml.BackendError, match=r"donated to evaluate\(\) as 'up\.weight'"):
            params["up.weight"].numpy()


# ------------------------------------------------------------------ shapes, and the first call


def test_shapes_plan_what_the_first_evaluation_runs() -> None:
    backend = grid()
    compiled = ml.compile(megatron(), backend, shapes=batch(backend))
    train(compiled, compiled.randomize_params(), batch(backend))
    assert compiled.recompiles == 1
    model = ml.Linear(4)
    compiled = ml.compile(model, backend, shapes={"input": X})
    compiled.evaluate(compiled.randomize_params(), {"input": X}, {"output": np.ones((8, 4))})
    assert compiled.recompiles == 1


def test_experts_in_micro_batches_are_planned_from_the_loss() -> None:
    model = ml.Model()
    model |= ml.Linear(8, name="first")(input="x", output="h")
    model |= ml.MoE(num_experts=2, expert_dim=8, name="moe")(input="h", output="y")
    model |= ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    for layer, stage in (("first", 0), ("moe", 1), ("end", 1)):
        model.stage(layer, stage)
    options = ml.PipelineOptions(microbatch_size=4, axis="pipeline")
    inputs = {"x": X[:, :8], "t": Y[:, :8]}
    backend = ml.NumpyBackend(ml.Mesh(pipeline=2))
    compiled = ml.compile(model, backend, shapes=inputs, pipeline=options)
    compiled.evaluate(compiled.randomize_params(), inputs, SEED)
    assert compiled.recompiles == 1


# ------------------------------------------------------------------ shardings and place


def test_shardings_are_known_before_anything_runs() -> None:
    compiled = ml.compile(megatron(), grid(), shapes=batch(grid()))
    assert {name: s.spec for name, s in compiled.shardings.items()} == {
        **WEIGHTS,
        "down.bias": P(),
    }
    text = "shardings of the parameters are not known before the shapes; evaluate once, or pass sha"
    for ask in (lambda c: c.shardings, lambda c: c.place({})):
        with pytest.raises(ml.PlanError, match=text):
            ask(ml.compile(megatron(), grid()))


def test_parameters_are_placed_from_anywhere() -> None:
    backend = grid()
    compiled = ml.compile(megatron(), backend, shapes=batch(backend))
    other = ml.NumpyBackend().array(np.ones((32, 16), np.float32))
    params = compiled.place(
        {
            "up.weight": other,
            "down.weight": backend.ones(16, 32, sharding=P("data")),
            "down.bias": [0.5] * 16,
        }
    )
    assert {name: x.sharding for name, x in params.items()} == compiled.shardings
    assert all(x.is_placed and x.dtype == "float32" for x in params.values())
    assert parts(params["up.weight"]) == [(16, 16)] * 4


def test_everything_that_does_not_fit_is_named_at_once() -> None:
    compiled = ml.compile(megatron(), grid(), shapes=batch(grid()))
    text = (
        r"arrays given to place\(\) do not fit the model; unknown: 'up\.wieght'; did you mean "
        r"'up\.weight'\?; missing: 'up\.weight'; 'down\.weight' is float32\[2, 2\] and must be "
        r"float32\[16, 32\]; 'down\.bias' is int64\[16\] and must be float32\[16\]; give one array"
    )
    given = {
        "up.wieght": X,
        "down.weight": np.ones((2, 2), np.float32),
        "down.bias": np.zeros(16, np.int64),
    }
    with pytest.raises(ml.GraphError, match=text):
        compiled.place(given)
    with pytest.raises(ml.GraphError, match=r"place\(\) takes a mapping of parameter names to arr"):
        compiled.place([X])


def test_parameters_may_hold_values_of_numpy() -> None:
    backend = grid()
    compiled = ml.compile(megatron(), backend, shapes=batch(backend))
    params = compiled.randomize_params()
    params.update({name: x.numpy() for name, x in params.items()})
    assert "up.weight: float32[32, 16], not on devices yet" in repr(params)
    train(compiled, params, batch(backend))
    assert {name: x.sharding for name, x in params.items()} == compiled.shardings
    assert all(type(x) is ml.Array for x in params.values())


# ------------------------------------------------------------------ functions


def test_a_function_takes_what_nobody_placed_to_where_it_computes() -> None:
    backend = grid()
    multiply = ml.jit(lambda x, w: x @ w)
    w = backend.array(Y.T)
    x = backend.array(X, sharding=P("data", "tensor"))
    close(multiply(x, w), X @ Y.T)
    assert w.sharding.spec == P("tensor", None) and not w.is_placed
    assert parts(w) == [(8, 8)] * 4
    close(multiply(x, w), X @ Y.T)
    close(multiply(x, Y.T), X @ Y.T)
    assert multiply.recompiles == 1


def test_a_training_function_keeps_its_plan() -> None:
    backend = grid()

    @ml.jit
    def step(w: Any, x: Any) -> Any:
        loss, slope = ml.value_and_grad(lambda w: mnp.mean((x @ w) ** 2))(w)
        return w - 0.1 * slope, loss

    w: Any = Y.T
    expected = Y.T.astype(np.float64)
    for _ in range(3):
        w, _ = step(w, backend.array(X, sharding=P("data")))
        expected = expected - 0.1 * 2 * X.T @ (X @ expected) / 64
    close(w, expected)
    assert step.recompiles == 1


def test_a_captured_array_that_another_plan_has_moved() -> None:
    backend = grid()
    c = backend.array(X[0])
    scale = ml.jit(lambda x: x * c)
    x = backend.array(X, sharding=P(None, "tensor"))
    close(scale(x), X * X[0])
    assert c.sharding.spec == P("tensor")
    whole = ml.jit(lambda c: c * 2, in_shardings=P("data"))
    close(whole(c), X[0] * 2)
    assert c.sharding.spec == P("data")
    close(scale(x), X * X[0])


def test_at_rest_of_a_function_holds_for_unplaced_arrays() -> None:
    backend = grid()
    mean = ml.jit(lambda w, x: mnp.mean(x @ w), at_rest={"w": P("data")})
    x, w = backend.array(X, sharding=P("data")), backend.array(Y.T)
    close(mean(w, x), np.mean(X @ Y.T))
    assert w.sharding.spec == P("data", None)
    close(mean(Y.T, x), np.mean(X @ Y.T))
    assert mean.recompiles == 1


def test_values_that_wait_on_the_host_change_their_dtype_there() -> None:
    backend = grid()
    x = HostArray(backend, backend.array(X).type, X).astype("bfloat16")
    assert isinstance(x, HostArray) and x.dtype == "bfloat16" and x.shards.dtype.itemsize == 2
