"""A model of a few layers, and what a profile of it must say on any backend: the plan's figures."""

from __future__ import annotations

import mithril as ml
import numpy as np
from mithril import P
from mithril.plan import Plan

LAYERS = {"up", "act", "down", "end"}
RUNS = 2


def model(*, stages: bool = False, tensor: bool = False) -> ml.Model:
    """Return an MLP with a loss, in two stages or split over `tensor` if that is asked for."""
    made = ml.Model()
    made |= ml.Linear(dimension=32, name="up")(input="x", output="h")
    made += ml.Relu(name="act")(input="h", output="a")
    made += ml.Linear(dimension=16, name="down")(input="a", output="y")
    made += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    for layer, stage in (("up", 0), ("act", 0), ("down", 1), ("end", 1)) if stages else ():
        made.stage(layer, stage)
    if tensor:
        made.shard({"up.weight": P("tensor", None), "down.weight": P(None, "tensor")})
    return made


def compiled_on(backend: ml.Backend) -> tuple[ml.CompiledModel, dict[str, ml.Array]]:
    """Return the model on a backend, and inputs that are split over `data` if there is such an axis."""
    names = backend.mesh.names
    spec = P("data") if "data" in names else P()
    x = backend.array(np.ones((8, 16), np.float32), sharding=spec)
    inputs = {"x": x, "t": x * 0}
    made = model(stages="pipeline" in names, tensor="tensor" in names)
    return ml.compile(made, backend, shapes=inputs), inputs


def check_figures(backend: ml.Backend) -> ml.Profile:
    """Profile training steps and hold every figure against the plan; return the profile."""
    compiled, inputs = compiled_on(backend)
    params = compiled.randomize_params(0)
    expected = compiled.evaluate(params, inputs, {"loss": 1.0})
    with ml.profile(backend) as prof:
        for _ in range(RUNS):
            outputs, slopes = compiled.evaluate(params, inputs, {"loss": 1.0})
    np.testing.assert_allclose(outputs["loss"], expected[0]["loss"], rtol=1e-5)
    for name, slope in slopes.items():
        np.testing.assert_allclose(slope, expected[1][name], rtol=1e-4, atol=1e-6)
    plan, mesh = compiled.plan, backend.mesh
    check_bytes(prof, plan, RUNS)
    layers = prof.layers()
    assert LAYERS - {"act"} <= set(layers) <= LAYERS | {""}, (
        "XLA may leave a layer to its neighbours"
    )
    np.testing.assert_allclose(sum(row["share"] for row in layers.values()), 1.0)
    for row in layers.values():
        assert row["seconds"] == row["forward"] + row["backward"] > 0
    assert layers["up"]["forward"] > 0 < layers["up"]["backward"]
    found = prof.device_utilization_map()
    assert found.shape == mesh.shape
    assert ((found > 0) & (found <= 1)).all()
    summary, devices = prof.summary(), prof.device_summary()
    assert f"{RUNS} runs of 1 plan" in summary
    assert "layer up" in summary
    assert "overhead of the profile" in summary
    assert len([line for line in devices.splitlines() if line[:1].isdigit()]) == mesh.size
    return prof


def check_bytes(prof: ml.Profile, plan: Plan, runs: int) -> None:
    """Assert that a profile tells the bytes of a plan."""
    planned = {key: runs * moved for key, moved in plan.bytes_by_axis().items()}
    stats, by_axis = prof.communication_stats(), prof.communication_by_dimension()
    assert stats["total_bytes"] == sum(planned.values())
    assert sum(stats["by_kind"].values()) == sum(stats["by_layer"].values()) == stats["total_bytes"]
    assert set(stats["by_layer"]) <= LAYERS
    names = plan.mesh.names
    assert {
        key: moved for key, moved in by_axis.items() if moved and not key.endswith("_parallel")
    } == planned
    assert {by_axis[f"{name}_parallel"] for name in names} == {
        planned.get(name, 0) for name in names
    }
    kinds: dict[str, int] = {}
    for row in plan.collectives():
        kinds[row.kind] = kinds.get(row.kind, 0) + runs * row.bytes * row.times
    assert stats["by_kind"] == kinds
    graph = prof.communication_graph()
    assert graph.matrix.shape == (plan.mesh.size, plan.mesh.size)
    assert (graph.total_bytes > 0) == bool(planned)
