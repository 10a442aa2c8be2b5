"""Inputs of 16 bits meet parameters of float32 in float32, in every layer alike; no rows are rows."""

from __future__ import annotations

import mithril as ml
import ml_dtypes
import numpy as np
import pytest
from mithril import P

from tests.models.evaluate import random
from tests.tolerances import TOLERANCE

X = random(4, 6, 8).astype(ml_dtypes.bfloat16)
LAYERS: dict[str, ml.Layer] = {
    "Linear": ml.Linear(8),
    "LayerNorm": ml.LayerNorm(),
    "RMSNorm": ml.RMSNorm(),
    "RMSNorm with offset": ml.RMSNorm(offset=1.0),
    "LSTM": ml.LSTM(8, num_layers=2, bidirectional=True),
    "GRU": ml.GRU(8, bias=False),
}


@pytest.mark.parametrize("mesh", [{}, {"data": 2}], ids=str)
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_the_result_is_that_of_the_same_values_in_float32(
    layer: ml.Layer, mesh: dict[str, int]
) -> None:
    compiled = ml.compile(layer, ml.NumpyBackend(ml.Mesh(**mesh)))
    params = compiled.randomize_params()
    wide = compiled.evaluate(params, {"input": X.astype(np.float32)})["output"]
    found = compiled.evaluate(params, {"input": X})["output"]
    assert found.dtype == wide.dtype == "float32"
    np.testing.assert_allclose(found.numpy(), wide.numpy(), *TOLERANCE["float32"])


def test_norms_as_functions_promote_too_and_refuse_integers() -> None:
    backend = ml.NumpyBackend()
    x, gain, zero = backend.array(X), backend.ones(8), backend.zeros(8)
    assert backend.rms_norm(x, gain).dtype == "float32"
    assert backend.layer_norm(x, gain, zero).dtype == "float32"
    assert backend.rms_norm(x, gain.astype("bfloat16")).dtype == "bfloat16"
    with pytest.raises(ml.ShapeError, match="rms_norm needs a float dtype, not int32"):
        backend.rms_norm(x.astype("int32"), gain)


@pytest.mark.parametrize("mesh", [{}, {"data": 2}, {"tensor": 2}], ids=str)
def test_attention_over_a_batch_of_nothing_takes_masks(mesh: dict[str, int]) -> None:
    backend = ml.NumpyBackend(ml.Mesh(**mesh))
    layer = ml.MultiHeadAttention(num_heads=2)
    model = ml.Model()
    model |= layer(input="x", mask="mask", key_padding_mask="seen", output="y")
    compiled = ml.compile(model, backend)
    inputs = {
        "x": backend.zeros(0, 6, 8, sharding=P("data") if "data" in mesh else None),
        "mask": np.ones((0, 1, 6, 6), np.bool_),
        "seen": np.ones((0, 6), np.bool_),
    }
    params = compiled.randomize_params()
    outputs, gradients = compiled.evaluate(
        params, inputs, output_gradients={"y": np.zeros((0, 6, 8), np.float32)}
    )
    assert outputs["y"].shape == (0, 6, 8)
    assert not any(gradient.numpy().any() for gradient in gradients.values())
