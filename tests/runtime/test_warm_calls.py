"""What makes warm calls cheap, and what it must not change."""

from __future__ import annotations

import contextvars
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.engine import float_errors
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
