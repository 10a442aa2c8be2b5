"""What makes warm calls cheap, and what it must not change."""

from __future__ import annotations

import contextvars
import gc
import weakref
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.engine import float_errors
from mithril.runtime import call, evaluation
from mithril.runtime.written_evaluation import write_evaluation
from mithril.types import DType


def line() -> ml.Backend:
    return ml.NumpyBackend(ml.Mesh(data=2))


def linear(backend: ml.Backend, **options: Any) -> ml.CompiledModel:
    model = ml.Model()
    model |= ml.Linear(2, name="l")(input="x", output="y")
    return ml.compile(model, backend, shapes={"x": (4, 3)}, **options)


# ------------------------------------------------------------------ numbers


def test_a_number_is_on_the_devices_once() -> None:
    backend = line()
    two = backend.constant(2.0, DType.float32)
    assert backend.constant(2.0, DType.float32) is two
    assert backend.constant(2.0, DType.float16) is not two
    assert not two.is_placed


def test_numbers_that_are_equal_and_differ_are_kept_apart() -> None:
    backend = line()
    x = backend.array([1.0, 1.0])
    assert list(np.signbit((x * 0.0).numpy())) == [False, False]
    assert list(np.signbit((x * -0.0).numpy())) == [True, True]
    whole = backend.array([1, 2])
    assert (whole * 2).dtype == DType.int32
    assert (whole * 2.0).dtype == DType.float32
    assert (whole + True).numpy().tolist() == [2, 3]
    assert np.isnan((x * float("nan")).numpy()).all()


def test_a_number_that_was_given_up_is_made_anew() -> None:
    backend = line()
    two = backend.constant(2.0, DType.float32)
    ml.jit(lambda x: x + 1.0, donate=0)(two)
    assert (backend.ones(3) * 2.0).numpy().tolist() == [2, 2, 2]


def test_a_number_that_does_not_fit_is_refused_each_time() -> None:
    x = line().array(np.ones(2, np.int8))
    for _ in range(2):
        with pytest.raises(ml.ShapeError, match="which is no int8"):
            x + 300


def test_a_backend_in_another_order_has_numbers_of_its_own() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2, tensor=2))
    two = backend.constant(2.0, DType.float32)
    other = backend.reorder(("tensor", "data"))
    assert other.constant(2.0, DType.float32) is not two
    assert (other.ones(2) * 2.0).numpy().tolist() == [2, 2]


# ------------------------------------------------------------------ silence about floats


def test_floats_overflow_in_silence_whatever_numpy_is_told() -> None:
    x = line().array(np.array([3e38, 0.0], np.float32))
    with np.errstate(all="raise"):
        assert np.isinf((x + x).numpy()[0])
        assert np.geterr()["over"] == "raise"
        with pytest.raises(FloatingPointError):
            np.float32(3e38) * np.float32(10)


def test_silence_ends_where_a_kernel_fails() -> None:
    before = np.geterr()
    x = line().ones(2, 3)
    with pytest.raises(ml.ShapeError):
        _ = x @ x
    assert np.geterr() == before


def test_silence_is_kept_by_means_of_numpy_where_its_variable_is_not_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only = contextvars.copy_context()
    monkeypatch.setattr(float_errors, "copy_context", lambda: only)
    variable, silence = float_errors.find_variable()
    assert not isinstance(variable, contextvars.ContextVar)
    before = np.geterr()
    token = variable.set(silence)
    assert set(np.geterr().values()) == {"ignore"}
    variable.reset(token)
    assert np.geterr() == before


# ------------------------------------------------------------------ arrays of the last call


def test_arrays_that_are_not_of_the_last_call_are_pointed_out() -> None:
    backend = line()
    compiled = linear(backend)
    params = compiled.randomize_params(seed=0)
    host = np.ones((4, 3), np.float32)
    first = compiled.evaluate(params, {"x": host})["y"].numpy()
    made = compiled.recompiles
    bindings = compiled._planner.bindings
    form = (None, frozenset())
    arrays = [backend.as_unplaced(host, "x"), *params.values()]
    asked: list[Any] = []

    def convert(positions: Any) -> list[Any]:
        asked.append(positions)
        return arrays

    _, known, others = bindings.of_last_said(form, [host, *params.values()], convert)
    assert known is not None
    assert asked == [others] == [[0]]
    arrays[0] = backend.array(host, sharding=P("data"))
    assert bindings.of_last_said(form, arrays, convert)[1:] == (None, None)
    assert bindings.of_last_said(((), frozenset()), arrays, convert)[1:] == (None, None)
    assert asked == [[0], [0], None]
    assert np.array_equal(compiled.evaluate(params, {"x": host})["y"].numpy(), first)
    assert compiled.recompiles == made


