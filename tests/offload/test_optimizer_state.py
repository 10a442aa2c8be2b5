"""The state of an optimiser in the host arena between steps."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril.engine.host_arena import host_arena, lies_in_arena
from mithril.errors import OptionError, PlanError
from mithril.trees import flatten

from tests.conformance.engines import BACKENDS, opened
from tests.offload.limited_step import OFFLOADED, make_step
from tests.offload.models import ROWS, WIDTH, batch, layers, train_uneven_stages
from tests.tolerances import TOLERANCE

STATE = {"offload_optimizer": True}
SHAPES = dict.fromkeys(("x", "t"), (ROWS, WIDTH))
KEPT = [
    backend for backend in ["numpy", *BACKENDS] if getattr(backend, "values", ("",))[0] != "jax"
]
RTOL, ATOL = TOLERANCE["float32"]


def make(on: ml.Backend, **options: Any) -> ml.TrainStep:
    return ml.train_step(layers(2), on, ml.optim.adamw(1e-2), shapes=SHAPES, **options)


def leaves_of(tree: Any) -> list[Any]:
    leaves: list[Any] = []
    flatten(tree, leaves)
    return leaves


def run(step: ml.TrainStep, steps: int = 3) -> tuple[Any, list[np.ndarray]]:
    state = step.init(seed=0)
    for _ in range(steps):
        state, metrics = step(state, batch())
    arrays = [*state.params.values(), *leaves_of(state.optimizer), metrics["loss"]]
    return state, [x.numpy() for x in arrays]


@pytest.mark.slow
@pytest.mark.parametrize("axes", [{}, {"data": 2}], ids=str)
@pytest.mark.parametrize("backend", KEPT)
def test_steps_are_those_without(backend: str, axes: dict[str, int]) -> None:
    on = opened(backend, **axes)
    _, expected = run(make(on, zero=1 if axes else 0))
    state, found = run(make(on, zero=1 if axes else 0, **STATE))
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=RTOL, atol=ATOL)
    del state
    gc.collect()
    assert host_arena("memory").held == 0


def test_state_lies_in_the_arena_and_not_on_the_device() -> None:
    on = opened("numpy")
    plain, moved = make(on), make(on, **STATE)
    state, _ = run(moved)
    moments = [x for x in leaves_of(state.optimizer) if x.type.rank]
    assert moments
    assert all(lies_in_arena(x.shards[0]) for x in moments)
    total = sum(x.type.nbytes for x in moments)
    before, after = plain.memory().fullest, moved.memory().fullest
    assert after.parts["optimizer"] <= before.parts["optimizer"] - total
    assert total <= after.parts["host"]
    assert before.peak - after.peak >= 0.95 * total


def test_state_is_an_ordinary_tree(tmp_path: Path) -> None:
    on = opened("numpy")
    moved = make(on, **STATE)
    state, _ = run(moved)
    ml.save(tmp_path / "state", state)
    loaded = ml.load(tmp_path / "state", like=state)
    after, _ = moved(loaded, batch())
    expected, _ = moved(run(moved)[0], batch())
    for a, b in zip(leaves_of(after.optimizer), leaves_of(expected.optimizer), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    doubled = (leaves_of(after.optimizer)[-1] * 2).numpy()  # it may be computed with
    np.testing.assert_array_equal(doubled, 2 * leaves_of(after.optimizer)[-1].numpy())


@pytest.mark.slow
def test_stages_keep_their_state_on_the_host() -> None:
    from tests.offload.models import pipeline

    on = opened("numpy", stage=2)
    made = [
        ml.train_step(pipeline(), on, ml.optim.adamw(1e-2), shapes=SHAPES, **options)
        for options in ({}, STATE)
    ]
    expected, found = (run(step)[1] for step in made)
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=RTOL, atol=ATOL)


@pytest.mark.parametrize("backend", KEPT)
def test_states_of_stages_need_not_divide(backend: str) -> None:
    axes = {"data": 2, "pipeline": 2}
    expected = train_uneven_stages(opened("numpy", **axes))
    np.testing.assert_allclose(train_uneven_stages(opened(backend, **axes)), expected, rtol=RTOL)


# ------------------------------------------------------------------ more than the memory there is


def start(*arguments: object, folder: Path) -> str:
    """Run a step under a limit of memory, and return what it prints."""
    path = Path(__file__).with_name("limited_step.py")
    told = {**os.environ, "TMPDIR": str(folder), "OPENBLAS_NUM_THREADS": "1"}
    told["MALLOC_MMAP_THRESHOLD_"] = "65536"  # what is freed goes back to the system
    done = subprocess.run(
        [sys.executable, path, *map(str, arguments)], env=told, capture_output=True, text=True,
        check=True, timeout=300,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="the limit does not count mapped files on Linux"
)
def test_a_step_of_three_times_the_memory_finishes_with_files(tmp_path: Path) -> None:
    """The arena of a device is what a process may have for itself; three times that is needed."""
    plain, moved = make_step().memory(), make_step(**OFFLOADED).memory()
    limit = plain.peak // 3 >> 20
    assert plain.peak >= 3 * (limit << 20)
    assert moved.peak < limit << 20
    assert start("plain", limit, folder=tmp_path) == "out of memory"
    expected = start("plain", 8 * limit, folder=tmp_path)
    assert float(start("offloaded", limit, folder=tmp_path)) == pytest.approx(float(expected))
    assert not list(tmp_path.iterdir())  # files have no names


def test_files_have_no_names_when_a_process_is_killed(tmp_path: Path) -> None:
    script = (
        "import numpy as np, os, signal\n"
        "from mithril.engine.host_arena import host_arena\n"
        "x = host_arena('file').hold(np.ones(1 << 20))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    told = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=told, check=False)
    assert done.returncode == -9
    assert not list(tmp_path.iterdir())


def test_no_room_for_files_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fail, raising=False)
    with pytest.raises(ml.errors.BackendError) as caught:
        host_arena("file").hold(np.ones(100 << 20, np.uint8))
    text = str(caught.value)
    assert text.startswith("host arena holds 0 B and finds no room for 100 MiB more in files in ")
    assert text.endswith(
        f"files in {tempfile.gettempdir()} (No space left on device); offload less, or set TMPDIR "
        f"to a directory with more room"
    )


# ------------------------------------------------------------------ what is refused


def test_backends_that_keep_nothing_on_the_host_refuse() -> None:
    pytest.importorskip("mithril_jax")
    with pytest.raises(OptionError) as caught:
        make(opened("jax"), **STATE)
    assert str(caught.value) == (
        "offload_optimizer=True is not available on backend 'jax', whose arrays lie on its devices "
        "between programs; split the state with zero=1 instead"
    )


def test_a_state_of_numbers_alone_is_refused() -> None:
    with pytest.raises(PlanError) as caught:
        ml.train_step(
            layers(2), ml.NumpyBackend(), ml.optim.sgd(0.1), shapes=SHAPES, offload_optimizer=True
        )
    assert str(caught.value) == (
        "offload_optimizer=True finds nothing to offload: the optimiser's state has 2 numbers and "
        "no moments; leave it out"
    )


def test_the_option_is_a_flag() -> None:
    with pytest.raises(OptionError, match="offload_optimizer='yes' is neither True nor False"):
        make(opened("numpy"), offload_optimizer="yes")
