"""Jobs of several processes: torchrun as it is, and through `mithril launch`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mithril.plugins import LaunchRequest, free_port
from mithril_torch.launch.command import commands

from tests.runtime.jobs import LOOPBACK, listening, wait_until
from tests.runtime.scripts import (
    LIMIT,
    MITHRIL,
    ROOT,
    TRAIN,
    Training,
    files_of_a_killed_launcher,
    lines_of,
    losses,
    ran,
    training,
)
from tests.torch.jobs import launch, script, torchrun

MESH = ("--mesh", "data=2,tensor=2", "--steps", "4")


@pytest.mark.slow
def test_four_ranks_train_as_a_plain_script_and_as_numpy() -> None:
    plain = ran([sys.executable, TRAIN, "--backend", "torch", *MESH])
    numpy = ran([sys.executable, TRAIN, "--backend", "numpy", *MESH])
    assert plain.returncode == numpy.returncode == 0, plain.stderr + numpy.stderr
    together = torchrun(4, TRAIN, "--backend", "torch", *MESH)
    assert together.returncode == 0, together.stderr
    expected = losses(plain.stdout)
    assert len(expected) == 4
    assert sorted(losses(together.stdout)) == sorted(4 * expected)
    assert expected == pytest.approx(losses(numpy.stdout), rel=1e-5)


ARRAYS = """
backend = ml.TorchBackend(ml.Mesh(data=2), device="cpu")
(rank,) = backend.engine.local_devices
x = backend.array(np.arange(4.0, dtype=np.float32), sharding=P("data"))
print(x)
print("mine", [shard.data.tolist() for shard in x.addressable_shards])
print("whole", x.numpy().tolist(), float((x * x).sum()))
y = backend.from_local_shards([[10.0 * rank + 1, 10.0 * rank + 2]], sharding=P("data"))
print("local", y.shape, y.numpy().tolist())
uneven = [1.0, 2.0] if rank == 0 else [3.0]
print("uneven", backend.from_local_shards([uneven], shape=(3,), sharding=P("data")).numpy().tolist())
try:
    backend.engine.shard(x.shards, x.sharding, 1 - rank)
except ml.BackendError as error:
    print(error)
try:
    ml.TorchBackend(ml.Mesh(data=3), device="cpu")
except ml.BackendError as error:
    print(error)
print("own", ml.TorchBackend(device="cpu").array([1.0 + rank, 2.0]).numpy().tolist())
"""


@pytest.mark.slow
def test_arrays_of_several_processes(tmp_path: Path) -> None:
    done = launch(2, script(tmp_path, ARRAYS))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    for rank, mine in ((0, "[[0.0, 1.0]]"), (1, "[[2.0, 3.0]]")):
        other = 1 - rank
        assert lines_of(rank, done.stdout) == [
            "Array(of several processes, float32[4], P('data'))",
            f"mine {mine}",
            "whole [0.0, 1.0, 2.0, 3.0] 14.0",
            "local (4,) [1.0, 2.0, 11.0, 12.0]",
            "uneven [1.0, 2.0, 3.0]",
            f"device {other} belongs to rank {other}, not to this one ({rank}); its part cannot be "
            f"read here; reshard the array to P() first",
            "mesh has 3 devices, and the job 2 processes; start as many processes as the mesh has "
            "devices",
            f"own [{rank + 1.0}, 2.0]",
        ]


RESUMES = """
import signal, time

backend = ml.TorchBackend(ml.Mesh(data=2), device="cpu", timeout=60)
attempt, (rank,) = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), backend.engine.local_devices
model = ml.Model()
model |= ml.Linear(4)(input="input", output="output")
compiled = ml.compile(model, backend)
x = backend.array(np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3), sharding=P("data"))
params, start = compiled.randomize_params(), 0
if os.path.exists("saved.npz"):
    saved = dict(np.load("saved.npz"))
    start = int(saved.pop("step"))
    params = {name: backend.array(value) for name, value in saved.items()}
