"""Ids and targets out of range are one clear error on every backend, where values can be looked at."""

from __future__ import annotations

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P
from mithril.errors import ShapeError

from tests.conformance.engines import BACKENDS, LOCKSTEP, opened
from tests.profiles import quick

pytestmark = pytest.mark.parametrize("backend", BACKENDS)
ROWS, CLASSES = 7, 5
IDS, TARGETS = np.int32([[1, 6, 2]]), np.int32([[0, 4, 2]])
NO_CLASS = r"cross_entropy has targets from 0 to 9 for 5 classes; targets must lie in \[0, 5\); .* \(in 'loss', test_host_indices.py"
NO_ROW = r"take meets id 7; ids must lie in 0…6; .* \(in 'emb', test_host_indices.py"


def make_model(ignored: int | None = None) -> ml.Model:
    model = ml.Model()
    model |= ml.Embedding(ROWS, 4, name="emb")(input="ids", output="features")
    model += ml.Linear(CLASSES, name="head")(output="logits")
    model += ml.CrossEntropy(ignore_index=ignored, name="loss")(target="target", output="total")
    return model


def compiled_on(backend: str, ignored: int | None = None, **mesh: int) -> ml.CompiledModel:
    model = make_model(ignored)
    if mesh:
        model.shard({"emb.weight": P("tensor"), "head.weight": P("tensor")})
    return ml.compile(model, opened(backend, **mesh))


def loss(compiled: ml.CompiledModel, ids: object, target: object) -> float:
    params = compiled.randomize_params(0)
    return compiled.evaluate(params, {"ids": ids, "target": target})["total"].item()


@quick(lambda backend, mesh: backend != LOCKSTEP and not mesh)
@pytest.mark.parametrize("mesh", [{}, {"tensor": 2}], ids=str)
def test_host_arrays_are_looked_at(backend: str, mesh: dict[str, int]) -> None:
    compiled = compiled_on(backend, **mesh)
    expected = loss(compiled, IDS, TARGETS)
    for ids, target, text in (
        (IDS, np.int32([[0, 9, 2]]), NO_CLASS),
        (np.int64([[1, 7, 2]]), TARGETS, NO_ROW),
        (np.int32([[1, -1, 2]]), TARGETS, "take meets id -1; ids must lie in 0…6"),
    ):
        with pytest.raises(ShapeError, match=text):
            loss(compiled, ids, target)
    assert loss(compiled, IDS, TARGETS) == expected


def test_what_is_ignored_is_no_mistake(backend: str) -> None:
    compiled = compiled_on(backend, ignored=-100)
    few = loss(compiled, IDS, np.int32([[0, -100, 2]]))
    assert np.isfinite(few)
    assert few != loss(compiled, IDS, TARGETS)
    with pytest.raises(ShapeError, match=NO_CLASS):
        loss(compiled, IDS, np.int32([[0, -100, 9]]))


def test_what_lies_on_devices_is_not_looked_at(backend: str) -> None:
    compiled = compiled_on(backend)
    device = opened(backend)
    assert np.isnan(loss(compiled, device.array([[1, 7, 2]]), device.array(TARGETS)))
    assert np.isnan(loss(compiled, device.array(IDS), device.array([[0, 9, 2]])))


WAYS = {
    "one device": ({}, {}, ml.optim.sgd(0.1)),
    "micro-batches": ({"data": 2}, {"accumulate": 2, "zero": 1}, ml.optim.sgd(0.1)),
    "parts": ({"data": 2}, {}, ml.optim.diloco(ml.optim.sgd(0.1), every=2, axis="data")),
}


@quick(lambda backend, way: backend in ("mlx", LOCKSTEP) or way == "one device")
@pytest.mark.parametrize("way", WAYS)
def test_steps_look_at_batches_before_they_take_the_state(backend: str, way: str) -> None:
    mesh, options, optimizer = WAYS[way]
    on = opened(backend, **mesh)
    spec = P("data") if mesh else None
    shapes = {name: ml.TensorSpec((4, 3), "int32", spec) for name in ("ids", "target")}
    step = ml.train_step(make_model(), on, optimizer, loss="total", shapes=shapes, **options)
    ids, target = np.repeat(IDS, 4, 0), np.repeat(TARGETS, 4, 0)
    state = step.init(seed=0)
    for name, wrong, text in (
        ("target", 9, NO_CLASS), ("ids", 7, NO_ROW), ("ids", -1, "take meets id -1; ids must lie"),
    ):  # fmt: skip
        batch = {"ids": ids.copy(), "target": target.copy()}
        batch[name][3, 1] = wrong
        with pytest.raises(ShapeError, match=text):
            step(state, batch)
    state, metrics = step(state, {"ids": ids, "target": target})
    assert np.isfinite(metrics["total"].item())
    there = {
        "ids": on.array(batch["ids"], sharding=spec),
        "target": on.array(target, sharding=spec),
    }
    _, metrics = step(state, there)  # on devices: nobody waits for them
    assert np.isnan(metrics["total"].item())


def test_functions_look_at_what_they_choose_by(backend: str) -> None:
    @ml.jit
    def pick(table, ids):
        return mnp.take(table, ids[:, 1:].reshape(-1) + 1)

    table = opened(backend).array(np.arange(6, dtype=np.float32))
    found = pick(table, np.int32([[99, 0, 4], [99, 1, 2]]))  # what is cut off is nobody's index
    assert found.numpy().tolist() == [1.0, 5.0, 2.0, 3.0]
    with pytest.raises(ShapeError, match=r"take meets id 6; .* \(in 'pick', test_host_indices.py"):
        pick(table, np.int32([[0, 0, 5]]))

    @ml.jit
    def pick_along(table, ids):
        return mnp.take_along(table, ids, axis=0)

    with pytest.raises(ShapeError, match="take_along meets id 6; ids must lie in 0…5"):
        pick_along(table, np.int32([6]))
