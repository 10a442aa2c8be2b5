"""Arrays and models whose sizes do not divide: what a user sees has no padding."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.tolerances import TOLERANCE


@pytest.fixture(scope="module")
def backend() -> ml.Backend:
    return ml.NumpyBackend(device_mesh=(4, 2))


def test_shards_have_their_true_sizes(backend: ml.Backend) -> None:
    x = backend.array(np.arange(10, dtype=np.float32), sharding=P(("data", "model")))
    sizes = [shard.data.shape[0] for shard in x.addressable_shards]
    assert sizes == [2, 1, 2, 1, 2, 1, 1, 0]
    for shard in x.addressable_shards:
        np.testing.assert_array_equal(shard.data, np.arange(10)[shard.index])
    np.testing.assert_array_equal(x.numpy(), np.arange(10))


def test_eager_functions_see_no_padding(backend: ml.Backend) -> None:
    host = np.random.default_rng(0).uniform(1, 2, (7, 3)).astype(np.float32)
    x = backend.array(host, sharding=P("data", "model"))
    rtol, atol = TOLERANCE["float32"]
    close = {"rtol": rtol, "atol": atol}
    np.testing.assert_allclose((1 / (x - 1)).numpy(), 1 / (host - 1), **close)
    np.testing.assert_allclose(backend.mean(backend.log(x)).numpy(), np.log(host).mean(), **close)
    np.testing.assert_allclose((x @ x.transpose(1, 0)).numpy(), host @ host.T, **close)
    np.testing.assert_array_equal(backend.argmax(x, axis=0).numpy(), host.argmax(0))
    np.testing.assert_array_equal(backend.max(x).numpy(), host.max())


def test_random_arrays_do_not_depend_on_padding(backend: ml.Backend) -> None:
    whole = backend.randn(7, 5, seed=3).numpy()
    np.testing.assert_array_equal(backend.randn(7, 5, seed=3, sharding=P("data", "model")), whole)


def gpt_head(classes: int) -> ml.Model:
    model = ml.Model()
    model |= ml.Embedding(classes, 8, name="table")(input="tokens", output="embedded")
    model += ml.LayerNorm(name="norm")(input="embedded", output="normed")
    model += ml.Linear(classes, name="head")(input="normed", output="logits")
    model |= ml.CrossEntropy()(input="logits", target="targets", output="loss")
    return model


@pytest.mark.parametrize("mesh", [(3,), (4,), (4, 2)])
@pytest.mark.parametrize("batch", [1, 5, 8])
def test_a_model_equals_one_device(mesh: tuple[int, ...], batch: int) -> None:
    rng = np.random.default_rng(1)
    tokens, targets = (rng.integers(0, 11, (batch, 3)).astype(np.int32) for _ in range(2))
    found = {}
    for shape in ((), mesh):
        backend = ml.NumpyBackend(device_mesh=shape or None)
        compiled = ml.compile(gpt_head(11), backend)
        spec = P("data") if shape else P()
        inputs = {
            "tokens": backend.array(tokens, sharding=spec),
            "targets": backend.array(targets, sharding=spec),
        }
        found[shape] = compiled.evaluate(compiled.randomize_params(0), inputs, {"loss": 1.0})
    (expected, expected_gradients), (outputs, gradients) = found[()], found[mesh]
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(outputs["loss"], expected["loss"], rtol=rtol, atol=atol)
    for name, value in expected_gradients.items():
        np.testing.assert_allclose(gradients[name], value, rtol=rtol, atol=atol, err_msg=name)
