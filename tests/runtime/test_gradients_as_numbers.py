"""Numbers given as gradients of outputs: in the dtype of the output, with all its digits."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np
import pytest

X = np.linspace(0, 1, 6).reshape(2, 3)


def compiled_on(backend: ml.Backend) -> ml.CompiledModel:
    model = ml.Model()
    model |= ml.MeanSquaredError()(input="x", target="t", output="y")
    return ml.compile(model, backend, differentiable=("x",))


def check(compiled: ml.CompiledModel, dtype: str, number: Any) -> None:
    inputs = {name: compiled.backend.array(x, dtype=dtype) for name, x in (("x", X), ("t", 0 * X))}
    _, slopes = compiled.evaluate({}, inputs, {"y": number})
    assert slopes["x"].dtype.name == dtype
    # To the last bit: half of the digits would do for the tolerance of gradients.
    gradient = np.asarray(0.1, dtype)
    expected = (X.astype(dtype) * (2 * gradient / X.size)).astype(dtype)
    np.testing.assert_allclose(slopes["x"].numpy(), expected, rtol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("number", [0.1, np.float64(0.1)])
def test_a_number_has_the_digits_of_its_output(dtype: str, number: Any) -> None:
    compiled = compiled_on(ml.NumpyBackend())
    for _ in range(3):  # the later calls are recognised
        check(compiled, dtype, number)
    assert compiled.recompiles == 1


def test_calls_of_one_dtype_are_followed_by_those_of_another() -> None:
    compiled = compiled_on(ml.NumpyBackend())
    for dtype in ("float64", "float64", "float32", "float64", "float32"):
        check(compiled, dtype, 0.1)
    assert compiled.recompiles == 2


def test_a_call_like_the_last_one_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compiled_on(ml.NumpyBackend())
    check(compiled, "float64", 0.1)
    monkeypatch.setattr(type(compiled._evaluator), "bind", None)
    check(compiled, "float64", 0.1)