for step in range(start, 6):
    if rank == 1 and attempt < DEATHS and step == 2 * attempt + 1:
        while int(np.load("saved.npz")["step"]) < step:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    _, gradients = compiled.evaluate(params, {"input": x}, {"output": backend.ones(8, 4)})
    params = {name: value - 0.1 * gradients[name] for name, value in params.items()}
    if rank == 0:
        whole = {name: value.numpy() for name, value in params.items()}
        size = sum(float(abs(value).sum()) for value in whole.values())
        print(f"attempt {attempt} step {step}: {size:.5f}", flush=True)
        np.savez("next.npz", step=step + 1, **whole)
        os.replace("next.npz", "saved.npz")
"""


THREADS = """
import atexit
from pathlib import Path
def say():
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    print("threads", sum("gloo" in name for name in names), flush=True)
atexit.register(say)
given = [] if sys.argv[1:] != ["given"] else [torch.distributed.init_process_group("gloo")]
x = ml.TorchBackend(ml.Mesh(data=2), device="cpu").array(np.arange(4.0), sharding=P("data"))
print(float(x.sum()))
say()
if given:
    torch.distributed.destroy_process_group()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs names of threads")
@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("given",)])
def test_threads_of_groups_end_before_the_interpreter(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    done = launch(2, script(tmp_path, THREADS), *arguments, GLOO_SOCKET_IFNAME="lo")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    for rank in (0, 1):
        total, during, after = lines_of(rank, done.stdout)
        assert (total, after) == ("6.0", "threads 0")
        assert int(during.removeprefix("threads ")) > 0


def steps_of(text: str) -> list[tuple[str, str, str]]:
    return re.findall(r"attempt (\d) step (\d): (\S+)", text)


@pytest.mark.slow
def test_a_job_whose_rank_dies_twice_comes_back_and_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    restarted = torchrun(2, "--max-restarts", "2", script(tmp_path, RESUMES.replace("DEATHS", "2")))
    assert restarted.returncode == 0, restarted.stderr
    found = steps_of(restarted.stdout)
    assert [f"{attempt}{step}" for attempt, step, _ in found] == [
        "00",
        "11",
        "12",
        "23",
        "24",
        "25",
    ]
    (tmp_path / "saved.npz").unlink()
    never = torchrun(2, script(tmp_path, RESUMES.replace("DEATHS", "0")))
    assert never.returncode == 0, never.stderr
    assert [value for *_, value in steps_of(never.stdout)] == [value for *_, value in found]


@pytest.mark.parametrize(
    ("end", "how", "exit_code"),
    [
        pytest.param("sys.exit(5)", "with exit code 5", 5, marks=pytest.mark.slow),
        pytest.param(
            "os.kill(os.getpid(), signal.SIGKILL)", "by SIGKILL", 137, marks=pytest.mark.slow
        ),
    ],
)
def test_a_failed_rank_is_named(tmp_path: Path, end: str, how: str, exit_code: int) -> None:
    code = """
import signal
backend = ml.TorchBackend(ml.Mesh(data=2), device="cpu")
(rank,) = backend.engine.local_devices
if rank == 1:
    END
backend.ones(2, sharding=P("data")).sum().item()
"""
    done = launch(2, script(tmp_path, code.replace("END", end)))
    assert done.returncode == exit_code
    assert re.search(rf"torchrun: rank 1 ended {how} \(pid \d+\); all ranks", done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("given", [False, True])
def test_others_are_waited_for_as_long_as_the_job_says(tmp_path: Path, given: bool) -> None:
    code = """
import time
from datetime import timedelta
from pathlib import Path
told = Path(sys.argv[1])
if sys.argv[2] == "True":
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=12))
backend = ml.TorchBackend(ml.Mesh(data=2), device="cpu", timeout=12.0)
x = backend.ones(2, sharding=P("data"))
x.sum().item()
if backend.engine.local_devices == (0,):
    try:
        x.sum().item()
    except Exception as error:
        print(error, flush=True)
    told.touch()
while not told.exists():
    time.sleep(0.1)
os._exit(0)
"""
    done = torchrun(2, script(tmp_path, code), str(tmp_path / "told"), str(given))
    assert "Timed out waiting 12000ms" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_a_job_needs_a_place_to_meet(tmp_path: Path) -> None:
    code = """
for changed in ({"MASTER_ADDR": None}, {"WORLD_SIZE": "two"}):
    os.environ.update({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"})
    for name, value in changed.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})
    try:
        ml.TorchBackend(ml.Mesh(data=2), device="cpu")
    except ml.BackendError as error:
        print(error)
"""
    done = ran([sys.executable, script(tmp_path, code)])
    assert done.stdout.splitlines() == [
        "rank 0 of 2 cannot join the job; MASTER_ADDR and MASTER_PORT do not say where the "
        "processes meet; start it by torchrun or mithril launch",
        "environment variable WORLD_SIZE='two' is no number; set it, or unset it",
    ]


@pytest.mark.slow
def test_processes_that_something_else_started(tmp_path: Path) -> None:
    """Rank 0 keeps the store then; it listens where the others look for it."""
    code = """
from tests.runtime.jobs import listening
backend = ml.TorchBackend(ml.Mesh(data=2), device="cpu")
print(float(backend.arange(8.0, sharding=P("data")).sum()), *sorted(listening({os.getpid()})))
float(backend.arange(8.0, sharding=P("data")).sum())
"""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, script(tmp_path, code)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **place, "RANK": str(rank), "PYTHONPATH": str(ROOT)},
        )
        for rank in range(2)
    ]
    told = [rank.communicate(timeout=LIMIT)[0].split() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert [words[0] for words in told] == ["28.0", "28.0"]
    assert all(set(words[1:]) <= LOOPBACK for words in told)
    assert told[0][1:]


@pytest.mark.slow
def test_the_demo_runs_on_a_pool() -> None:
    options = ("--backend", "torch", "--mesh", "data=2,tensor=2", "--steps", "3")
    done = ran([MITHRIL, "demo", *options])
    assert (done.returncode, done.stderr) == (0, "")
    assert "equal within" in done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_two_nodes_meet_at_the_coordinator(tmp_path: Path) -> None:
    code = """
backend = ml.TorchBackend(ml.Mesh(data=2), device="cpu")
print("sum", float(backend.arange(8.0, sharding=P("data")).sum()), backend.engine.local_devices)
"""
    shared = [MITHRIL, "launch", "--backend", "torch", "-n", "1", "--nodes", "2"]
    place = f"127.0.0.1:{free_port()}"
    nodes = [
        subprocess.Popen(
            [*shared, "--node-rank", str(node), "--coordinator", place, script(tmp_path, code)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    told = [node.communicate(timeout=LIMIT)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0]
    assert lines_of(0, told[0]) == ["sum 28.0 (0,)"]
    assert lines_of(1, told[1]) == ["sum 28.0 (1,)"]


@pytest.mark.slow
def test_a_killed_launcher_leaves_no_file(tmp_path: Path) -> None:
    """Neither of its own, nor of torchrun and of the ranks."""
    assert files_of_a_killed_launcher("torch", tmp_path, "RANK") == []


def test_the_command_of_a_machine() -> None:
    (alone,) = commands(LaunchRequest("train.py", ("--lr", "1"), 4))
    options = alone.argv[alone.argv.index("mithril_torch.launch.agent") + 1 :]
    assert options[:2] == ("--nproc-per-node", "4")
    assert options[-3:] == ("train.py", "--lr", "1")
    assert alone.rank is None
    assert int(alone.environment["OMP_NUM_THREADS"]) >= 1
    assert "--log-dir" not in alone.argv
    (logged,) = commands(LaunchRequest("train.py", folder="logs"))
    assert logged.argv[logged.argv.index("--log-dir") + 1] == "logs"
    (node,) = commands(
        LaunchRequest("train.py", (), 2, nodes=3, node_rank=1, coordinator="10.0.0.1:29500")
    )
    assert {"--nnodes": "3", "--node-rank": "1", "--rdzv-endpoint": "10.0.0.1:29500"}.items() <= (
        dict(zip(node.argv[3::2], node.argv[4::2], strict=False)).items()
    )


@pytest.fixture
def job():
    with training("torch", 2, "data=2", "RANK") as running:
        yield running


@pytest.mark.slow
def test_nothing_listens_beyond_loopback_and_nothing_is_left(job: Training) -> None:
    processes = job.processes()
    assert sorted(processes) == ["0", "1", "agent"]
    for pid in processes.values():  # each has something that listens
        wait_until(lambda pid=pid: bool(listening({pid})))
    assert listening(set(processes.values())) <= LOOPBACK
    job.launcher.send_signal(signal.SIGINT)
    _, errors = job.launcher.communicate(timeout=60)
    assert job.launcher.returncode == 130
    assert "SIGINT ended the launch" in errors
    wait_until(lambda: not job.processes())  # what is killed takes a moment to be gone


STAGES = """
from tests.pipeline.models import classifier, samples
backend = ml.TorchBackend(ml.Mesh(data=2, pipeline=2), device="cpu", timeout=60)
whole, (rank,) = backend.engine, backend.engine.local_devices
model, inputs = classifier(2, microbatch_size=2), samples(8)
compiled, alone = ml.compile(model, backend), ml.compile(model, ml.NumpyBackend())
params, expected = compiled.randomize_params(), alone.randomize_params()
placed = {name: backend.array(x, sharding=P("data")) for name, x in inputs.items()}
for _ in range(2):
    seen = []
    outputs, slopes = compiled.evaluate(
        params, placed, {"loss": 1.0}, observe=lambda told: seen.append(told.row)
    )
    params = {name: x - 0.5 * slopes[name] for name, x in params.items()}
    wanted, own = alone.evaluate(expected, inputs, {"loss": 1.0})
    expected = {name: x - 0.5 * own[name] for name, x in expected.items()}
for name, x in params.items():
    np.testing.assert_allclose(x.numpy(), expected[name].numpy(), rtol=1e-4, atol=5e-5)
np.testing.assert_allclose(outputs["loss"].item(), wanted["loss"].item(), rtol=1e-4)
held = {x.sharding.mesh.flat for x in params.values() if x.addressable_shards}
apart = {x.sharding.mesh.flat for x in params.values() if not x.addressable_shards}
print("held", held, "not", apart)
rest = iter(compiled.plan.list_issued())
assert seen and all(row in rest for row in seen), "in the plan's order"
print("sends", sum(kind == "send" for kind, *_ in seen), "others", len(seen) > 8)
away = next(x for x in params.values() if not x.addressable_shards)
print(repr(away)[:27])
for ask in (compiled.as_module, away.torch):
    try:
        ask()
    except ml.BackendError as error:
        print(error)
"""


@pytest.mark.slow
def test_stages_on_the_ranks_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    done = launch(4, script(tmp_path, STAGES))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    for rank in range(4):
        held, away = ("(0, 2)", "(1, 3)") if rank % 2 == 0 else ("(1, 3)", "(0, 2)")
        ranks = away.strip("()")
        first, second, third, *errors = lines_of(rank, done.stdout)
        assert first == f"held {{{held}}} not {{{away}}}"
        assert second == "sends 4 others False"
        assert third == "Array(of several processes,"
        assert (
            "as_module() needs every parameter on every rank, and 'pipeline_0.stage_0" in errors[0]
        )
        assert "lies on ranks 0, 2 only; train models of several stages by evaluate()" in errors[0]
        assert f"lies on ranks {ranks}, and this process is none of them; ask there" in errors[1]


@pytest.mark.slow
def test_a_rank_that_is_lost_is_told_with_the_step(tmp_path: Path) -> None:
    """It ends well, so nobody stops the others: they find out in their next exchange."""
    code = """
backend = ml.TorchBackend(ml.Mesh(data=2), device="cpu", timeout=30)
total = ml.jit(lambda x: (x * x).sum(), backend=backend)
x = backend.arange(8.0, sharding=P("data"))
total(x)
if not ml.is_main():
    os._exit(0)
try:
    while True:
        total(x)
except ml.BackendError as error:
    print(error, flush=True)
os._exit(0)
"""
    done = launch(2, script(tmp_path, code))
    pattern = (
        r"rank 0 has lost another process of the job in step \d+ \(all_reduce .*\), while they "
        r"exchanged data: .*; see what that one says, and start the job again"
    )
    assert re.search(pattern, done.stdout), done.stdout + done.stderr
