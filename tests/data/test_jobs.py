"""Jobs of several processes: each reads the rows of its own devices, and all have one order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.engines import BACKENDS
from tests.profiles import quick
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
"""


@quick(lambda backend: backend == "mlx")
@pytest.mark.parametrize("backend", JOBS)
def test_each_process_reads_its_own_rows(backend: str, tmp_path: Path) -> None:
    devices = 4 if backend == "jax" else 2
    done = launched(backend, 2, script(tmp_path, CODE), backend, str(devices))
    assert done.returncode == 0, done.stderr
    told = [
        [line[4:] for line in done.stdout.splitlines() if line.startswith(f"[{rank}]")]
        for rank in range(2)
    ]
    (rows,) = {line for lines in told for line in lines if line.startswith("rows")}
    assert rows.endswith(str([*range(10)]))
    read = [line for lines in told for line in lines if line.startswith("read")]
    assert read == ["read 5", "read 5"], "halves of batches of 4, 4 and 2"
    (own,) = {line for lines in told for line in lines if line.startswith("own")}
    assert own == "own [[0, 1, 2, 3], [10, 11, 12, 13], [20, 21, 22, 23]]"