def test_values_of_an_input_are_those_of_the_call() -> None:
    compiled = linear(line())
    params = compiled.randomize_params(seed=0)
    host = np.ones((4, 3), np.float32)
    outputs = [compiled.evaluate(params, {"x": host})["y"]]
    host *= 2
    outputs.append(compiled.evaluate(params, {"x": host})["y"])
    assert not np.allclose(outputs[0].numpy(), outputs[1].numpy())


def test_names_and_seeds_are_looked_at_in_every_call() -> None:
    compiled = linear(line())
    params = compiled.randomize_params(seed=0)
    x = np.ones((4, 3), np.float32)
    for _ in range(3):
        compiled.evaluate(params, {"x": x})
    for seed in (False, 0.0, -1, 2**32, "0"):
        with pytest.raises(ml.OptionError, match="is not an integer"):
            compiled.evaluate(params, {"x": x}, seed=seed)  # type: ignore[arg-type]
    with pytest.raises(ml.GraphError, match="did you mean 'x'"):
        compiled.evaluate(params, {"xx": x})
    with pytest.raises(ml.GraphError, match="is missing"):
        compiled.evaluate(params, {})
    with pytest.raises(ml.GraphError, match="give a mapping"):
        compiled.evaluate(params, [x])  # type: ignore[arg-type]
    other = {name: line().array(value.numpy()) for name, value in params.items()}
    with pytest.raises(ml.BackendError, match="belongs to another backend"):
        compiled.evaluate(other, {"x": x})  # type: ignore[arg-type]


# ------------------------------------------------------------------ evaluations that are written


def evaluate_again(compiled: ml.CompiledModel, *given: Any) -> Any:
    """Return what the third evaluation returns, which no longer goes the general way."""
    for _ in range(2):
        compiled.evaluate(*given)
    assert evaluate_written(compiled, *given)
    return compiled.evaluate(*given)


def evaluate_written(
    compiled: ml.CompiledModel, params: Any, inputs: Any, gradients: Any = None
) -> Any:
    """Return what the function that is written returns, None where it leaves the call to others."""
    evaluator = compiled._evaluator
    evaluate = evaluator.written[gradients is None]
    return evaluate and evaluate(evaluator, params, inputs, gradients)


def sources_of(compiled: ml.CompiledModel) -> list[str]:
    """Return what was written for the plan that ran last."""
    plans = [bound for bound in compiled._evaluator._last if bound is not None]
    return [written.source for bound in plans for written in bound.written.values()]


def test_an_evaluation_is_written_name_by_name() -> None:
    backend = ml.NumpyBackend()
    compiled = linear(backend)
    params, x = compiled.randomize_params(seed=0), backend.ones(4, 3)
    first = compiled.evaluate(params, {"x": x}, {"y": backend.ones(4, 2)})
    outputs, gradients = evaluate_again(compiled, params, {"x": x}, {"y": backend.ones(4, 2)})
    assert sources_of(compiled) == [WRITTEN]
    assert type(gradients) is type(first[1])
    assert list(gradients) == list(first[1])
    np.testing.assert_array_equal(outputs["y"].numpy(), first[0]["y"].numpy())
    for name in gradients:
        np.testing.assert_array_equal(gradients[name].numpy(), first[1][name].numpy())


WRITTEN = """\
def evaluate(evaluator, params, inputs, gradients):
    if family.open_profile is not None: return None
    try:
        if inputs.__class__ is not dict and not isinstance(inputs, MAPPINGS): return None
        if len(inputs) != 1: return None
        if params.__class__ is not dict and not isinstance(params, MAPPINGS): return None
        if len(params) != 2: return None
        if gradients.__class__ is not dict and not isinstance(gradients, MAPPINGS): return None
        if len(gradients) != 1: return None
        x0 = inputs['x']
        x1 = params['l.weight']
        x2 = params['l.bias']
        x3 = gradients['y']
        if x1.kind is not kind_1: return None
        if x2.kind is not kind_2: return None
        if x0.__class__ is not Array: x0 = evaluator.take(0, x0, seeded, kind_0)
        if x0.kind is not kind_0 and x0.kind != kind_0: return None
        if x3.__class__ is not Array: x3 = evaluator.take(3, x3, seeded, kind_3)
        if x3.kind is not kind_3 and x3.kind != kind_3: return None
    except (AttributeError, KeyError, TypeError):
        return None
    [made_0, made_1, made_2] = execute([x0.shards, x1.shards, x2.shards, x3.shards], None)
    y0 = new(Array); y0.kind = result_0; y0.shards = made_0
    y1 = new(Array); y1.kind = result_1; y1.shards = made_1
    y2 = new(Array); y2.kind = result_2; y2.shards = made_2
    slopes = Parameters()
    slopes['l.weight'] = y1
    slopes['l.bias'] = y2
    return {'y': y0}, slopes
"""


