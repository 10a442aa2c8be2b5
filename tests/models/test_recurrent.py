"""Recurrent layers on meshes, and what they refuse."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.tolerances import TOLERANCE

X = np.random.default_rng(0).standard_normal((4, 5, 6)).astype(np.float32)


def trained(layer: ml.Layer, backend: ml.Backend, spec: P) -> tuple[dict, ml.CompiledModel]:
    model = ml.Model()
    model |= layer(input="x", output="y")
    compiled = ml.compile(model, backend)
    params, given = compiled.randomize_params(0), {"x": backend.array(X, sharding=spec)}
    shapes = compiled.evaluate(params, given, seed=2)
    slopes = {name: np.ones(value.shape, np.float32) for name, value in shapes.items()}
    outputs, gradients = compiled.evaluate(params, given, slopes, seed=2)
    return {**outputs, **gradients}, compiled


@pytest.mark.parametrize("kind", [ml.LSTM, ml.GRU])
@pytest.mark.parametrize(
    ("mesh", "batch", "split", "each"),
    [
        ({"data": 2}, P("data"), None, []),
        ({"data": 3}, P("data"), None, []),
        ({"tensor": 2}, P(), [(None, 0), (None, 0)], ["all_gather"] * 2 + ["reduce_scatter"] * 2),
        ({"data": 2, "tensor": 2}, P("data"), [(None, 1), (None, 1)], None),
    ],
    ids=str,
)
def test_a_mesh_equals_one_device(
    kind: type[ml.Layer], mesh: dict[str, int], batch: P, split: list | None, each: list | None
) -> None:
    """And exchanges nothing in a step but the state, where features are split."""
    options = {"num_layers": 2, "dropout": 0.3, "name": "layer"}
    expected, _ = trained(kind(6, **options), ml.NumpyBackend(), P())
    shards = {"weight_shard_spec": split} if split else {}
    layer = kind(6, **options, **shards)
    found, compiled = trained(layer, ml.NumpyBackend(ml.Mesh(mesh)), batch)
    rtol, atol = TOLERANCE["float32"]
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol, atol, err_msg=name)
    rows = [row.kind for row in compiled.plan.collectives() if row.times == X.shape[1]]
    assert each is None or sorted(rows) == each
    assert split is None or "tensor" in str(compiled.plan.specs["layer.layer_1.hidden.weight"])


def compiled_with(layer: ml.Layer, **shapes: tuple[int, ...]) -> None:
    model = ml.Model()
    model |= layer(**{name: name for name in shapes}, output="y")
    ml.compile(model, ml.NumpyBackend(), shapes=shapes)


MISTAKES = {
    "dropout without layers": (
        lambda: ml.LSTM(4, dropout=0.1),
        ml.OptionError,
        "has dropout=0.1, which comes between layers, and num_layers=1; use more layers",
    ),
    "no sequence": (
        lambda: compiled_with(ml.GRU(4), input=(3, 4)),
        ml.ShapeError,
        "needs an input [batch, sequence, features], not float32[3, 4]",
    ),
    "empty sequence": (
        lambda: compiled_with(ml.LSTM(4), input=(3, 0, 2)),
        ml.ShapeError,
        "goes along a sequence, and that of float32[3, 0, 2] is empty; give at least one position",
    ),
    "other state": (
        lambda: compiled_with(ml.LSTM(4, bidirectional=True), input=(3, 5, 2), cell=(1, 3, 4)),
        ml.ShapeError,
        "starts from 'cell' float32[2, 3, 4], [layers, batch, hidden_dim], not float32[1, 3, 4]",
    ),
    "no width": (lambda: ml.GRU(0), ml.OptionError, "'hidden_dim' is 0; it must be a positive"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(case: str) -> None:
    make, error, text = MISTAKES[case]
    with pytest.raises(error) as caught:
        make()
    assert text in str(caught.value)
