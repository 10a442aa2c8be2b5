"""What models, functions and single ops have alike: donation, what is kept at rest, and limits."""

from __future__ import annotations

from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P
from mithril.engine import Engine
from mithril.runtime.bindings import Bindings
from mithril.runtime.functional.arguments import Signature
from mithril.runtime.input_conversion import InputConverter

from tests.functional.backends import close, every_backend, floats, opened
from tests.profiles import quick

D, H, N = 8, 32, 64
X, Y = floats(N, D), floats(N, D, seed=1)
WEIGHTS = {"up": floats(D, H, seed=2) / 4, "down": floats(H, D, seed=3) / 8}


def line(count: int = 4) -> ml.Backend:
    return ml.NumpyBackend(ml.Mesh(data=count))


def mlp() -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(H, name="up", bias=False)(input="x", output="hidden")
    model += ml.Relu()(input="hidden", output="active")
    model += ml.Linear(D, name="down", bias=False)(input="active", output="y")
    return model


def loss(params: dict[str, Any], x: Any, y: Any) -> Any:
    hidden = mnp.maximum(x @ params["up"], 0.0)
    return mnp.mean((hidden @ params["down"] - y) ** 2)


def step(params: dict[str, Any], x: Any, y: Any) -> Any:
    value, slopes = ml.value_and_grad(loss)(params, x, y)
    return {name: params[name] - 0.5 * slopes[name] for name in params}, value


def rows(plan: Any) -> list[tuple[str, str, str]]:
    return [(row.kind, str(row.phase), row.cause.value) for row in plan.collectives()]


def batch(backend: ml.Backend) -> tuple[ml.Array, ml.Array]:
    return backend.array(X, sharding=P("data")), backend.array(Y, sharding=P("data"))


# ------------------------------------------------------------------ at rest


@quick(lambda name: name != "torch")
@every_backend
def test_a_function_keeps_its_arguments_at_rest(name: str) -> None:
    backend = opened(name, data=4)
    train = ml.jit(
        step, backend=backend, at_rest={"params.*": P("data")}, out_shardings=(P("data"), None)
    )
    params: Any = WEIGHTS
    expected, value = step_by_hand(WEIGHTS), None
    for _ in range(2):
        params, value = train(params, *batch(backend))
    assert train.recompiles == 1
    assert {x.sharding.spec for x in params.values()} == {P("data", None)}
    for key, x in expected.items():
        close(params[key], x)
    assert value is not None
    found = rows(train.plan(params, *batch(backend)))
    if name == "torch":  # so few bytes are gathered for less than they are exchanged over Gloo
        assert {kind for kind, *_ in found} == {"all_gather", "all_reduce"}
        return
    assert ("all_gather", "forward", "2 values") in found, "both travel together"
    assert ("all_gather", "backward", "params.down") in found, "fetched anew, not kept"
    assert ("reduce_scatter", "backward", "2 gradients") in found
    assert {kind for kind, *_ in found} == {"all_gather", "all_reduce", "reduce_scatter"}