@pytest.mark.parametrize("data", [1, 2])
def test_what_is_otherwise_goes_the_general_way(data: int) -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=data))
    compiled = linear(backend, in_shardings={"x": P("data")})
    params, rng = compiled.randomize_params(seed=0), np.random.default_rng(0)
    weight, bias = params["l.weight"].numpy(), params["l.bias"].numpy()
    host = rng.standard_normal((4, 3)).astype(np.float32)

    def check(outputs: Any, x: np.ndarray) -> None:
        np.testing.assert_allclose(outputs["y"].numpy(), x @ weight.T + bias, 1e-5, 1e-6)

    check(evaluate_again(compiled, params, {"x": host}), host)
    check(compiled.evaluate(params, {"x": backend.array(2 * host)}), 2 * host)
    check(compiled.evaluate(params, {"x": backend.array(host, sharding=P("data"))}), host)
    check(compiled.evaluate(params, {"x": rng.standard_normal((4, 3)) * 0 + 1}), np.ones((4, 3)))
    longer = np.concatenate([host, host])
    check(compiled.evaluate(params, {"x": longer}), longer)
    outputs, gradients = compiled.evaluate(params, {"x": host}, {"y": np.ones((4, 2), np.float32)})
    check(outputs, host)
    np.testing.assert_allclose(gradients["l.bias"].numpy(), 4, 1e-6)
    check(compiled.evaluate(dict(params), {"x": host}), host)
    given = backend.array(host)
    compiled.evaluate(params, {"x": given}, donate="inputs")
    with pytest.raises(ml.BackendError, match="was donated to"):
        compiled.evaluate(params, {"x": given})


def test_the_gradient_of_a_loss_may_be_a_number_each_time() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    model = ml.Model()
    model |= ml.Linear(2, name="l")(input="x", output="y")
    model |= ml.Mean()(input="y", output="loss")
    compiled = ml.compile(model, backend, shapes={"x": (4, 3)}, outputs=["loss"])
    params, x = compiled.randomize_params(seed=0), np.ones((4, 3), np.float32)
    for slope in (1.0, 1.0, 1.0, 2.0, 0.5):
        _, gradients = compiled.evaluate(params, {"x": x}, {"loss": slope})
        np.testing.assert_allclose(gradients["l.bias"].numpy(), slope / 2, 1e-6)
    assert evaluate_written(compiled, params, {"x": x}, {"loss": 4.0})


def test_parameters_of_an_equal_kind_are_known_from_then_on() -> None:
    backend = ml.NumpyBackend()
    compiled = linear(backend)
    params = compiled.randomize_params(seed=0)
    x = backend.ones(4, 3)
    evaluate_again(compiled, params, {"x": x})
    stepped = {name: value + 0 for name, value in params.items()}
    assert not evaluate_written(compiled, stepped, {"x": x})
    compiled.evaluate(stepped, {"x": x})
    assert evaluate_written(compiled, stepped, {"x": x})
    assert len(sources_of(compiled)) == 1


def test_ids_on_the_host_are_looked_at_each_time() -> None:
    backend = ml.NumpyBackend()
    compiled = ml.compile(
        ml.Embedding(5, 2), backend, shapes={"input": ml.TensorSpec((2,), "int32")}
    )
    params = compiled.randomize_params(seed=0)
    for _ in range(3):
        compiled.evaluate(params, {"input": np.array([0, 4], np.int32)})
    with pytest.raises(ml.ShapeError, match="5"):
        compiled.evaluate(params, {"input": np.array([0, 5], np.int32)})


def test_a_profile_measures_an_evaluation_that_is_written() -> None:
    backend = ml.NumpyBackend()
    compiled = linear(backend)
    params, x = compiled.randomize_params(seed=0), backend.ones(4, 3)
    evaluate_again(compiled, params, {"x": x})
    with ml.profile(backend) as profile:
        compiled.evaluate(params, {"x": x})
    assert "l" in profile.layers()


