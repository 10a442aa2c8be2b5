"""What the runtime refuses on behalf of an engine: dtypes it lacks, and what is no array of its own."""

from __future__ import annotations

from collections.abc import Callable

import mithril as ml
import numpy as np
import pytest
from mithril.engine.numpy_engine import NumpyEngine
from mithril.mesh import Mesh
from mithril.runtime import Backend
from mithril.types import DType


class Narrow(NumpyEngine):
    """An engine without 8-byte floats."""

    __slots__ = ()

    @property
    def dtypes(self) -> frozenset[DType]:
        return frozenset(DType) - {DType.float64}


def linear() -> ml.CompiledModel:
    return ml.compile(ml.Linear(3), ml.NumpyBackend(), shapes={"input": (2, 4)})


def evaluate_with_gradient(name: str) -> None:
    model = linear()
    zeros = np.zeros((2, 3), np.float32)
    model.evaluate(model.randomize_params(), {"input": np.zeros((2, 4), np.float32)}, {name: zeros})


BAD: dict[str, tuple[Callable[[], object], type[ml.MithrilError], str]] = {
    "a dtype the engine lacks": (
        lambda: Backend(Narrow(Mesh())).ones(2, dtype="float64"),
        ml.BackendError,
        "backend 'numpy' has no dtype float64; use dtype='float32'",
    ),
    "what is no array": (
        lambda: ml.NumpyBackend().to_numpy([1.0]),
        ml.BackendError,
        "to_numpy is a list, not an array of backend 'numpy'; make one with backend.array(…)",
    ),
    "the gradient of no output": (
        lambda: evaluate_with_gradient("outptu"),
        ml.GraphError,
        "output_gradients names 'outptu', which is no output; did you mean 'output'?; outputs: "
        "'output'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_it_is_refused(case: str) -> None:
    make, error, message = BAD[case]
    with pytest.raises(error) as caught:
        make()
    assert str(caught.value) == message


def test_a_dtype_the_engine_has_is_served() -> None:
    assert Backend(Narrow(Mesh())).ones(2).dtype == DType.float32


@pytest.mark.parametrize(
    ("module", "name", "expected"),
    [
        ("jaxlib._jax", "ArrayImpl", "a jax.Array"),
        ("torch", "Tensor", "a torch.Tensor"),
        ("mlx.core", "array", "a mlx.core.array"),
        ("train", "Batch", "a Batch"),
    ],
)
def test_values_of_frameworks_are_called_as_users_call_them(
    module: str, name: str, expected: str
) -> None:
    value = type(name, (), {"__module__": module})()
    with pytest.raises(ml.BackendError, match=f"^to_numpy is {expected}, not an array of backend"):
        ml.NumpyBackend().to_numpy(value)
