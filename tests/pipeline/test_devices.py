"""Layers that are placed on devices: any graph of them equals one device."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import P

from tests.pipeline.graphs import entering, graphs
from tests.pipeline.models import FEATURES, compared
from tests.profiles import scaled

MESHES = [ml.Mesh(data=2), ml.Mesh(data=4), ml.Mesh(data=2, tensor=2)]


@settings(max_examples=scaled(60))
@given(model=graphs(), mesh=st.sampled_from(MESHES), is_split=st.booleans())
def test_random_graphs_on_random_devices_equal_one_device(
    model: ml.Model, mesh: ml.Mesh, is_split: bool
) -> None:
    spec, inputs = P("data") if is_split else None, entering(model)
    compared(model, ml.NumpyBackend(mesh), inputs, spec=spec, differentiable=tuple(inputs))


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_placed_and_split_layers_in_one_model(mesh: ml.Mesh) -> None:
    axis = mesh.names[-1]
    model = ml.Model()
    model |= ml.Linear(12, sharding={"weight": P(axis, None)})(input="input", output="wide")
    model += ml.Relu()
    model += ml.Linear(FEATURES, device_id=1)
    model += ml.LayerNorm()
    model += ml.FeedForward(16, sharding={"up.weight": P(axis, None), "down.weight": P(None, axis)})
    model += ml.Linear(3, device_id=0)(output="output")
    x = np.random.default_rng(0).standard_normal((4, FEATURES)).astype(np.float32)
    compiled = compared(model, ml.NumpyBackend(mesh), {"input": x})
    held = {stage.name.split(" step")[0]: stage.devices for stage in compiled.plan.stages}
    assert held == {"device 0": (0,), "device 1": (1,), "mesh": tuple(range(mesh.size))}
    layers = compiled.get_partition_map()["layers"]
    assert layers["layer_norm_0"]["devices"] == [1]  # it runs where what it reads is made


def test_neighbours_on_one_device_are_one_segment() -> None:
    model = ml.Model()
    for device in (0, 0, 1, 1, 0, 0):
        model += ml.Linear(FEATURES, device_id=device)
    x = np.ones((2, FEATURES), np.float32)
    compiled = ml.compile(model, ml.NumpyBackend(ml.Mesh(data=2)))
    compiled.evaluate(compiled.randomize_params(), {"input": x})
    assert [(s.name, s.devices) for s in compiled.plan.stages] == [
        ("device 0 step 0", (0,)), ("device 1 step 1", (1,)), ("device 0 step 2", (0,)),
    ]  # fmt: skip
    sent = [(row.kind, row.bytes, row.scope) for row in compiled.plan.collectives()]
    assert sent == [("send", 64, "linear_1"), ("send", 64, "linear_3")]


def test_a_value_is_sent_to_a_device_once() -> None:
    model = ml.Model()
    model |= ml.Linear(FEATURES, device_id=0)(input="input", output="h")
    model |= ml.Relu(device_id=1)(input="h", output="one")
    model |= ml.Tanh(device_id=1)(input="h", output="two")
    compiled = compared(model, ml.NumpyBackend(ml.Mesh(data=2)), {"input": np.ones((2, 3), "f")})
    forward = [row for row in compiled.plan.collectives() if row.phase == "forward"]
    assert [(row.kind, row.cause.value) for row in forward] == [("send", "h")]


def test_parameters_live_on_the_device_of_their_layer() -> None:
    model = ml.Model()
    model += ml.Linear(FEATURES, device_id=0)
    model += ml.Linear(FEATURES, device_id=3)
    backend = ml.NumpyBackend(ml.Mesh(data=4))
    compiled = ml.compile(model, backend, shapes={"input": (2, FEATURES)})
    params = compiled.randomize_params()
    where = {n: [s.device for s in x.addressable_shards] for n, x in params.items()}
    assert where == {
        "linear_0.weight": ["simulated cpu 0"], "linear_0.bias": ["simulated cpu 0"],
        "linear_1.weight": ["simulated cpu 3"], "linear_1.bias": ["simulated cpu 3"],
    }  # fmt: skip


def test_device_out_of_range_names_layer_and_devices() -> None:
    with pytest.raises(ml.MeshError) as caught:
        ml.compile(
            ml.Linear(4, device_id=5), ml.NumpyBackend(ml.Mesh(data=4)), shapes={"input": (2, 3)}
        )
    assert "layer 'linear'" in str(caught.value)
    assert "is placed on device 5; Mesh(data=4) has devices 0 to 3" in str(caught.value)


def test_one_device_ignores_placements_and_says_so() -> None:
    compiled = ml.compile(ml.Linear(4, device_id=5), ml.NumpyBackend(), shapes={"input": (2, 3)})
    assert "annotations ignored, because the backend has one device: 1" in compiled.plan.notes
