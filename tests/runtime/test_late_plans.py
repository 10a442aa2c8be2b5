"""A process that comes alone to compare a plan is told so, and those of a part of the mesh compare theirs."""

from __future__ import annotations

from pathlib import Path

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.engine import Engine
from mithril.engine.job_store import JobStore
from mithril.runtime import processes, same_plans
from mithril.runtime.same_plans import check_same_plan

from tests.runtime.scripts import launched, lines_of, script
from tests.runtime.test_same_plans import JOBS

PARTS = [backend for backend in JOBS if backend.values[0] != "jax"]
"""JAX refuses plans whose stages are of several processes."""

ALONE = """
from mithril.runtime.processes import wait_for_processes
name = sys.argv[1]
backend = ml.open_backend(name, ml.Mesh(data=4 if name == "jax" else 2), timeout=2)
total = ml.jit(lambda x: (x * 2).sum(), backend=backend)
def come(rows):
    wait_for_processes()
    return total(backend.ones(rows, 64, sharding=P("data"))).item()
print("first", come(8), flush=True)
come(16 if ml.process_index() == 1 else 8)
print("still here", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", JOBS)
def test_a_plan_that_other_processes_have_already(backend: str, tmp_path: Path) -> None:
    """They wait in a collective of it, as this one would if it had come there."""
    done = launched(backend, 2, script(tmp_path, ALONE), backend)
    assert done.returncode not in (0, None), done.stdout
    assert [lines_of(rank, done.stdout)[-1] for rank in range(2)] == ["first 1024.0"] * 2
    told = "\n".join(lines_of(1, done.stderr))
    text = (
        "BackendError: function 'lambda' is called with x float32[16, 64] P('data', None) for the "
        "first time in process 1, and other processes do not come to compare that: "
    )
    if backend == "torch":  # whose collectives end by themselves, at about the same time
        assert text in told or "has lost another process" in done.stderr, done.stderr
        return
    remedy = (
        "process 0 did not come within timeout=2 s; give every process of a job the same shapes, "
        "dtypes and shardings in each call, or raise timeout if one takes longer"
    )
    assert text + remedy in told, done.stderr


PART = """
backend = ml.open_backend(sys.argv[1], ml.Mesh(data=3))
rank = ml.process_index()
model = ml.Model()
model |= ml.Linear(4, device_id=0)(input="x", output="h")
model |= ml.Linear(4, device_id=1)(input="h", output="y")
compiled = ml.compile(model, backend)
params = compiled.randomize_params(seed=0)
for rows in (4, 6 if rank == 0 else 8, 10):
    try:
        made = compiled.evaluate(params, {"x": np.ones((rows, 3), np.float32)})["y"]
        print("well", made.shape, flush=True)
    except ml.BackendError as error:
        print(error, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", PARTS)
def test_a_plan_on_a_part_of_the_mesh(backend: str, tmp_path: Path) -> None:
    done = launched(backend, 3, script(tmp_path, PART), backend)
    assert done.returncode == 0, done.stderr
    for rank, rows in ((0, 6), (1, 8)):
        assert lines_of(rank, done.stdout) == [
            "well (4, 4)",
            f"evaluate() is called with x float32[{rows}, 3] on devices (0,) in process {rank}, "
            f"and with others in process {1 - rank}; give every process of a job the same shapes, "
            f"dtypes and shardings",
            "well (10, 4)",
        ]
    assert lines_of(2, done.stdout) == ["well (4, 4)", "well (8, 4)", "well (10, 4)"]


@pytest.mark.slow
def test_jax_refuses_stages_of_several_processes(tmp_path: Path) -> None:
    pytest.importorskip("mithril_jax")
    done = launched("jax", 3, script(tmp_path, PART), "jax", JAX_NUM_CPU_DEVICES="1")
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        first, _, last = lines_of(rank, done.stdout)
        for told in (first, last):  # what is between is compared, and other than expected
            assert "belongs to another process; stages of one model run in one process" in told


STORE = """
name = sys.argv[1]
backend = ml.open_backend(name, ml.Mesh(data=4 if name == "jax" else 2), timeout=60)
store, rank = backend.engine.job_store, ml.process_index()
print(store.timeout, store.owners, store.get("nothing", 0.0))
store.set(f"text/{rank}", "früh")
store.set(f"text/{rank}", f"of {rank}")
store.set(f"empty/{rank}", "")
print(store.get(f"text/{rank}", 0.0), repr(store.get(f"empty/{1 - rank}", 60.0)))
print(store.get(f"text/{1 - rank}", 0.0), flush=True)
store.set(f"end/{rank}", "here")
store.get(f"end/{1 - rank}", 60.0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", JOBS)
def test_the_store_of_a_job(backend: str, tmp_path: Path) -> None:
    done = launched(backend, 2, script(tmp_path, STORE), backend, JAX_NUM_CPU_DEVICES="2")
    assert done.returncode == 0, done.stderr
    owners = "(0, 0, 1, 1)" if backend == "jax" else "(0, 1)"
    for rank in range(2):
        assert lines_of(rank, done.stdout) == [
            f"60.0 {owners} None", f"of {rank} ''", f"of {1 - rank}",
        ]  # fmt: skip


ENDED = """
name = sys.argv[1]
backend = ml.open_backend(name, ml.Mesh(data=4 if name == "jax" else 2), timeout=120)
if ml.process_index() == 1:
    sys.exit(0)
try:
    ml.jit(lambda x: (x * 2).sum(), backend=backend)(backend.ones(8, 64, sharding=P("data")))
except ml.BackendError as error:
    print(error, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", JOBS)
def test_nobody_waits_for_a_process_that_ended_before_it_compared_any(
    backend: str, tmp_path: Path
) -> None:
    done = launched(backend, 2, script(tmp_path, ENDED), backend, JAX_NUM_CPU_DEVICES="2")
    assert done.returncode == 0, done.stderr
    assert "do not come to compare that: process 1 ended without; " in done.stdout


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Make jobs of three processes with a device each; return which ones compare."""
    found: list[list[int]] = []

    def gather(store: JobStore, name: str, own: int, members: list[int], text: str) -> object:
        found.append(members)
        return dict.fromkeys(members, text)

    store = JobStore(lambda key, text: None, lambda key, seconds: None, 1.0, (0, 1, 2))
    monkeypatch.setattr(processes, "_places", [])  # what is faked is not there for other tests
    monkeypatch.setattr(Engine, "process_count", 3)
    monkeypatch.setattr(Engine, "process_index", 1)
    monkeypatch.setattr(Engine, "job_store", store)
    monkeypatch.setattr(same_plans, "gather", gather)
    return found


def compare(*devices: int) -> None:
    """Compare the plan of a chain of layers, each on a device; one split over all if there is none."""
    backend = ml.NumpyBackend(ml.Mesh(data=3))
    model = ml.Model()
    for device in devices:
        model += ml.Linear(4, device_id=device)
    if not devices:
        model += ml.Linear(4)
        model += ml.Mean()
    x = ml.TensorSpec((6, 4), "float32", sharding=P() if devices else P("data"))
    plan = ml.compile(model, backend, shapes={"input": x}).plan
    check_same_plan(backend, "evaluate()", plan)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [((), [[0, 1, 2]]), ((1, 2), [[1, 2]]), ((2, 1, 0), [[0, 1, 2]]), ((0, 2), []), ((1, 1), [])],
    ids=["all", "a part", "a chain of all", "a part of others", "one process alone"],
)
def test_those_that_exchange_data_compare(
    devices: tuple[int, ...], expected: list[list[int]], asked: list[list[int]]
) -> None:
    compare(*devices)
    assert asked == expected


def test_without_a_store_a_part_is_not_compared(
    asked: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "job_store", None)
    together: list[list[int]] = []

    def exchange(backend: ml.Backend, numbers: list[int]) -> np.ndarray:
        together.append(numbers)
        return np.array([[process, *numbers[1:]] for process in range(3)])

    monkeypatch.setattr(same_plans, "exchange", exchange)
    compare(1, 2)
    assert together == []
    compare()
    assert len(together) == 1 and asked == []
