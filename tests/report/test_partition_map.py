"""The partition map: who runs and holds what, as data."""

import time

import mithril as ml
from mithril import P


def list_layers(model: ml.Model, mesh: ml.Mesh) -> list[str]:
    shapes = {"input": ml.TensorSpec((4, 8), sharding=P("data"))}
    compiled = ml.compile(model, ml.NumpyBackend(mesh), shapes=shapes)
    return list(compiled.get_partition_map()["layers"])


def test_layers_that_are_named_as_ops_are_are_listed() -> None:
    model = ml.Model()
    for number in range(2):
        block = ml.Model(name=f"block_{number}")
        block += ml.Linear(8, name="up")
        block += ml.Relu(name="relu")
        block += ml.Gelu(name="gelu")
        model += block
    assert list_layers(model, ml.Mesh(data=2)) == [
        f"block_{number}.{name}" for number in range(2) for name in ("up", "relu", "gelu")
    ]


def test_a_parameter_that_moves_is_no_layer() -> None:
    model = ml.Model()
    model += ml.Linear(8, sharding={"weight": P("data", None)}, name="up")
    model += ml.Linear(8, at_rest=P("data"), name="down")
    assert list_layers(model, ml.Mesh(data=2)) == ["up", "down"]


def test_a_map_of_many_devices_takes_one_pass() -> None:
    model = ml.Model()
    for _ in range(12):
        model += ml.Linear(8)
    backend = ml.NumpyBackend(ml.Mesh(data=4096))
    compiled = ml.compile(model, backend, shapes={"input": (4096, 8)})
    started = time.process_time()
    devices = compiled.get_partition_map()["devices"]
    assert (
        time.process_time() - started < 4
    )  # 8 s, and more, if each device looked through all lists
    assert len(devices) == 4096
    assert len(devices[4095]["layers"]) == 12
    assert len(devices[4095]["parameters"]) == 24
    assert devices[4095]["bytes"] == 12 * (8 * 8 + 8) * 4
