"""Frozen parameters inside JAX's own transformations, and masks that repeat."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mithril as ml
import numpy as np
import optax
import pytest
from mithril import P

from tests.runtime.test_trainable import SLOPE, X, lora
from tests.tolerances import TOLERANCE

RTOL, ATOL = TOLERANCE["float32"]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [ml.Mesh(), ml.Mesh(data=2, tensor=2)], ids=str)
def test_as_jax_gives_zeros_for_what_is_frozen(mesh: ml.Mesh) -> None:
    backend = ml.JaxBackend(mesh)
    spec = P("data") if mesh.size > 1 else P()
    shapes = {"x": ml.TensorSpec((8, 6), sharding=spec), "target": (8, 4)}
    compiled = ml.compile(lora(), backend, shapes=shapes)
    params = compiled.randomize_params(1)
    inputs = {"x": backend.array(X, sharding=spec), "target": backend.array(SLOPE)}
    _, expected = compiled.evaluate(params, inputs, {"loss": 1.0})
    function = compiled.as_jax()
    leaves = {"x": jnp.asarray(X), "target": jnp.asarray(SLOPE)}

    @jax.jit
    def loss(tree):
        return function(tree, leaves)["loss"]

    found = jax.grad(loss)(params.jax())
    assert set(found) == set(params)
    for name, gradient in found.items():
        if name in compiled.trainable:
            theirs = expected[name].numpy()
            np.testing.assert_allclose(gradient, theirs, rtol=RTOL, atol=ATOL, err_msg=name)
        else:
            assert not np.asarray(gradient).any()
    joint = compiled.program_for(shapes, gradients=True)
    assert set(joint.gradients) == {*compiled.trainable, "x", "target"}


@pytest.mark.slow
def test_optax_trains_what_is_not_frozen() -> None:
    backend = ml.JaxBackend(ml.Mesh(data=2))
    compiled = ml.compile(lora(), backend)
    params = compiled.randomize_params(1)
    inputs = {"x": backend.array(X, sharding=P("data")), "target": SLOPE}
    compiled.evaluate(params, inputs)
    trained = {name: params[name] for name in compiled.trainable}
    optimizer = optax.adam(0.05)
    state, losses = optimizer.init(trained), []
    for step in range(4):
        outputs, gradients = compiled.evaluate(
            {**params, **trained}, inputs, {"loss": 1.0}, seed=step
        )
        updates, state = optimizer.update(dict(gradients), state, trained)
        trained = optax.apply_updates(trained, updates)
        losses.append(float(outputs["loss"]))
    assert losses == sorted(losses, reverse=True)
    assert compiled.recompiles == 2


def test_as_jax_warns_once_of_masks_that_repeat() -> None:
    model = ml.Model()
    model |= ml.Linear(4)(input="x")
    model += ml.Dropout(rate=0.5)(output="y")
    compiled = ml.compile(model, ml.JaxBackend(), shapes={"x": (8, 6)})
    function, params = compiled.as_jax(), compiled.randomize_params()
    with pytest.warns(UserWarning, match="function of as_jax is called without a seed and the"):
        first = function(params, {"x": X})["y"]
    np.testing.assert_array_equal(first, function(params, {"x": X}, 0)["y"])
    np.testing.assert_array_equal(first, function(params, {"x": X})["y"])
    assert not np.array_equal(first, function(params, {"x": X}, seed=1)["y"])
