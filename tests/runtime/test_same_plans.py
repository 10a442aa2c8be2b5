"""Processes of a job that are given something else are told so, before anything runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.plan import Plan
from mithril.runtime import processes, same_plans
from mithril.runtime.same_plans import check_same_plan, fingerprint

from tests.conformance.engines import BACKENDS
from tests.runtime.scripts import ROOT, launched, script

JOBS = [backend for backend in BACKENDS if "lockstep" not in backend.values[0]]
MESH, OVER_DATA = ml.Mesh(data=2), P("data")
Compare = Callable[..., None]


def plan_of(function: Callable[..., Any], *specs: ml.TensorSpec) -> Plan:
    return ml.jit(function, backend=ml.NumpyBackend(MESH)).plan(*specs)


def spec(*shape: int, dtype: str = "float32", sharding: P = OVER_DATA) -> ml.TensorSpec:
    return ml.TensorSpec(shape, dtype, sharding=sharding)


def total(x: Any) -> Any:
    return (x * 2).sum()


@pytest.fixture(autouse=True)
def job_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests are alone in theirs."""
    monkeypatch.setattr(processes, "_places", [])


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Compare:
    """Compare plans of the processes of a job as one of them, which is given first."""

    def compare(own: int, *plans: Plan) -> None:
        backend = ml.NumpyBackend(MESH)
        monkeypatch.setattr(type(backend.engine), "process_count", len(plans))
        monkeypatch.setattr(type(backend.engine), "process_index", own)
        rows = np.array([[i, *fingerprint(plan)] for i, plan in enumerate(plans)])
        monkeypatch.setattr(same_plans, "exchange", lambda backend, numbers: rows)
        check_same_plan(backend, "function 'f'", plans[own])

    return compare


def test_nothing_is_said_where_all_have_the_same(compare: Compare) -> None:
    compare(1, *(plan_of(total, spec(8, 4)) for _ in range(3)))


@pytest.mark.parametrize(
    ("here", "there", "told"),
    [
        (spec(6, 4), spec(8, 4), "x float32[6, 4] P('data', None)"),
        (spec(8, dtype="int32"), spec(8), "x int32[8] P('data')"),
        (spec(4, 4), spec(4, 4, sharding=P(None, "data")), "x float32[4, 4] P('data', None)"),
    ],
    ids=["shape", "dtype", "sharding"],
)
def test_other_arguments(
    here: ml.TensorSpec, there: ml.TensorSpec, told: str, compare: Compare
) -> None:
    mine, others = plan_of(total, here), plan_of(total, there)
    text = (
        f"function 'f' is called with {told} in process 1, and with others in processes 0, 2; "
        f"give every process of a job the same shapes, dtypes and shardings"
    )
    with pytest.raises(ml.BackendError, match=f"^{re.escape(text)}$"):
        compare(1, others, mine, others)
    with pytest.raises(ml.BackendError, match="in processes 0, 1, and with others in process 2;"):
        compare(0, mine, mine, others)


def test_other_computations(compare: Compare) -> None:
    plans = [plan_of(lambda x, k=k: (x * k).sum(), spec(8)) for k in (2.0, 3.0)]
    text = (
        "function 'f' computes in process 1 something else than in process 0, from x float32[8] "
        "P('data') in all of them; give every process of a job the same model, functions and "
        "options"
    )
    with pytest.raises(ml.BackendError, match=re.escape(text)):
        compare(1, *plans)