@pytest.mark.parametrize(
    ("order", "count"),
    [("ABAB", 0), ("AABBAABB", 2), ("AAABBB", 2), ("Aa", 2), ("AaAaBbBb", 4), ("AAaaBBbb", 4)],
)
def test_each_plan_is_written_once_in_whatever_order_it_runs(
    order: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Capitals ask for gradients; letters are lengths of batches."""
    written: list[Any] = []

    def tell(names: Any, bound: Any, kinds: Any, **options: Any) -> Any:
        written.append((bound, names.seeded))
        return write_evaluation(names, bound, kinds, **options)

    monkeypatch.setattr(evaluation, "write_evaluation", tell)
    backend = ml.NumpyBackend()
    compiled = linear(backend)
    params = compiled.randomize_params(seed=0)
    weight, bias = params["l.weight"].numpy(), params["l.bias"].numpy()
    rng = np.random.default_rng(0)
    for letter in order * 3:
        length = {"a": 4, "b": 8}[letter.lower()]
        x = rng.standard_normal((length, 3)).astype(np.float32)
        given = params, {"x": backend.array(x)}
        if letter.isupper():
            dy = rng.standard_normal((length, 2)).astype(np.float32)
            outputs, gradients = compiled.evaluate(*given, {"y": backend.array(dy)})
            np.testing.assert_allclose(gradients["l.weight"].numpy(), dy.T @ x, 1e-4, 1e-5)
        else:
            outputs = compiled.evaluate(*given)
        np.testing.assert_allclose(outputs["y"].numpy(), x @ weight.T + bias, 1e-4, 1e-5)
    assert len(written) == len(set(written)) == count


def test_forwards_and_gradients_in_turn_are_both_written() -> None:
    backend = ml.NumpyBackend()
    compiled = linear(backend)
    params, x, dy = compiled.randomize_params(seed=0), {"x": backend.ones(4, 3)}, backend.ones(4, 2)
    for given in ((x,), (x,), (x, {"y": dy}), (x, {"y": dy})):
        compiled.evaluate(params, *given)
    assert evaluate_written(compiled, params, x)
    assert evaluate_written(compiled, params, x, {"y": dy})


def test_values_of_another_shape_are_put_on_devices_once(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ml.NumpyBackend()
    compiled = linear(backend)
    params = compiled.randomize_params(seed=0)
    evaluate_again(compiled, params, {"x": np.ones((4, 3), np.float32)})
    put, placed = type(backend.engine).put, []

    def tell(self: Any, type: Any, *given: Any) -> Any:
        placed.append(type.shape)
        return put(self, type, *given)

    monkeypatch.setattr(type(backend.engine), "put", tell)
    compiled.evaluate(params, {"x": np.ones((8, 3), np.float32)})
    assert placed == [(8, 3)]


def test_nothing_that_is_written_keeps_a_model_alive() -> None:
    backend = ml.NumpyBackend()
    compiled = linear(backend)
    params, x = compiled.randomize_params(seed=0), np.ones((4, 3), np.float32)
    evaluate_again(compiled, params, {"x": x})
    alive = weakref.ref(compiled._evaluator)
    gc.collect()
    gc.disable()
    try:
        del compiled
        assert alive() is None
    finally:
        gc.enable()


def test_a_run_that_is_broken_off_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ml.NumpyBackend()
    compiled = linear(backend)
    params, x = compiled.randomize_params(seed=0), backend.ones(4, 3)
    looked_at: list[Any] = []

    def interrupt(*given: Any) -> None:
        looked_at.append(given)
        if len(looked_at) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(call, "check_outputs", interrupt)
    with pytest.raises(KeyboardInterrupt):
        compiled.evaluate(params, {"x": x})
    for _ in range(5):
        compiled.evaluate(params, {"x": x})
    assert len(looked_at) == 2
    assert evaluate_written(compiled, params, {"x": x})


def test_what_is_no_mapping_and_no_seed_is_refused_when_warm() -> None:
    backend = ml.NumpyBackend()
    compiled = linear(backend)
    params, x = compiled.randomize_params(seed=0), backend.ones(4, 3)

    class Odd:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, name: str) -> Any:
            return params[name]

    evaluate_again(compiled, params, {"x": x})
    with pytest.raises(ml.GraphError, match="give a mapping"):
        compiled.evaluate(Odd(), {"x": x})  # type: ignore[call-overload]
    for seed in (np.array([1, 2]), backend.array([0, 1])):
        with pytest.raises(ml.OptionError, match="is not an integer"):
            compiled.evaluate(params, {"x": x}, seed=seed)  # type: ignore[call-overload]
