"""What is passed into an evaluation: read anew each time, copied, and checked each time."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril.errors import BackendError, ShapeError


@pytest.fixture
def compiled() -> ml.CompiledModel:
    model = ml.Model()
    model |= ml.Flatten()(input="x", output="y")
    return ml.compile(model, ml.NumpyBackend())


def flat(compiled: ml.CompiledModel, x: object) -> np.ndarray:
    return compiled.evaluate({}, {"x": x})["y"].numpy()[0]


def test_values_are_those_of_this_call(compiled: ml.CompiledModel):
    for start in (0.0, 10.0, 20.0):
        x = start + np.arange(6, dtype=np.float32).reshape(1, 2, 3)
        np.testing.assert_array_equal(flat(compiled, x), x.ravel())


def test_inputs_are_copied(compiled: ml.CompiledModel):
    for _ in range(2):  # the first array of its kind, and a later one
        x = np.ones((1, 2, 3), np.float32)
        y = compiled.evaluate({}, {"x": x})["y"]
        x[...] = 5
        np.testing.assert_array_equal(y.numpy(), np.ones((1, 6)))


def test_dtypes_of_one_shape_are_told_apart(compiled: ml.CompiledModel):
    for dtype in ("float32", "int32", "bool", "float32", "int64"):
        found = flat(compiled, np.ones((1, 2, 3), dtype))
        assert found.dtype == ("int32" if dtype == "int64" else dtype)


def test_wide_integers_are_checked_each_time(compiled: ml.CompiledModel):
    assert flat(compiled, np.array([[[1, 2]]])).dtype == np.int32
    assert flat(compiled, np.array([[[1, 2**40]]])).dtype == np.int64
    assert flat(compiled, np.array([[[1, 3]]])).dtype == np.int32


def test_arrays_of_another_byte_order_are_read(compiled: ml.CompiledModel):
    for _ in range(2):
        np.testing.assert_array_equal(flat(compiled, np.array([[1.5, 2.5]], ">f4")), [1.5, 2.5])


def test_numbers_are_those_of_this_call():
    model = ml.Model()
    model |= ml.Linear(2, name="layer")(input="x")
    model += ml.MeanSquaredError()(target="target", output="loss")
    compiled = ml.compile(model, ml.NumpyBackend())
    params = compiled.randomize_params(0)
    inputs = {"x": np.ones((1, 3), np.float32), "target": np.zeros((1, 2), np.float32)}
    slopes = [
        compiled.evaluate(params, inputs, {"loss": g})[1]["layer.bias"].numpy()
        for g in (1.0, 2.0, 4.0)
    ]
    assert np.all(slopes[0])
    np.testing.assert_array_equal(slopes[1:], [2 * slopes[0], 4 * slopes[0]])


def test_what_is_no_array_is_refused_after_arrays_too(compiled: ml.CompiledModel):
    flat(compiled, np.ones((1, 2, 3), np.float32))
    with pytest.raises(BackendError, match="input 'x' is a str, not an array"):
        flat(compiled, "text")
    with pytest.raises(BackendError, match="input 'x' belongs to another backend"):
        flat(compiled, ml.NumpyBackend().ones(1, 2, 3))
    with pytest.raises(ShapeError):
        flat(compiled, np.array(["a"]))
