"""Axes in any order give the same results, and arrays go from one order to another."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import mithril as ml
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril.mesh import Mesh, P
from mithril.report.difference import compare

from tests.conformance.engines import BACKENDS, opened
from tests.profiles import scaled
from tests.topology.models import (
    ALONE,
    ATOL,
    GIVEN,
    NODES,
    RTOL,
    SPLIT,
    T,
    X,
    check_same,
    evaluated,
    perceptron,
    staged,
)

# ------------------------------------------------------------------ any order


@settings(max_examples=scaled(60), deadline=None)
@given(st.data())
def test_results_are_the_same_in_any_order(data: st.DataObject) -> None:
    sizes = {n: data.draw(st.integers(1, 3)) for n in ("data", "tensor", "pipe")}
    mesh = Mesh(sizes, order=data.draw(st.permutations(tuple(sizes))))
    check_same(evaluated(perceptron(**SPLIT), ml.NumpyBackend(mesh)), ALONE)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("order", [("tensor", "data"), ("data", "tensor")])
def test_results_are_the_same_on_every_backend(backend: str, order: tuple[str, ...]) -> None:
    reordered = opened(backend, data=2, tensor=2).reorder(order)
    assert reordered.mesh == GIVEN.reorder(order)
    check_same(evaluated(perceptron(**SPLIT), reordered), ALONE)


@pytest.mark.parametrize("backend", ["numpy", *BACKENDS])
def test_each_device_has_what_its_coordinates_say(backend: str) -> None:
    first = ml.NumpyBackend(GIVEN) if backend == "numpy" else opened(backend, data=2, tensor=2)
    reordered = first.reorder(("tensor", "data"))
    for where, rows in ((first, [0, 0, 4, 4]), (reordered, [0, 4, 0, 4])):
        x = where.array(X, sharding=P("data"))
        assert [shard.index[0].start for shard in x.addressable_shards] == rows
        for shard in x.addressable_shards:
            np.testing.assert_array_equal(shard.data, X[shard.index])
        np.testing.assert_array_equal(x.numpy(), X)


def test_jax_has_the_devices_where_the_order_says() -> None:
    jax = pytest.importorskip("jax")
    backend = opened("jax", data=2, tensor=2).reorder(("tensor", "data"))
    x = backend.array(X, sharding=P("data")).jax()
    assert [d.id for d in x.sharding.mesh.devices.flat] == [0, 2, 1, 3]
    rows = {shard.device.id: shard.index[0].start or 0 for shard in x.addressable_shards}
    assert rows == {0: 0, 1: 4, 2: 0, 3: 4}
    np.testing.assert_array_equal(jax.device_get(x), X)
    adopted = backend.array(x + 1)
    assert adopted.sharding.mesh == backend.mesh
    assert adopted.sharding.spec == P("data", None)


def test_functions_of_as_jax_take_arrays_of_either_order() -> None:
    pytest.importorskip("jax")
    backend = opened("jax", data=2, tensor=2)
    specs = dict.fromkeys(("x", "t"), P("data"))
    compiled = ml.compile(
        perceptron(), backend.reorder(("tensor", "data")), in_shardings=specs,
        shapes={"x": X.shape, "t": T.shape},
    )  # fmt: skip
    function, params = compiled.as_jax(), compiled.randomize_params(3)
    for where in (backend, compiled.backend):
        inputs = {n: where.array(v, sharding=P("data")) for n, v in (("x", X), ("t", T))}
        for passed in (inputs, {n: x.jax() for n, x in inputs.items()}):
            loss = np.asarray(function(params, passed)["loss"])
            np.testing.assert_allclose(loss, ALONE["loss"], RTOL, ATOL)


def test_torch_exchanges_in_the_groups_of_the_mesh(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    backend = opened("torch", data=2, tensor=2).reorder(("tensor", "data"))
    shapes = {"x": ml.TensorSpec(X.shape, sharding=P("data")), "t": T.shape}
    compiled = ml.compile(perceptron(**SPLIT), backend, shapes=shapes)
    text = compiled.code()
    compiled.eject(tmp_path / "step.py")  # whose ports have ranks row-major by the axes
    assert "{'data': 2, 'tensor': 2}, (0, 2, 1, 3))" in (tmp_path / "step.py").read_text()
    assert "make_group('data', [[0, 1], [2, 3]])" in text
    assert "make_group('tensor', [[0, 2], [1, 3]])" in text


@pytest.mark.parametrize("backend", ["numpy", *BACKENDS])
def test_stages_run_on_the_devices_at_their_coordinates(backend: str) -> None:
    sizes = {"pipeline": 2, "data": 2}
    first = ml.NumpyBackend(Mesh(sizes)) if backend == "numpy" else opened(backend, **sizes)
    wanted = evaluated(staged(), ml.NumpyBackend(), placed=False)
    reordered = first.reorder(("data", "pipeline"))
    check_same(evaluated(staged(), reordered, placed=False), wanted)
    compiled = ml.compile(staged(), reordered, shapes={"x": X.shape, "t": T.shape})
    stages = {stage.devices for stage in compiled.plan.stages}
    assert {(0, 2), (1, 3)} <= stages


def test_layers_on_devices_stay_on_them() -> None:
    model = ml.Model()
    model |= ml.Linear(8, device_id=1, name="up")(input="x", output="h")
    model |= ml.Linear(4, device_id=2, name="down")(input="h", output="y")
    for order in permutations(GIVEN.names):
        backend = ml.NumpyBackend(GIVEN.reorder(order))
        plan = ml.compile(model, backend, shapes={"x": X.shape}, inference=True).plan
        assert [stage.devices for stage in plan.stages] == [(1,), (2,)]


def test_a_training_step_goes_on_in_another_order(tmp_path: Path) -> None:
    backend = ml.NumpyBackend(GIVEN)
    shapes = {n: ml.TensorSpec(v.shape, sharding=P("data")) for n, v in (("x", X), ("t", T))}
    losses = []
    for where in (backend, backend.reorder(("tensor", "data"))):
        step = ml.train_step(
            perceptron(**SPLIT), where, ml.optim.adamw(0.01), shapes=shapes, zero=3
        )
        state = step.init(seed=1)
        ml.save(tmp_path / f"{len(losses)}", state)
        state, _ = step(state, {"x": X, "t": T})
        _, metrics = step(state, {"x": X, "t": T})
        losses.append(float(metrics["loss"]))
        last = step, step.init(seed=2)
    assert losses[0] == pytest.approx(losses[1], rel=RTOL)
    step, like = last
    _, metrics = step(ml.load(tmp_path / "0", like=like), {"x": X, "t": T})
    assert np.isfinite(float(metrics["loss"]))


def test_plans_in_two_orders_differ_in_their_meshes() -> None:
    plans = [
        ml.compile(perceptron(**SPLIT), ml.NumpyBackend(mesh), shapes={"x": X.shape, "t": T.shape})
        for mesh in (GIVEN, GIVEN.reorder(("tensor", "data")))
    ]
    found = compare(*(compiled.plan for compiled in plans))
    assert not found.is_empty
    line = "mesh: Mesh(data=2, tensor=2) -> Mesh(data=2, tensor=2, order=('tensor', 'data'))"
    assert str(found).splitlines()[0] == line


# ------------------------------------------------------------------ between two orders


def test_arrays_go_from_one_order_to_another() -> None:
    backend = ml.NumpyBackend(GIVEN)
    other = backend.reorder(("tensor", "data"))
    assert other.reorder(("data", "tensor")) is backend
    here, there = backend.array(X, sharding=P("data")), other.array(X, sharding=P("tensor"))
    both = here + there
    assert both.backend is backend
    np.testing.assert_array_equal(both.numpy(), 2 * X)
    np.testing.assert_array_equal((there + here).numpy(), 2 * X)
    function = ml.jit(lambda a, b: (a * b).sum())
    assert function(here, there).numpy() == pytest.approx(float((X * X).sum()), rel=RTOL)
    assert other.to_numpy(here).tolist() == X.tolist()
    moved = other.array(X, sharding=here.sharding)
    assert moved.sharding.mesh == other.mesh
    part = backend.array(X[:2], sharding=ml.Sharding.of(GIVEN.part({"data": 1}), P("tensor"), 2))
    brought = other.own(part, "x")
    assert brought.sharding.mesh.devices == (1, 3)
    np.testing.assert_array_equal(brought.numpy(), X[:2])


def test_what_nobody_placed_is_moved_once() -> None:
    backend = ml.NumpyBackend(GIVEN)
    other = backend.reorder(("tensor", "data"))
    x = backend.array(X)
    assert other.own(x, "x") is x
    assert x.backend is other
    placed = backend.array(X, sharding=P("data"))
    assert other.own(placed, "x") is not placed
    assert placed.backend is backend


def test_a_function_captures_an_array_of_another_order() -> None:
    backend = ml.NumpyBackend(GIVEN)
    other = backend.reorder(("tensor", "data"))
    kept = backend.array(X, sharding=P("data"))
    function = ml.jit(lambda x: x + kept)
    for where in (backend, other, backend):
        found = function(where.array(X, sharding=P("tensor")))
        np.testing.assert_array_equal(found.numpy(), 2 * X)


def test_a_profile_measures_what_runs_in_any_order() -> None:
    backend = ml.NumpyBackend(GIVEN, hardware=NODES, network_topology_aware=True)
    compiled = ml.compile(perceptron(), backend)
    with ml.profile(backend) as profile:
        compiled.evaluate(compiled.randomize_params(), {"x": X, "t": T})
    assert "evaluate(), 1 run" in str(profile)
