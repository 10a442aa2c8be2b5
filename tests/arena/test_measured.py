"""What is measured: allocations of a step, the block's address, and the peak beside the plan's."""

from __future__ import annotations

import gc
import re
import threading
import tracemalloc
from typing import Any

import mithril as ml
import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.arena.models import WIDTH, batch, mlp, repeated
from tests.torch.test_eject import loaded, run_file, step


def compile_torch(planning: str, model: ml.Model | None = None) -> Any:
    return ml.compile(model or mlp(), ml.TorchBackend(device="cpu"), memory_planning=planning)


def run_once(compiled: Any, params: Any, inputs: Any) -> Any:
    return compiled.evaluate(params, inputs, {"loss": np.float32(1)})


def count_allocations(compiled: Any, inputs: dict[str, np.ndarray]) -> tuple[int, int]:
    """Return how often PyTorch takes memory in a step, and the most bytes that it takes."""
    params = compiled.randomize_params(seed=1)
    given = {name: compiled.backend.array(x) for name, x in inputs.items()}
    run_once(compiled, params, given)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = run_once(compiled, params, given)
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    del kept
    return sum(event.nbytes() > 0 for event in events), most


@pytest.mark.parametrize("model", [mlp, repeated])
def test_a_step_takes_memory_less_often(model: Any) -> None:
    inputs = batch(0, 1 if model is mlp else WIDTH)
    often, most = count_allocations(compile_torch("dynamic", model()), inputs)
    seldom, least = count_allocations(compile_torch("greedy", model()), inputs)
    assert seldom < 0.9 * often  # without an arena results are made over what nobody reads again
    assert least < most


def test_the_peak_on_torch_is_what_the_plan_says() -> None:
    compiled = compile_torch("greedy")
    params = compiled.randomize_params(seed=1)
    inputs = batch(0, 1)
    run_once(compiled, params, inputs)
    with ml.profile(compiled.backend) as seen:
        run_once(compiled, params, inputs)
    (row,) = compiled.plan.memory().rows
    (use,) = seen._known[0].runs[0].memory
    assert row.arena is not None
    assert row.arena.size < use.peak <= 1.02 * row.peak
    assert use.peak == pytest.approx(row.peak, rel=0.05)


def test_the_block_is_made_once_and_used_again() -> None:
    compiled = compile_torch("greedy")
    params = compiled.randomize_params(seed=1)
    first = run_once(compiled, params, batch(0, 1))
    executable = compiled._evaluator.latest.executable
    block = executable.names["arena"]
    (row,) = compiled.plan.memory().rows
    assert row.arena is not None
    assert block.numel() == row.arena.size
    address = block.data_ptr()
    second = run_once(compiled, params, batch(0, 1))
    assert compiled._evaluator.latest.executable is executable
    assert executable.names["arena"].data_ptr() == address
    for found in (first, second):
        for results in found:
            for x in results.values():
                start = x.torch().data_ptr()
                assert not address <= start < address + block.numel()


def test_a_file_without_mithril_has_the_arena_too(tmp_path: Any) -> None:
    compiled = compile_torch("greedy")
    params = compiled.randomize_params(seed=1)
    expected = run_once(compiled, params, batch(0, 1))[0]["loss"].numpy()
    file = compiled.eject(tmp_path / "step.py")
    assert "arena = make_arena(" in file.read_text()
    given = {**params, **batch(0, 1), "output_gradients.loss": np.ones((), np.float32)}
    tensors = {
        port.name: torch.as_tensor(_to_numpy(given[port.name])) for port in compiled.plan.inputs
    }
    torch.save(tensors, tmp_path / "in.pt")
    paths = {"--tensors": tmp_path / "in.pt", "--save": tmp_path / "out.pt"}
    step(run_file(file), **paths)
    assert loaded(tmp_path / "out.pt")["loss"].numpy() == expected


def _to_numpy(x: Any) -> np.ndarray:
    return x if isinstance(x, np.ndarray) else x.numpy()


@pytest.mark.slow
def test_xla_takes_what_the_plan_says() -> None:
    jax = pytest.importorskip("jax")

    def measure(planning: str) -> tuple[Any, int, list[str]]:
        compiled = ml.compile(mlp(), ml.JaxBackend(), memory_planning=planning)
        run_once(compiled, compiled.randomize_params(seed=1), batch(0, 1))
        executable = compiled._evaluator.latest.executable
        ports = compiled.plan.inputs
        types = [jax.ShapeDtypeStruct(p.type.shape, p.type.dtype.numpy) for p in ports]
        made = executable.jitted.lower(*types).compile()
        # Instructions alone: tables of files and stack frames tell who called.
        text = re.sub(r", metadata=\{[^}]*\}", "", made.as_text())
        return (
            compiled.plan.memory().rows[0],
            made.memory_analysis().temp_size_in_bytes,
            [line for line in text.splitlines() if " = " in line],
        )

    row, block, text = measure("greedy")
    assert row.arena is not None
    assert block == pytest.approx(row.arena.size, rel=0.2)
    other, same_block, same_text = measure("dynamic")
    assert other.arena is None
    assert (same_block, same_text) == (block, text), "XLA lays out what it compiles in any case"


@pytest.mark.slow
def test_numpy_holds_less_besides_its_arena() -> None:
    def measure(planning: str) -> int:
        backend = ml.NumpyBackend()
        compiled = ml.compile(mlp(), backend, memory_planning=planning)
        params, inputs = compiled.randomize_params(seed=1), batch(0, 1)
        given = {name: backend.array(x) for name, x in inputs.items()}
        run_once(compiled, params, given)
        gc.collect()
        tracemalloc.start()
        try:
            kept = run_once(compiled, params, given)
            return tracemalloc.get_traced_memory()[1]
        finally:
            del kept
            tracemalloc.stop()

    assert measure("greedy") < 0.7 * measure("dynamic")


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_calls_from_several_threads_do_not_write_into_one_another(name: str) -> None:
    backend = ml.open_backend(name)
    compiled = ml.compile(mlp(), backend, memory_planning="greedy")
    params = compiled.randomize_params(seed=1)
    batches = [batch(seed, 1) for seed in range(4)]
    alone = [run_once(compiled, params, inputs)[0]["loss"].numpy() for inputs in batches]
    found: list[Any] = [[] for _ in batches]

    def work(number: int) -> None:
        for _ in range(10):
            made = run_once(compiled, params, batches[number])
            found[number].append(made[0]["loss"].numpy())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for expected, losses in zip(alone, found, strict=True):
        assert len(losses) == 10
        assert all(np.array_equal(loss, expected) for loss in losses)
