"""Frozen parameters as those of a module of PyTorch."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
import torch
from mithril import P

from tests.runtime.test_trainable import SLOPE, X, lora
from tests.tolerances import TOLERANCE

RTOL, ATOL = TOLERANCE["float32"]
OPENED = {
    "one device": ml.TorchBackend,
    "lockstep": lambda: ml.TorchBackend(ml.Mesh(data=2, tensor=2), executor="lockstep"),
    "workers": lambda: ml.TorchBackend(ml.Mesh(data=2)),
}


@pytest.mark.parametrize("opened", OPENED)
def test_a_module_does_not_require_gradients_of_what_is_frozen(opened: str) -> None:
    backend = OPENED[opened]()
    spec = P("data") if backend.mesh.size > 1 else P()
    shapes = {"x": ml.TensorSpec((8, 6), sharding=spec), "target": (8, 4)}
    compiled = ml.compile(lora(), backend, shapes=shapes)
    params = compiled.randomize_params(1)
    inputs = {"x": backend.array(X, sharding=spec), "target": backend.array(SLOPE)}
    _, expected = compiled.evaluate(params, inputs, {"loss": 1.0})
    module = compiled.as_module(params)
    named = dict(module.named_parameters())
    assert {name for name, x in named.items() if x.requires_grad} == set(compiled.trainable)
    optimizer = torch.optim.AdamW((x for x in module.parameters() if x.requires_grad), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = module(torch.tensor(X), torch.tensor(SLOPE))
        loss.backward()
        if not losses:
            for name, x in named.items():
                if name in compiled.trainable:
                    theirs = expected[name].numpy()
                    np.testing.assert_allclose(x.grad, theirs, rtol=RTOL, atol=ATOL, err_msg=name)
                else:
                    assert x.grad is None
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    np.testing.assert_array_equal(named["up.weight"].detach(), params["up.weight"].numpy())
