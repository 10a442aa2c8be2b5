"""Placed layers and pipelines on JAX: jits on parts of the mesh, issued in the order of the plan."""

from __future__ import annotations

import jax
import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.pipeline.models import FEATURES, block, classifier, compared, samples
from tests.pipeline.test_pipelines import MEGATRON

PAIRWISE = [
    ("gpipe", 2, 1, 1), ("gpipe", 4, 2, 1),
    ("1f1b", 2, 2, 2), ("1f1b", 4, 1, 1), ("1f1b", 4, 1, 2),
    ("interleaved", 4, 2, 1),
    ("zb-h1", 1, 2, 1), ("zb-h1", 2, 1, 2), ("zb-h1", 4, 1, 1),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "stages", "data", "tensor"), PAIRWISE)
def test_schedules_on_meshes(schedule: str, stages: int, data: int, tensor: int) -> None:
    model = classifier(stages, microbatch_size=2)
    if tensor > 1:
        model.shard(MEGATRON)
    backend = ml.JaxBackend(ml.Mesh(data=data, tensor=tensor, pipeline=stages))
    options = {"spec": P("data"), "pipeline_schedule": schedule}
    compared(model, backend, samples(8 * data), in_order=False, **options)  # XLA orders within jits


@pytest.mark.slow
def test_placed_and_split_layers() -> None:
    model = ml.Model()
    model |= ml.Linear(12, sharding={"weight": P("data", None)})(input="input", output="wide")
    model += ml.Linear(FEATURES, device_id=3)
    model += ml.LayerNorm()
    model += ml.Linear(3, device_id=1)(output="output")
    x = np.random.default_rng(0).standard_normal((4, FEATURES)).astype(np.float32)
    compared(model, ml.JaxBackend(ml.Mesh(data=4)), {"input": x}, spec=P("data"))


def test_stages_hold_their_own_parameters() -> None:
    backend = ml.JaxBackend(ml.Mesh(data=2, pipeline=2))
    model = ml.Model()
    model |= ml.Pipeline([block(), block()], microbatch_size=2)(input="input", output="output")
    compiled = ml.compile(model, backend, shapes={"input": (8, FEATURES)})
    params = compiled.randomize_params()
    where = {name: {d.id for d in x.jax().devices()} for name, x in params.items()}
    flat = [device.id for device in jax.devices()]
    for name, devices in where.items():
        stage = int(name.split("stage_")[1][0])
        assert devices == {flat[stage], flat[2 + stage]}


@pytest.mark.slow
def test_a_training_loop_stays_on_its_stages() -> None:
    backend, alone = ml.JaxBackend(ml.Mesh(data=2, pipeline=2)), ml.NumpyBackend()
    model, given = classifier(2, microbatch_size=2), samples(8)
    update = ml.jit(lambda p, g: {name: p[name] - 0.1 * g[name] for name in p})
    losses = {}
    for on in (backend, alone):
        compiled = ml.compile(model, on)
        params, found = compiled.randomize_params(), []
        for step in range(4):
            outputs, gradients = compiled.evaluate(params, given, {"loss": 1.0})
            if step % 2:
                params = update(params, gradients)
            else:
                params = {name: x - 0.1 * gradients[name] for name, x in params.items()}
            found.append(outputs["loss"].item())
        losses[on.name] = found
        assert compiled.recompiles == 1
    np.testing.assert_allclose(losses["jax"], losses["numpy"], rtol=1e-5)


@pytest.mark.slow
def test_arrays_of_several_stages_meet_on_the_whole_mesh() -> None:
    backend = ml.JaxBackend(ml.Mesh(data=2, pipeline=2))
    compiled = ml.compile(classifier(2), backend)
    compiled.evaluate(params := compiled.randomize_params(), samples(4))
    squares = [(x * x).sum() for x in params.values()]
    total = squares[0]
    for square in squares[1:]:
        total = total + square
    expected = sum(float((x.numpy() ** 2).sum()) for x in params.values())
    np.testing.assert_allclose(total.numpy(), expected, rtol=1e-5)
    ends = [next(iter(params.values())), list(params.values())[-1]]
    one, other = (x.sharding.mesh.devices for x in ends)
    assert one != other
    assert (ends[0].sum() + ends[1].sum()).sharding.mesh == backend.mesh


@pytest.mark.slow
def test_trees_of_jax_arrays_stay_on_their_stages() -> None:
    backend = ml.JaxBackend(ml.Mesh(data=2, pipeline=2))
    compiled = ml.compile(classifier(2, microbatch_size=2), backend)
    params, given = compiled.randomize_params(), samples(8)
    _, slopes = compiled.evaluate(params, given, {"loss": 1.0})
    plan, where = compiled.plan, {name: x.sharding for name, x in params.items()}
    updated = jax.tree.map(lambda x, slope: x - 0.1 * slope, params.jax(), slopes.jax())
    _, again = compiled.evaluate(updated, given, {"loss": 1.0})
    assert {name: x.sharding for name, x in again.items()} == where
    assert compiled.plan is plan


def test_an_array_on_the_first_device_of_jax_is_for_all() -> None:
    backend = ml.JaxBackend(ml.Mesh(pipeline=2))
    compiled = ml.compile(classifier(2, microbatch_size=2), backend)
    given = {name: jax.numpy.asarray(x) for name, x in samples(8).items()}
    compiled.evaluate(compiled.randomize_params(), given)
    assert backend.array(given["input"]).sharding.mesh == backend.mesh
