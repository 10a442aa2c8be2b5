"""Jobs of several processes: each reads the rows of its own devices; one of them logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.engines import BACKENDS
from tests.runtime.scripts import launched, script

JOBS = [backend for backend in BACKENDS if "lockstep" not in backend.values[0]]

CODE = """
name, devices = sys.argv[1], int(sys.argv[2])
backend = ml.open_backend(name, ml.Mesh(data=devices))
class Samples:
    def __init__(self):
        self.read = []
    def __len__(self):
        return 10
    def __getitem__(self, i):
        self.read.append(i)
        return {"x": np.full(2, i, np.float32), "y": i}
data = Samples()
batches = ml.data.batches(data, 4, backend=backend, sharding=P("data"), shuffle=5, prefetch=1)
rows = []
for batch in batches:
    whole = batch["y"].numpy().tolist()
    assert (batch["x"].numpy()[:, 0] == whole).all()
    rows.append(whole)
print("rows", rows, sorted(sum(rows, [])))
print("read", len(data.read) - 1)
rank, half = ml.process_index(), 2
ready = [np.arange(4)[rank * half : (rank + 1) * half] + 10 * k for k in range(3)]
own = ml.data.batches(ready, backend=backend, sharding=P("data"), per_process=True)
print("own", [batch.numpy().tolist() for batch in own])
def told_of(rows):
    ready = [np.zeros((n, 2)) if n else np.full((two, 2), 1e300) for n in rows]
    own = ml.data.batches(ready, backend=backend, sharding=P("data"), per_process=True)
    try:
        return len(list(own))
    except ml.ShapeError as error:
        return str(error)[:39]
two = 2 * (devices // 2)
print("uneven", told_of([two, two // 2]), told_of([two * (1 + rank)]), told_of([two, two * (1 + rank)]))
print("uneven", told_of([two] * (1 + rank)), told_of([two, two // 2, two]))
print("unreadable", told_of([0 if rank else two]), told_of([two, two, two * rank]))
def step(state, batch):
    return state + batch["x"].sum(), {"loss": batch["y"].sum()}
path = sys.argv[3]
state, history = ml.train(
    step, backend.zeros(()), batches, log=path + "/run.csv", log_every=1, save=path + "/run",
    start=3, steps=6,
)
found = ml.load(path + "/run", like={"state": state, "step": 0, "batches": batches.state()})
print("sum", state.item(), found["state"].item(), found["step"], found["batches"]["seed"])
print("losses", sum(history["loss"].values()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", JOBS)
def test_each_process_reads_its_own_rows(backend: str, tmp_path: Path) -> None:
    devices = 4 if backend == "jax" else 2
    done = launched(backend, 2, script(tmp_path, CODE), backend, str(devices), str(tmp_path))
    assert done.returncode == 0, done.stderr
    told = [
        [line[4:] for line in done.stdout.splitlines() if line.startswith(f"[{rank}]")]
        for rank in range(2)
    ]
    (rows,) = {line for lines in told for line in lines if line.startswith("rows")}
    assert rows.endswith(str([*range(10)]))
    read = [line for lines in told for line in lines if line.startswith("read")]
    # Halves of batches of 4, 4 and 2; over 4 devices the last two have none of the 2 rows.
    assert read == (["read 6", "read 4"] if devices == 4 else ["read 5", "read 5"])
    (own,) = {line for lines in told for line in lines if line.startswith("own")}
    for line in ("sum 90.0 90.0 6 5", "losses 45.0"):
        assert all(line in lines for lines in told), (line, told)
    assert [len([line for line in lines if line.startswith("step")]) for lines in told] == [3, 0]
    assert len((tmp_path / "run.csv").read_text().splitlines()) == 4
    differ = "ready batches differ between processes:"
    other = "ready batch of another process cannot b"
    mine = "values of field 'data' of the data reac"
    first, second = [[line for line in lines if line.startswith("uneven")] for lines in told]
    assert first == second == [f"uneven 2 {differ} {differ}", f"uneven {differ} 3"]
    told_both = [line for lines in told for line in lines if line.startswith("unreadable")]
    assert told_both == [f"unreadable {other} {mine}", f"unreadable {mine} {other}"]
    assert own == "own [[0, 1, 2, 3], [10, 11, 12, 13], [20, 21, 22, 23]]"
