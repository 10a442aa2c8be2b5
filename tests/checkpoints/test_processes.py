"""Jobs of several processes: each writes and reads its own parts, and knows its number."""

from __future__ import annotations

import re
from pathlib import Path

import mithril as ml
import numpy as np
import pytest

from tests.conformance.engines import BACKENDS
from tests.mlx.jobs import mpirun
from tests.runtime.scripts import launched, lines_of, script

JOBS = [backend for backend in BACKENDS if "lockstep" not in backend.values[0]]
SHARE = 2
"""Devices of the mesh that each process has, on JAX."""

BOTH = """
from pathlib import Path
path, name, devices = sys.argv[1], sys.argv[2], int(sys.argv[3])
try:
    ml.is_main()
except ml.BackendError as error:
    print("early", error)
alone = ml.NumpyBackend()
print("alone", ml.process_index(), ml.process_count(), ml.is_main())
backend = ml.open_backend(name, ml.Mesh(data=devices))
rank = ml.process_index()
print("place", rank, ml.process_count(), ml.is_main())
values = np.arange(48.0, dtype=np.float32).reshape(8, 6)
def tree_of(spec):
    return {
        "split": backend.array(values, sharding=spec), "whole": backend.arange(100.0),
        "host": np.arange(5), "alone": alone.ones(2, dtype="bfloat16"), "step": 3,
    }
for _ in range(2):
    ml.save(path, tree_of(P("data")))
    print("there", len([*Path(path).iterdir()]))
seen = {}
def note(file, name, nbytes):
    seen[name] = seen.get(name, 0) + nbytes
like = {**tree_of(P(None, "data")), "step": 0, "host": np.zeros(5, int)}
found = ml.load(path, like=like, observe=note)
print("read", sum(n for key, n in seen.items() if key.startswith("split")), found["step"])
print("same", np.array_equal(found["split"].numpy(), values), found["split"].sharding)
try:
    ml.load(path)
except ml.CheckpointError as error:
    print("whole", error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", JOBS)
def test_each_process_writes_and_reads_its_own_parts(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    devices = 2 * SHARE if backend == "jax" else 2
    file = script(tmp_path, BOTH)
    done = launched(backend, 2, file, str(path), backend, str(devices))
    assert done.returncode == 0, done.stderr
    check_both(done.stdout, devices, path)


def check_both(output: str, devices: int, path: Path) -> None:
    share = 8 * -(-6 // devices) * 4  # bytes of a part of columns
    for rank in range(2):
        mine = [line for line in output.splitlines() if line.startswith(f"[{rank}]")]
        first = rank * devices // 2
        columns = [max(0, min(6, (i + 1) * share // 32) - i * share // 32) for i in range(devices)]
        read = sum(8 * 4 * n for n in columns[first : first + devices // 2])
        for expected in (
            "early is_main() is known when a backend is open, and none was opened yet; open one",
            "alone 0 1 True",
            f"place {rank} 2 {rank == 0}",
            "there 3",
            f"read {read} 3",
            "same True Sharding(P(None, 'data'))",
            f"whole checkpoint '{path}' would be loaded whole by each of 2 processes; give like= or",
        ):
            assert any(expected in line for line in mine), (rank, expected, output)
    names = [re.sub("-[0-9a-f]{8}-", "-mark-", file.name) for file in path.iterdir()]
    assert sorted(names) == [
        "000002-mark-00000-00000.safetensors", "000002-mark-00001-00000.safetensors", "index.json",
    ]  # fmt: skip
    found = ml.load(path)
    np.testing.assert_array_equal(found["split"], np.arange(48.0).reshape(8, 6))
    assert found["whole"].tolist() == list(range(100))
    assert found["alone"].dtype.name == "bfloat16"
    sizes = [file.stat().st_size for file in sorted(path.glob("*.safetensors"))]
    assert sum(sizes) < 48 * 4 + 100 * 4 + 5 * 8 + 2 * 2 + 2 * 512, "what both have is written once"


@pytest.mark.slow
def test_under_mpirun(tmp_path: Path) -> None:
    file = script(tmp_path, BOTH)
    done = mpirun(2, file, str(tmp_path / "checkpoint"), "mlx", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("same True") == 2


FAILS = """
from pathlib import Path
path, failing = sys.argv[1], int(sys.argv[2])
backend = ml.TorchBackend(ml.Mesh(data=2), device="cpu")
tree = {"w": backend.arange(4.0, sharding=P("data"))}
ml.save(path, {**tree, "step": 1})
replace = os.replace
def fail(*given):
    raise OSError(28, "No space left on device")