@pytest.mark.parametrize("answer", ["other data", "nothing"])
def test_others_that_are_somewhere_else(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have run such a plan before, and go on to its collectives."""

    def exchange(backend: ml.Backend, numbers: list[int]) -> np.ndarray:
        if answer == "nothing":
            raise ml.BackendError("rank 0 has lost another process")
        return np.array([[1065353216] * 4, numbers])

    backend = ml.NumpyBackend(MESH)
    monkeypatch.setattr(type(backend.engine), "process_count", 2)
    monkeypatch.setattr(same_plans, "exchange", exchange)
    why = (
        "rank 0 has lost another process" if answer == "nothing" else "they exchange something else"
    )
    text = (
        f"function 'f' is called with x float32[8] P('data') for the first time in process 0, and "
        f"other processes do not come to compare that: {why}; give every process of a job the "
        f"same shapes, dtypes and shardings in each call"
    )
    with pytest.raises(ml.BackendError, match=re.escape(text)):
        check_same_plan(backend, "function 'f'", plan_of(total, spec(8)))


def test_of_many_some_are_listed(compare: Compare) -> None:
    def add(*xs: Any) -> Any:
        return sum(x.sum() for x in xs)

    mine, others = (plan_of(add, *[spec(n)] * 12) for n in (4, 8))
    pattern = r"and 4 more in process 1, and with others in processes 0, 2, .* and 3 more; give"
    with pytest.raises(ml.BackendError, match=pattern):
        compare(1, others, mine, *[others] * 10)


def test_what_exchanges_nothing_may_run_in_one_process_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = ml.NumpyBackend(MESH)
    monkeypatch.setattr(type(backend.engine), "process_count", 2)
    monkeypatch.setattr(same_plans, "exchange", None)
    check_same_plan(backend, "function 'f'", plan_of(lambda x: x * 2, spec(8)))
    with pytest.raises(TypeError):
        check_same_plan(backend, "function 'f'", plan_of(total, spec(8)))


FINGERPRINTS = """
from mithril.runtime.same_plans import fingerprint
from tests.runtime.test_same_plans import list_plans
print(*map(fingerprint, list_plans()))
"""


def list_plans() -> list[Plan]:
    """Return plans of a model that is split, of one with a loop, and of one with stages."""
    backend = ml.NumpyBackend(ml.Mesh(data=2, tensor=2))
    model = ml.MultiHeadAttention(8, 2, weight_shard_spec=((0, None), (None, 0)))
    split = ml.compile(model, backend, shapes={"input": (4, 6, 8)})
    loop = ml.compile(ml.Repeat(ml.Linear(8), 3), backend, shapes={"input": (4, 8)})
    staged = ml.NumpyBackend(ml.Mesh(data=2, pipeline=2))
    stages = ml.compile(
        ml.Pipeline([ml.Linear(8), ml.Linear(4)], microbatch_size=2),
        staged,
        shapes={"input": (8, 6)},
    )
    return [split.plan, loop.plan, stages.plan]


@pytest.mark.slow
def test_fingerprints_are_the_same_in_every_run_of_python() -> None:
    told = [
        subprocess.run(
            [sys.executable, "-c", FINGERPRINTS],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        ).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1] != ""


JOB = """
name = sys.argv[1]
backend = ml.open_backend(name, ml.Mesh(data=4 if name == "jax" else 2))
rank, show = ml.process_index(), lambda *words: print(*words, flush=True)
def told_of(call, *given):
    try:
        return call(*given)
    except ml.BackendError as error:
        return f"BackendError: {error}"
total = ml.jit(lambda x: (x * 2).sum(), backend=backend)
ones, D = backend.ones, P("data")
show("shapes", told_of(total, ones(8, 4 + rank, sharding=D)))
show("dtypes", told_of(total, ones(8, dtype=["float32", "int32"][rank], sharding=D)))
show("shardings", told_of(total, ones(8, 8, sharding=[D, P(None, "data")][rank])))
show("numbers", told_of(ml.jit(lambda x: (x * (2 + rank)).sum(), backend=backend), ones(8, sharding=D)))
show("same", total(ones(8, sharding=D)).item())
if ml.is_main():
    show("alone", ml.jit(lambda x: x + 1, backend=backend)(ones(2)).numpy().tolist())
model = ml.Model()
model += ml.Linear(4)
model += ml.Mean()
compiled = ml.compile(model, backend)
for rows in (8, 12 + 4 * rank):
    x = backend.array(np.ones((rows, 3), np.float32), sharding=D)
    params = compiled.randomize_params()
    made = told_of(lambda: compiled.evaluate(params, {"input": x}))
    show("evaluate", made if isinstance(made, str) else "well")
show("same", total(ones(8, sharding=D)).item())
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", JOBS)
def test_processes_with_something_else_are_told(backend: str, tmp_path: Path) -> None:
    done = launched(backend, 2, script(tmp_path, JOB), backend)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        ends = f"in process {rank}, and with others in process {1 - rank}; give every process"
        lines = [x[4:] for x in done.stdout.splitlines() if x.startswith(f"[{rank}]")]
        told = dict(line.split(" ", 1) for line in lines if " " in line)
        start = "BackendError: function 'lambda'"
        given = ["float32", "int32"][rank]
        assert told["shapes"].startswith(f"{start} is called with x float32[8, {4 + rank}]")
        assert told["dtypes"].startswith(f"{start} is called with x {given}[8] P('data') {ends}")
        assert told["shardings"].startswith(f"{start} is called with x float32[8, 8] P(")
        assert f"computes in process {rank} something else than" in told["numbers"]
        assert lines.count("same 16.0") == 2, done.stdout
        assert ("alone" in told) is (rank == 0)
        assert "evaluate well" in lines
        assert f"evaluate() is called with input float32[{12 + 4 * rank}, 3]" in told["evaluate"]
