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


def with_loss() -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(2, name="layer")(input="x")
    model += ml.MeanSquaredError()(target="target", output="loss")
    return model


ROWS = {"x": np.ones((1, 3), np.float32), "target": np.zeros((1, 2), np.float32)}


@pytest.mark.parametrize("number", [2, 2.0, np.int64(2), np.uint8(2), np.float64(2), np.float16(2)])
@pytest.mark.parametrize("mesh", [None, ml.Mesh(data=2)])
def test_a_number_is_a_gradient_in_the_dtype_of_its_output(mesh: ml.Mesh | None, number: object):
    compiled = ml.compile(with_loss(), ml.NumpyBackend(mesh))
    params = compiled.randomize_params(0)
    slope = np.full((), 2, np.float32)
    expected = compiled.evaluate(params, ROWS, {"loss": slope})[1]["layer.weight"].numpy()
    for _ in range(2):
        found = compiled.evaluate(params, ROWS, {"loss": number})[1]["layer.weight"]
        np.testing.assert_array_equal(found.numpy(), expected)
    assert compiled.recompiles == 1


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_a_number_meets_outputs_of_any_float_dtype(dtype: str):
    backend = ml.NumpyBackend()
    compiled = ml.compile(ml.MeanSquaredError(), backend, differentiable=["input"])
    pair = {"input": backend.ones(4, dtype=dtype), "target": backend.zeros(4, dtype=dtype)}
    for number in (1, 1.0):
        found = compiled.evaluate({}, pair, {"output": number})[1]["input"]
        assert found.dtype == dtype
        np.testing.assert_array_equal(found.numpy().astype(float), np.full(4, 0.5))


@pytest.mark.parametrize("slope", [True, np.array(1), np.array([1.0, 2.0])])
def test_arrays_and_truth_values_keep_their_dtypes_as_gradients(slope: object):
    compiled = ml.compile(with_loss(), ml.NumpyBackend())
    params = compiled.randomize_params(0)
    with pytest.raises(ShapeError, match=r"the output is float32\[\]; give one of its shape and"):
        compiled.evaluate(params, ROWS, {"loss": slope})


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32"])
def test_parameters_of_another_dtype_are_told_how_to_be_cast(dtype: str):
    compiled = ml.compile(with_loss(), ml.NumpyBackend(), shapes=dict.fromkeys(ROWS, (1, 2)))
    params = compiled.randomize_params(0)
    other = {name: compiled.backend.array(x.numpy(), dtype=dtype) for name, x in params.items()}
    with pytest.raises(ShapeError) as error:
        compiled.evaluate(other, {"x": np.ones((1, 2)), "target": np.zeros((1, 2))})
    assert str(error.value) == (
        f"parameter 'layer.weight' is {dtype}; the model has it in float32; cast it, or all of "
        f"them with compiled.place(params)"
    )
    if dtype != "int32":
        placed = compiled.place(other)
        compiled.evaluate(placed, {"x": np.ones((1, 2)), "target": np.zeros((1, 2))})