if ml.process_index() == failing:
    os.replace = fail
try:
    ml.save(path, {**tree, "step": 2})
except ml.CheckpointError as error:
    print("failed", ml.process_index(), error)
os.replace = replace
print("step", ml.load(path, like={**tree, "step": 0})["step"])
ml.save(path, {**tree, "step": 3})
print("then", ml.load(path, like={**tree, "step": 0})["step"])
other = tree if ml.process_index() else {"v": tree["w"]}
try:
    ml.save(path, {**other, "step": 4})
except ml.CheckpointError as error:
    print("trees", error)
bad = {"f": print} if ml.process_index() == failing else {}
try:
    ml.save(path, {**tree, **bad})
except ml.CheckpointError as error:
    print("leaf", error)
from mithril.checkpoints import saving
write = saving.write_parts
def interrupt(*given):
    raise RuntimeError("the framework failed")
if ml.process_index() == failing:
    saving.write_parts = interrupt
try:
    ml.save(path, tree)
except (ml.CheckpointError, RuntimeError) as error:
    print("raised", type(error).__name__)
saving.write_parts = write
remove, saving._remove = saving._remove, interrupt
try:
    ml.save(path, {**tree, "step": 5})
except (ml.CheckpointError, RuntimeError) as error:
    print("behind", type(error).__name__)
saving._remove = remove
prepare = saving.prepare_index
def overtake(file, index):
    prepare(file, index)
    Path(path, "index.json").write_bytes(file.read_bytes())
saving.prepare_index = overtake
try:
    ml.save(path, {**tree, "step": 6})
except ml.CheckpointError as error:
    print("overtaken", error)
saving.prepare_index = prepare
try:
    import torch
    ml.save(path, {"t": torch.ones(2)})
except ml.CheckpointError as error:
    print("foreign", error)
"""
OTHER_FAILED = (
    "save into '{}' was not completed; another process of the job failed; see what that one says"
)


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1])
def test_all_processes_learn_that_one_could_not_save(failing: int, tmp_path: Path) -> None:
    pytest.importorskip("mithril_torch")
    path = tmp_path / "checkpoint"
    done = launched("torch", 2, script(tmp_path, FAILS), str(path), str(failing))
    assert done.returncode == 0, done.stderr
    told = [lines_of(rank, done.stdout) for rank in range(2)]
    full = "cannot be written; [Errno 28] No space left on device; make room, or give another path"
    assert full in told[failing][0]
    other = (
        "failed 0 process 1 of 2 has not saved its parts: '",
        "failed 1 save into '",
    )[1 - failing]
    assert told[1 - failing][0].startswith(other)
    if failing == 0:
        assert told[1][0] == f"failed 1 {OTHER_FAILED.format(path)}"
    for rank in range(2):
        assert told[rank][1:3] == ["step 1", "then 3"]
        assert (
            "foreign leaf 't' is a torch.Tensor, which says nothing of what the other 1"
            in (told[rank][-1])
        )
    assert "leaf leaf 'f' is a builtin_function_or_method" in told[failing][4]
    if failing == 0:
        assert told[1][4] == f"leaf {OTHER_FAILED.format(path)}"
    else:
        assert told[0][4].startswith("leaf process 1 of 2 has not saved its parts: '")
    assert told[failing][5] == "raised RuntimeError"
    assert told[1 - failing][5] == "raised CheckpointError"
    assert [told[rank][6] for rank in range(2)] == ["behind RuntimeError", "behind CheckpointError"]
    assert "was saved by another job while this one saved there" in told[0][7]
    assert told[1][7] == f"overtaken {OTHER_FAILED.format(path)}"
    assert (
        "trees processes have not saved one tree; 'v' has 4 elements, and its parts 2"
        in (told[0][3])
    )


def test_what_another_process_failed_at_is_raised_here_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mithril.checkpoints import saving

    path = tmp_path / "checkpoint"
    monkeypatch.setattr(saving, "find_place", lambda: (1, 2))
    monkeypatch.setattr(saving, "is_any", lambda fact: True)
    with pytest.raises(ml.CheckpointError, match=re.escape(OTHER_FAILED.format(path))):
        ml.save(path, {"step": 2})
