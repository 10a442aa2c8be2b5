"""The option `memory_planning`: what it does to programs, on whom, and what it is refused for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P
from mithril.cost import SIMULATED, predict_memory
from mithril.plan.serialize import plan_from_json, plan_to_json
from mithril.runtime.planned import plan_backend

from tests.arena.models import BATCH, WIDTH, batch, mlp, pipeline, repeated
from tests.profiles import quick

Make = Callable[[], ml.Backend]
OPEN: dict[str, Make] = {
    "numpy": ml.NumpyBackend,
    "numpy 2x2": lambda: ml.NumpyBackend(ml.Mesh(data=2, tensor=2)),
    "torch": lambda: ml.TorchBackend(device="cpu"),
    "torch 2": lambda: ml.TorchBackend(ml.Mesh(data=2), device="cpu"),
}
MODELS = {
    "layers": (mlp, 1, {}),
    "dropout": (lambda: mlp(2, dropout=0.5), 1, {}),
    "loop": (repeated, WIDTH, {}),
    "resting": (repeated, WIDTH, {"at_rest": P("data")}),
    "micro-batches": (repeated, WIDTH, {"accumulate": 4}),
}


def evaluate(model: ml.Model, out: int, backend: ml.Backend, **options: Any) -> list[Any]:
    """Return outputs and gradients of three batches, read after the last one."""
    compiled = ml.compile(model, backend, **options)
    params = compiled.randomize_params(seed=1)
    kept = [
        compiled.evaluate(params, batch(seed, out), {"loss": np.float32(1)}, seed=seed)
        for seed in range(3)
    ]
    return [{n: x.numpy() for found in pair for n, x in found.items()} for pair in kept]


def assert_same(one: list[Any], other: list[Any]) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        assert all(np.array_equal(a[name], b[name]) for name in a)


@quick(lambda name, model: name == "numpy" or (name, model) == ("torch", "loop"))
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", OPEN)
def test_results_are_the_same_and_stay_so(name: str, model: str) -> None:
    make, out, options = MODELS[model]
    backend = OPEN[name]()
    if "data" not in backend.mesh.names:
        options = {key: value for key, value in options.items() if key != "at_rest"}
    expected = evaluate(make(), out, backend, memory_planning="dynamic", **options)
    assert_same(evaluate(make(), out, backend, memory_planning="greedy", **options), expected)


@quick(lambda name, schedule: name == "numpy" and schedule == "1f1b")
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_micro_batches_in_flight_are_not_written_over(name: str, schedule: str) -> None:
    backend = ml.open_backend(name, device_mesh=ml.Mesh(pipeline=2))
    options = {"pipeline_schedule": schedule}
    expected = evaluate(pipeline(), WIDTH, backend, **options)
    assert_same(evaluate(pipeline(), WIDTH, backend, memory_planning="greedy", **options), expected)


@quick(lambda name: name == "numpy")
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_steps_of_training_give_up_their_state(name: str) -> None:
    backend = ml.open_backend(name)

    def train(planning: str) -> list[np.ndarray]:
        shapes = {"x": (BATCH, WIDTH), "t": (BATCH, 1)}
        step = ml.train_step(
            mlp(), backend, ml.optim.adamw(0.01), shapes=shapes, memory_planning=planning
        )
        state, losses = step.init(seed=0), []
        for number in range(4):
            state, metrics = step(state, batch(number, 1))
            losses.append(metrics["loss"])
        kept = [*losses, *(state.params[name] for name in sorted(state.params))]
        return [x.numpy() for x in kept]

    for a, b in zip(train("dynamic"), train("greedy"), strict=True):
        assert np.array_equal(a, b)


def test_donated_inputs_are_given_up_and_results_kept() -> None:
    backend = ml.NumpyBackend()

    def run(planning: str) -> list[np.ndarray]:
        @ml.jit(backend=backend, donate=0, memory_planning=planning)
        def step(x: Any, y: Any) -> Any:
            z = mnp.exp(x) * y
            return mnp.tanh(z) + x, z.T

        x, kept = backend.array(np.linspace(0, 1, 12).reshape(3, 4).astype(np.float32)), []
        for _ in range(3):
            x, z = step(x, np.ones((3, 4), np.float32))
            kept.append(z)
        return [x.numpy(), *(z.numpy() for z in kept)]

    for a, b in zip(run("dynamic"), run("greedy"), strict=True):
        assert np.array_equal(a, b)


# ------------------------------------------------------------------ what a plan says


def memory(model: ml.Model, out: int, backend: ml.Backend, **options: Any) -> Any:
    shapes = {"x": (BATCH, WIDTH), "t": (BATCH, out)}
    return ml.compile(model, backend, shapes=shapes, **options).plan.memory()


def test_a_plan_shows_its_arena() -> None:
    found = memory(mlp(), 1, ml.NumpyBackend(), memory_planning="greedy")
    (row,) = found.rows
    assert row.arena is not None
    assert row.arena.size >= row.arena.bound > 0
    assert row.parts["arena"] == row.arena.size
    assert sum(row.parts.values()) == row.peak
    assert row.parts["activations"] < row.arena.size
    assert f"it is {row.arena.ratio:.3f} times that" in str(found)
    assert "no offsets take less than" in str(found)


def test_dynamic_is_the_default_and_has_no_arena() -> None:
    said = memory(mlp(), 1, ml.NumpyBackend(), memory_planning="dynamic")
    silent = memory(mlp(), 1, ml.NumpyBackend())
    assert said.rows == silent.rows
    assert silent.rows[0].arena is None
    assert silent.rows[0].parts["arena"] == 0
    assert "offsets" not in str(silent)


def test_stages_on_a_device_share_one_arena() -> None:
    backend = ml.NumpyBackend(ml.Mesh(pipeline=2))
    rows = memory(pipeline(), WIDTH, backend, memory_planning="greedy").rows
    assert [row.devices for row in rows] == [(0,), (1,)]
    assert all(row.arena is not None and row.parts["arena"] == row.arena.size for row in rows)


def test_a_plan_from_a_file_has_the_same_arena() -> None:
    compiled = ml.compile(mlp(), ml.NumpyBackend(), memory_planning="greedy",
                          shapes={"x": (BATCH, WIDTH), "t": (BATCH, 1)})  # fmt: skip
    again = plan_from_json(plan_to_json(compiled.plan))
    assert again.pricing is not None
    assert again.pricing.execution.in_arena == compiled.engine.execution.in_arena
    row = predict_memory(again, replace(SIMULATED, execution=again.pricing.execution)).rows[0]
    (first,) = compiled.plan.memory().rows
    assert row.arena is not None and first.arena is not None
    assert row.arena.size == first.arena.size


def test_an_arena_is_planned_for_devices_that_nobody_has() -> None:
    backend = plan_backend(ml.Mesh(data=64), "h100-sxm")
    (row,) = memory(repeated(), WIDTH, backend, memory_planning="greedy").rows
    assert len(row.devices) == 64
    assert row.arena is not None


# ------------------------------------------------------------------ refusals

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "an unknown way": (
        lambda: ml.compile(mlp(), ml.NumpyBackend(), memory_planning="gredy"),
        "memory_planning='gredy' does not exist; did you mean 'greedy'?; known: 'greedy', 'dynamic'",
    ),
    "a flag": (
        lambda: ml.compile(mlp(), ml.NumpyBackend(), memory_planning=True),
        "memory_planning=True does not exist; known: 'greedy', 'dynamic'",
    ),
    "a function": (
        lambda: ml.jit(lambda x: x, backend=ml.NumpyBackend(), memory_planning="static"),
        "memory_planning='static' does not exist",
    ),
    "torch.compile": (
        lambda: ml.compile(mlp(), ml.TorchBackend(jit=True), memory_planning="greedy"),
        "memory_planning='greedy' does not go with jit=True; PyTorch's compiler lays out memory by "
        "itself; leave one of them out",
    ),
    "fusions": (
        lambda: ml.compile(mlp(), ml.TorchBackend(jit="auto"), memory_planning="greedy"),
        "memory_planning='greedy' does not go with jit='auto'; PyTorch's compiler lays out memory",
    ),
    "torch in lockstep": (
        lambda: ml.compile(mlp(), ml.TorchBackend(executor="lockstep"), memory_planning="greedy"),
        "memory_planning='greedy' does not go with executor='lockstep'",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what: str) -> None:
    call, text = REFUSED[what]
    with pytest.raises(ml.OptionError) as caught:
        call()
    assert text in str(caught.value)


def test_mlx_decides_where_results_lie() -> None:
    pytest.importorskip("mlx.core")
    text = (
        "memory_planning='greedy' is not available on backend 'mlx'; MLX decides where a result "
        "lies when it computes it, and its functions write into no memory that is given"
    )
    with pytest.raises(ml.OptionError, match=text):
        ml.compile(mlp(), ml.MLXBackend(), memory_planning="greedy")
    evaluate(mlp(), 1, ml.MLXBackend(), memory_planning="dynamic")
