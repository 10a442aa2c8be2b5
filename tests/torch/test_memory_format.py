"""`memory_format="channels_last"`: images lie otherwise, and nothing else changes."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
import torch
from mithril import P

from tests.tolerances import TOLERANCE

LAST = torch.channels_last


def model() -> ml.Model:
    made = ml.Model()
    made |= ml.Conv2d(8, kernel_size=3, padding=1, name="first")(input="x", output="a")
    made += ml.Relu()
    made += ml.Conv2d(4, kernel_size=3, name="second")(output="images")
    return made


def trained(backend: ml.Backend) -> tuple[ml.CompiledModel, ml.Array, dict[str, ml.Array]]:
    x = np.random.default_rng(0).standard_normal((4, 3, 10, 10), dtype=np.float32)
    inputs = {"x": backend.array(x, sharding=P(*backend.mesh.names))}
    compiled = ml.compile(model(), backend, shapes=inputs)
    params = compiled.randomize_params(seed=1)
    given = {"images": np.ones((4, 4, 8, 8), np.float32)}
    outputs, gradients = compiled.evaluate(params, inputs, given)
    return compiled, outputs["images"], gradients


@pytest.mark.parametrize("spelt", ["channels_last", "channel_last"])
@pytest.mark.parametrize("mesh", [ml.Mesh(), ml.Mesh(data=2)], ids=str)
def test_images_lie_with_their_channels_last(spelt: str, mesh: ml.Mesh) -> None:
    plain, images, gradients = trained(ml.TorchBackend(mesh, device="cpu"))
    laid, found, slopes = trained(ml.TorchBackend(mesh, device="cpu", memory_format=spelt))
    assert "images(" not in plain.code()
    assert laid.code().count("images(") >= 4
    if mesh.size == 1:
        assert found.torch().is_contiguous(memory_format=LAST)
        assert not images.torch().is_contiguous(memory_format=LAST)
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(found.numpy(), images.numpy(), rtol, atol)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(slopes[name].numpy(), gradient.numpy(), rtol, atol)


def test_convolutions_in_one_dimension_have_no_such_layout() -> None:
    backend = ml.TorchBackend(device="cpu", memory_format="channels_last")
    compiled = ml.compile(ml.Conv1d(4, kernel_size=3), backend, shapes={"input": (2, 3, 9)})
    assert "images(" not in compiled.code()
