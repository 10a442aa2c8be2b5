"""Steps of training whose collectives are carried out by algorithms: pipelines, micro-batches, ZeRO."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril.mesh import Mesh

from tests.conformance.engines import BACKENDS, name_of, options_of
from tests.tolerances import TOLERANCE

ALGORITHMS = ("ring", "tree", "direct", "recursive_halving", "hierarchical", "auto")


def train(backend: ml.Backend, algorithm: str | None) -> tuple[np.ndarray, ml.TrainStep]:
    """Return the parameters after two steps: sizes do not divide, and the batch is cut in two."""
    model = ml.Model()
    for n in range(4):
        model += ml.Linear(7, name=f"layer_{n}")(
            **({"input": "x"} if not n else {}), output=f"h{n}"
        )
    model += ml.MeanSquaredError(name="end")(input="h3", target="t", output="loss")
    has_stages = "pipe" in backend.mesh.names
    for n in range(4) if has_stages else ():
        model.stage(f"layer_{n}", n // 2)
    if has_stages:
        model.stage("end", 1)
    cut = {"pipeline": ml.PipelineOptions(microbatch_size=2, axis="pipe")}
    rows = {"x": (16, 5), "t": (16, 7)}
    step = ml.train_step(
        model,
        backend,
        ml.optim.adamw(0.1),
        shapes={n: ml.TensorSpec(s, "float32", ml.P("data")) for n, s in rows.items()},
        zero=3,
        collective_ops=algorithm,
        **(cut if has_stages else {"accumulate": 2}),
    )
    rng = np.random.default_rng(0)
    batch = {name: rng.normal(size=shape).astype(np.float32) for name, shape in rows.items()}
    state = step.init(seed=0)
    for _ in range(2):
        state, _ = step(state, batch)
    return np.concatenate([np.ravel(x.numpy()) for x in state.params.values()]), step


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", *BACKENDS])
@pytest.mark.parametrize("mesh", [{"data": 4}, {"pipe": 2, "data": 2}], ids=str)
def test_steps_equal_those_of_the_backends_own_collectives(
    backend: str, mesh: dict[str, int]
) -> None:
    opened = ml.open_backend(name_of(backend), Mesh(mesh), **options_of(backend))
    wanted, _ = train(opened, None)
    for algorithm in ALGORITHMS:
        found, step = train(opened, algorithm)
        np.testing.assert_allclose(found, wanted, *TOLERANCE["float32"], err_msg=algorithm)
        names = {row.cause.algorithm.name for row in step.plan.collectives() if row.cause.algorithm}
        is_rewritten = algorithm != "auto" and (mesh["data"] > 2 or algorithm != "hierarchical")
        assert not is_rewritten or names == {algorithm}