def step_by_hand(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Two steps on one device."""
    train, params = ml.jit(step, backend=ml.NumpyBackend()), weights
    for _ in range(2):
        params, _ = train(params, X, Y)
    return {name: np.asarray(x) for name, x in params.items()}


def test_gradients_leave_as_the_argument_rests() -> None:
    slope = ml.jit(ml.grad(loss), backend=line(), at_rest={"up": P("data"), "d*": P(None, "data")})
    found = slope(WEIGHTS, *batch(line_of(slope)))
    assert found["up"].sharding.spec == P("data", None)
    assert found["down"].sharding.spec == P(None, "data")
    text = slope.explain(WEIGHTS, *batch(line_of(slope)), tensor="params.up")
    assert "decided by at_rest P('data') of function 'loss'" in text


def line_of(function: ml.Function) -> ml.Backend:
    backend = function._backend
    assert backend is not None
    return backend


def test_an_array_that_lies_otherwise_is_brought_to_rest() -> None:
    backend = line()
    mean = ml.jit(lambda w, x: mnp.mean(x @ w), at_rest={"w": P("data")}, donate="w")
    w, x = backend.array(WEIGHTS["up"], sharding=P(None, "data")), batch(backend)[0]
    close(mean(w, x), np.mean(X @ WEIGHTS["up"]))
    with pytest.raises(ml.BackendError, match="donated to function 'lambda' as 'w'"):
        w.numpy()
    w = backend.array(WEIGHTS["up"], sharding=P("data"))
    plan = mean.plan(ml.TensorSpec(w.shape), x)
    assert plan.inputs[0].sharding.spec == P("data", None)
    mean(w, x)
    assert mean.recompiles == 1


def test_what_rests_may_be_computed_with_otherwise() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2, tensor=2))
    w = WEIGHTS["up"]
    product = ml.jit(
        lambda w, x: x @ w,
        backend=backend,
        in_shardings=(P(None, "tensor"), P()),
        at_rest={"w": P(None, ("tensor", "data"))},
    )
    y = product(w, X)
    close(y, X @ w)
    assert y.sharding.spec == P(None, "tensor")
    plan = product.plan(w, X)
    assert plan.inputs[0].sharding.spec == P(None, ("tensor", "data"))
    assert [(row.kind, row.axes) for row in plan.collectives()] == [("all_gather", ("data",))]


def test_uneven_and_numbers_and_one_device() -> None:
    scale = ml.jit(lambda p, n: p["w"] * n, at_rest=P("data"), backend=line(3))
    close(scale({"w": np.ones(4, np.float32)}, 2.0), np.full(4, 2.0))
    close(ml.jit(lambda w: w + 1, at_rest=P("data"), backend=ml.NumpyBackend())(X), X + 1)


@every_backend
def test_an_op_gathers_what_rests(name: str) -> None:
    backend = opened(name, data=4)
    x = backend.array(X[:8])
    w = backend.array(WEIGHTS["up"], sharding=P(None, "data"))
    split, whole = backend.matmul(x, w), backend.matmul(x, w, at_rest={"y": P(None, "data")})
    assert (split.sharding.spec, whole.sharding.spec) == (P(None, "data"), P(None, None))
    close(split, X[:8] @ WEIGHTS["up"])
    close(whole, X[:8] @ WEIGHTS["up"])


@pytest.mark.parametrize(
    "at_rest", [P("data"), {"*": P("data")}, {"up.*": P("data"), "d*": P("data")}]
)
def test_compile_says_what_rests(at_rest: Any) -> None:
    said, told = mlp(), ml.compile(mlp(), line(), at_rest=at_rest)
    said.at_rest({"*": P("data")})
    plans = [
        model.plan_for({"x": ml.TensorSpec((N, D), sharding=P("data"))})
        for model in (told, ml.compile(said, line()))
    ]
    assert rows(plans[0]) == rows(plans[1])
    assert "all_gather" in {kind for kind, _, _ in rows(plans[0])}
    assert "decided by at_rest P('data') of compile()" in told.explain("up.weight")
    assert told.randomize_params()["up.weight"].sharding.spec == P("data", None)


def test_what_compile_says_comes_after_the_model() -> None:
    model = mlp()
    model.at_rest({"*": P(None, "data")})
    compiled = ml.compile(model, line(), at_rest={"up.*": P("data")}, shapes={"x": (N, D)})
    params = compiled.randomize_params()
    assert params["up.weight"].sharding.spec == P("data", None)
    assert params["down.weight"].sharding.spec == P(None, "data")
    alone = ml.compile(mlp(), ml.NumpyBackend(), at_rest=P("data"), shapes={"x": (N, D)})
    assert alone.plan.notes == ("annotations ignored, because the backend has one device: 2",)


# ------------------------------------------------------------------ donation


def evaluated(backend: ml.Backend, donate: Any, **options: Any) -> tuple[Any, ...]:
    compiled = ml.compile(mlp(), backend, donate=donate, **options)
    params, x, g = compiled.randomize_params(), backend.array(X), backend.ones(N, D)
    outputs, slopes = compiled.evaluate(params, {"x": x}, {"y": g})
    return params, x, g, outputs, slopes, compiled


def is_gone(x: ml.Array) -> bool:
    return repr(x).startswith("DonatedArray(")


@every_backend
def test_a_model_takes_what_it_is_given(name: str) -> None:
    backend = opened(name, data=4)
    params, x, g, outputs, slopes, compiled = evaluated(backend, "params")
    expected = ml.compile(mlp(), ml.NumpyBackend())
    kept = expected.randomize_params()
    whole, by_hand = expected.evaluate(kept, {"x": X}, {"y": np.ones((N, D), np.float32)})
    close(outputs["y"], whole["y"])
    for key, slope in by_hand.items():
        close(slopes[key], slope)
    assert all(map(is_gone, params.values())) and not is_gone(x) and not is_gone(g)
    text = r"donated to evaluate\(\) as 'up\.weight' and holds no values any more; use what was ret"
    with pytest.raises(ml.BackendError, match=text):
        compiled.evaluate(params, {"x": x}, {"y": g})
    compiled.evaluate(compiled.randomize_params(), {"x": x}, {"y": g})
    assert compiled.recompiles == 1


@pytest.mark.parametrize(
    ("donate", "gone"),
    [
        ((), ""),
        (0, "params"),
        (("inputs",), "x"),
        ((1, "output_gradients"), "x g"),
        ("up.*", "up.weight"),
        (["*.weight", 2], "params g"),
        ("x", "x"),
    ],
)
def test_what_a_model_gives_up_is_chosen(donate: Any, gone: str) -> None:
    params, x, g, *_ = evaluated(line(), donate)
    found = [name for name, array in {**params, "x": x, "g": g}.items() if is_gone(array)]
    assert found == gone.replace("params", "up.weight down.weight").split()


def test_the_engine_is_told_what_a_model_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    lower = Engine.lower_plan
    monkeypatch.setattr(
        Engine, "lower_plan", lambda self, plan, donate: seen.append(donate) or lower(self, plan)
    )
    evaluated(line(), ("params", "x"))
    assert seen == [[0, 1, 2]]


def test_donated_inputs_that_were_moved_are_gone_too() -> None:
    backend = line()
    _, x, *_ = evaluated(backend, "x", in_shardings=P("data"))
    assert is_gone(x) and x.sharding.spec == P("data")
    compiled = ml.compile(mlp(), backend, donate="x", in_shardings=P("data"))
    placed = backend.array(X, sharding=P())
    compiled.evaluate(compiled.randomize_params(), {"x": placed})
    assert is_gone(placed) and placed.sharding.is_replicated


def test_a_number_is_given_up_again_and_again() -> None:
    model = mlp()
    model += ml.MeanSquaredError()(input="y", target="t", output="loss")
    compiled = ml.compile(model, line(), donate="output_gradients")
    params, one = compiled.randomize_params(), 1.0
    slopes = [
        compiled.evaluate(params, {"x": X, "t": Y}, {"loss": one})[1]["up.weight"] for _ in range(3)
    ]
    close(slopes[2], slopes[0].numpy())


def test_one_array_at_two_places_is_not_given_up() -> None:
    compiled = ml.compile(two(), line(), donate="a")
    x = line_ones(compiled)
    with pytest.raises(
        ml.BackendError, match="donated as 'a' and also passed as 'b'; donate a copy"
    ):
        compiled.evaluate({}, {"a": x, "b": x})
    close(x, np.ones(4))


def two() -> ml.Model:
    model = ml.Model()
    model |= ml.Add()(inputs=["a", "b"], output="sum")
    return model


def line_ones(compiled: ml.CompiledModel) -> ml.Array:
    return compiled.backend.ones(4)


@every_backend
def test_an_op_takes_what_it_is_given(name: str) -> None:
    backend = opened(name, data=4)
    x, y = backend.array(X, sharding=P("data")), backend.array(Y, sharding=P("data"))
    close(backend.add(x, y, donate="x"), X + Y)
    assert is_gone(x) and not is_gone(y)
    with pytest.raises(ml.BackendError, match="was donated to function 'add' as 'x'"):
        backend.add(x, y)
    close(backend.concat([y, y[:2]], axis=0, donate=[0]), np.concatenate([Y, Y[:2]]))
    assert is_gone(y)


def test_an_op_told_the_same_is_planned_once() -> None:
    backend = line()
    for _ in range(3):
        close(backend.multiply(backend.ones(4), 2.0, donate=0), np.full(4, 2.0))
    assert len(backend.op_functions) == 1


# ------------------------------------------------------------------ how inputs of a model lie


@pytest.mark.parametrize("in_shardings", [P("data"), {"x": P("data")}])
def test_inputs_lie_as_compile_says(in_shardings: Any) -> None:
    backend = line()
    compiled = ml.compile(mlp(), backend, in_shardings=in_shardings, shapes={"x": (N, D)})
    assert compiled.plan.inputs[0].sharding.spec == P("data", None)
    params = compiled.randomize_params()
    expected = ml.compile(mlp(), ml.NumpyBackend())
    whole = expected.evaluate(expected.randomize_params(), {"x": X})["y"]
    for x in (X, X, backend.array(X), backend.array(X, sharding=P("data"))):
        y = compiled.evaluate(params, {"x": x})["y"]
        close(y, whole)
        assert y.sharding.spec == P("data", None)
    assert compiled.recompiles == 2  # with gradients for the shapes, and without
    plan = compiled.plan_for({"x": backend.array(X)}, gradients=False)
    assert plan.inputs[0].sharding.spec == P("data", None)


# ------------------------------------------------------------------ what a plan may do


def test_a_function_may_be_held_to_small_moves() -> None:
    backend = line()
    x = backend.array(X, sharding=P("data"))
    gather = ml.jit(lambda x: x + 1, out_shardings=P(), max_reshard_bytes=100)
    text = f"moves .* by all_gather over data.* {X.nbytes} bytes, more than max_reshard_bytes=100"
    with pytest.raises(ml.PlanError, match=text):
        gather(x)
    ml.jit(lambda x: x + 1, out_shardings=P(), max_reshard_bytes=X.nbytes)(x)
    resting = ml.jit(
        lambda w: w.sum(), at_rest={"w": P("data")}, max_reshard_bytes=0, backend=backend
    )
    close(resting(X), X.sum())


def test_a_function_may_refuse_uneven_parts() -> None:
    x = np.ones(6, np.float32)
    pad = ml.jit(lambda x: x + 1, backend=line(), in_shardings=P("data"))
    close(pad(x), x + 1)
    for options in (
        {"in_shardings": P("data")},
        {"at_rest": P("data")},
        {"out_shardings": P("data")},
    ):
        even = ml.jit(lambda x: x + 1, backend=line(), uneven="error", **options)
        with pytest.raises(ml.ShardingError, match=r"cannot split dimension 0 \(6\) of"):
            even(line_of(even).array(x))
    strict = ml.NumpyBackend(ml.Mesh(data=4), uneven="error")
    lax = ml.jit(lambda x: x + 1, backend=strict, uneven="pad", out_shardings=P("data"))
    close(lax(strict.array(x)), x + 1)


# ------------------------------------------------------------------ which call is which


def test_the_last_call_is_known_by_its_form_and_its_kinds() -> None:
    backend = line()
    x = backend.ones(4)
    double = ml.jit(lambda p: p["a"] * 2)
    double({"a": x})
    bindings: Bindings[Any, Any] = double._bindings
    form = bindings.last.form  # type: ignore[union-attr]
    assert bindings.of_last(form, [x]) is not None
    assert bindings.of_last(form, [backend.ones(5)]) is None
    assert bindings.of_last(form, [1.0]) is None
    assert bindings.of_last(form, [x, x]) is None
    assert bindings.of_last("another", [x]) is None
    assert len(bindings) == bindings.made == 1


def test_a_call_like_the_last_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = line()
    x, read = backend.ones(4), []
    add = ml.jit(lambda p, q: {"sum": p["a"] + q, "all": [p["a"], None]}, backend=backend)
    find = Signature.read

    def tell(self: Any, *given: Any) -> Any:
        read.append(given)
        return find(self, *given)

    monkeypatch.setattr(Signature, "read", tell)
    first = add({"a": x}, x)
    add({"a": x}, x)
    assert len(read) == 2
    again = add({"a": x * 3}, x)
    assert len(read) == 2  # it is written now
    close(first["sum"], np.full(4, 2.0))
    close(again["sum"], np.full(4, 4.0))
    close(again["all"][0], np.full(4, 3.0))
    others: list[tuple[Any, ...]] = [
        ({"a": x}, 2.0),
        ({"a": backend.ones(1)}, x),
        ({"a": np.ones(4)}, x),
    ]
    for count, other in enumerate(others, 3):
        close(add(*other)["sum"], np.asarray(other[0]["a"]) + np.asarray(other[1]))
        assert len(read) == count
    for wrong in (({"b": x}, x), ([x], x)):
        with pytest.raises((KeyError, TypeError)):
            add(*wrong)


def test_only_what_is_not_of_the_last_kinds_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = line()
    compiled = ml.compile(mlp(), backend, shapes={"x": X.shape})
    params, looked_at = compiled.randomize_params(), []
    convert = InputConverter.convert

    def tell(self: Any, x: object, what: str, name: str, spec: Any = None) -> Any:
        looked_at.append(name)
        return convert(self, x, what, name, spec)

    monkeypatch.setattr(InputConverter, "convert", tell)
    expected = compiled.evaluate(params, {"x": X})["y"].numpy()
    assert looked_at == ["x", "up.weight", "down.weight"]
    looked_at.clear()
    close(compiled.evaluate(params, {"x": X})["y"], expected)
    assert looked_at == ["x"]
    looked_at.clear()
    close(compiled.evaluate(params, {"x": backend.array(X)})["y"], expected)
    assert not looked_at  # it lies as the plan takes it
    looked_at.clear()
    others = dict(params) | {"up.weight": params["up.weight"].numpy()}
    close(compiled.evaluate(others, {"x": X})["y"], expected)
    assert looked_at == ["x", "up.weight"]
    other = ml.NumpyBackend(ml.Mesh(data=4)).array(params["up.weight"].numpy())
    with pytest.raises(ml.BackendError, match=r"parameter 'up\.weight'"):
        compiled.evaluate(dict(params) | {"up.weight": other}, {"x": X})


def test_parameters_without_a_size_are_never_taken_for_others() -> None:
    compiled = ml.compile(mlp(), line())
    first, second, third = (compiled.randomize_params(seed) for seed in range(3))
    outputs = [compiled.evaluate(p, {"x": X})["y"].numpy() for p in (first, second, third)]
    assert not np.allclose(outputs[0], outputs[1]) and not np.allclose(outputs[1], outputs[2])
    assert compiled.recompiles == 1
