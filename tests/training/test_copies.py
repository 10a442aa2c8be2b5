"""What devices have of the same part of a state stays equal, and is what one device has."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np
import pytest

from tests.conformance.engines import BACKENDS, opened
from tests.profiles import quick
from tests.tolerances import TOLERANCE
from tests.training.test_step import SPLIT, batches, model, shapes

WAYS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "zero 1, tensor": ({"data": 2, "tensor": 2}, {"zero": 1}),
    "zero 3, tensor": ({"data": 2, "tensor": 2}, {"zero": 3}),
    "tree": ({"data": 2}, {"collective_ops": "tree"}),
    "offload": ({"data": 2}, {"collective_ops": "tree", "offload_optimizer": True}),
}


def train(backend: ml.Backend, **options: Any) -> ml.TrainState:
    """Return the state after a few steps of AdamW."""
    made = model()
    rows = ml.P("data") if "data" in backend.mesh.names else None
    if "tensor" in backend.mesh.names:
        made.shard(SPLIT)
    optimizer = ml.optim.adamw(0.01)
    step = ml.train_step(made, backend, optimizer, shapes=shapes(rows), **options)
    state = step.init(seed=0)
    for batch in batches():
        state, _ = step(state, batch)
    return state


@quick(lambda backend, way: backend == "numpy" or way == "tree")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend", ["numpy", *BACKENDS])
def test_all_copies_of_parameters_are_those_of_one_device(backend: str, way: str) -> None:
    axes, options = WAYS[way]
    if backend == "jax" and "offload_optimizer" in options:
        pytest.skip("arrays of JAX on CPUs lie on its devices between programs")
    expected = train(ml.NumpyBackend()).params
    for name, x in train(opened(backend, **axes), **options).params.items():
        for shard in x.addressable_shards:
            part = expected[name].numpy()[shard.index]
            np.testing.assert_allclose(shard.data, part, *TOLERANCE["float32"], err_msg=name)


@quick(lambda backend: backend in ("numpy", "jax"))
@pytest.mark.parametrize("backend", ["numpy", *BACKENDS])
def test_numbers_that_are_one_value_of_several_micro_batches_are_apart(backend: str) -> None:
    """Muon keeps the learning rate twice, and a plan of stages returns a value once."""
    muon, here = ml.optim.muon(0.02), opened(backend)
    step = ml.train_step(model(), here, muon, shapes=shapes(), accumulate=2)
    whole = ml.train_step(model(), ml.NumpyBackend(), muon, shapes=shapes())
    state, other = step.init(seed=0), whole.init(seed=0)
    for batch in batches():
        (state, found), (other, expected) = step(state, batch), whole(other, batch)
        np.testing.assert_allclose(
            found["loss"].item(), expected["loss"].item(), *TOLERANCE["float32"]
        )


@quick(lambda backend, algorithm: backend in ("numpy", "jax") and algorithm == "recursive_halving")
@pytest.mark.parametrize("algorithm", ["ring", "tree", "direct", "recursive_halving"])
@pytest.mark.parametrize("backend", ["numpy", *BACKENDS])
def test_copies_are_equal_bit_for_bit(backend: str, algorithm: str) -> None:
    """A compiler may round what a device computed and what it was sent in different ways."""
    made = ml.Model()
    made |= ml.Linear(3, name="down")(input="x", output="y")
    made |= ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    rows = {n: ml.TensorSpec((24, k), sharding=ml.P("data")) for n, k in (("x", 6), ("t", 3))}
    step = ml.train_step(
        made, opened(backend, data=3), ml.optim.sgd(0.3), shapes=rows, collective_ops=algorithm
    )
    state, rng = step.init(seed=0), np.random.default_rng(0)
    for _ in range(20):
        batch = {n: rng.standard_normal(spec.shape, np.float32) for n, spec in rows.items()}
        state, _ = step(state, batch)
    for x in state.params.values():
        first, *others = [shard.data for shard in x.addressable_shards]
        assert len(others) == 2
        for other in others:
            np.testing.assert_array_equal(other, first)
