"""Steps of training in sequence parallelism with decomposed products, on every backend."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril.cli.gpt import Sizes, gpt, megatron, with_loss
from mithril.mesh import Mesh, P

from tests.conformance.engines import BACKENDS, opened
from tests.tolerances import TOLERANCE

SIZES = Sizes(layers=2, width=16, heads=4, hidden=32, context=8, batch=4)
VOCABULARY, STEPS = 24, 3


def train(backend: ml.Backend, **options: object) -> tuple[dict[str, np.ndarray], ml.TrainStep]:
    """Return the losses and parameters after a few steps."""
    model = with_loss(gpt(VOCABULARY, SIZES))
    if "tensor" in backend.mesh.names:
        megatron(model)
        split = P(None, "tensor")
        model.shard(dict.fromkeys(("*.normed1", "*.normed2", "*.middle"), split))
    ids = ml.TensorSpec((SIZES.batch, SIZES.context), "int32")
    step = ml.train_step(
        model, backend, ml.optim.sgd(0.1), shapes={"tokens": ids, "target": ids}, **options
    )
    state = step.init(seed=0)
    rng, losses = np.random.default_rng(0), []
    for _ in range(STEPS):
        rows = rng.integers(0, VOCABULARY, (2, SIZES.batch, SIZES.context)).astype(np.int32)
        state, metrics = step(state, {"tokens": rows[0], "target": rows[1]})
        losses.append(float(metrics["loss"]))
    found = {name: value.numpy() for name, value in state.params.items()}
    return {"losses": np.array(losses, np.float32), **found}, step


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_training_is_that_of_one_device(backend: str) -> None:
    wanted, _ = train(ml.NumpyBackend(Mesh()))
    for options in (
        {"communication_overlap_strategy": "decompose"},
        {"communication_overlap_strategy": "auto", "pipeline_communication": True},
    ):
        found, step = train(opened(backend, tensor=2), **options)
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, *TOLERANCE["float32"], err_msg=name)
        names = {row.cause.algorithm.kind for row in step.plan.collectives() if row.cause.algorithm}
        is_forced = options["communication_overlap_strategy"] == "decompose"
        assert not is_forced or names == {"all_gather", "reduce_scatter"}
