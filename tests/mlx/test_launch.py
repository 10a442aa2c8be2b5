"""Jobs that `mithril launch` starts: a ring of processes on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mithril.errors import OptionError
from mithril.plugins import LaunchRequest
from mithril_mlx.distributed import library_of
from mithril_mlx.launch import commands

from tests.mlx.jobs import launch, mpirun
from tests.runtime.jobs import LOOPBACK, listening, processes_of, wait_until
from tests.runtime.scripts import (
    TRAIN,
    Training,
    files_of_a_killed_launcher,
    lines_of,
    losses,
    ran,
    script,
    training,
)

LIMIT = 3  # seconds in which a job with a dead process has to end


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data=2", "tensor=2"])
def test_two_processes_train_as_one_and_as_numpy(mesh: str) -> None:
    options = ("--mesh", mesh, "--steps", "3")
    numpy = ran([sys.executable, TRAIN, "--backend", "numpy", *options])
    alone = ran([sys.executable, TRAIN, "--backend", "mlx", *options])
    together = launch(2, TRAIN, "--backend", "mlx", *options)
    assert together.returncode == 0, together.stderr
    expected = pytest.approx(losses(numpy.stdout), rel=1e-5)
    assert len(losses(numpy.stdout)) == 3
    assert losses(alone.stdout) == expected
    for rank in range(2):
        assert losses("\n".join(lines_of(rank, together.stdout))) == expected


ARRAYS = """
backend = ml.MLXBackend(ml.Mesh(data=2))
(rank,) = backend.engine.local_devices
x = backend.array(np.arange(4.0, dtype=np.float32), sharding=P("data"))
print(x)
print("mine", [shard.data.tolist() for shard in x.addressable_shards], x.mlx().tolist())
print("whole", x.numpy().tolist(), float((x * x).sum()))
y = backend.from_local_shards([[10.0 * rank + 1, 10.0 * rank + 2]], sharding=P("data"))
print("local", y.shape, y.numpy().tolist())
try:
    backend.engine.shard(x.shards, x.sharding, 1 - rank)
except ml.BackendError as error:
    print(error)
try:
    ml.MLXBackend(ml.Mesh(data=3))
except ml.BackendError as error:
    print(error)
print("own", ml.MLXBackend().array([1.0 + rank, 2.0]).numpy().tolist())
print("in turn", ml.MLXBackend(ml.Mesh(data=3), executor="lockstep").engine.local_devices)
"""


@pytest.mark.slow
def test_arrays_of_several_processes(tmp_path: Path) -> None:
    done = launch(2, script(tmp_path, ARRAYS))
    assert done.returncode == 0, done.stderr
    for rank, mine in ((0, "[[0.0, 1.0]] [0.0, 1.0]"), (1, "[[2.0, 3.0]] [2.0, 3.0]")):
        other = 1 - rank
        assert lines_of(rank, done.stdout) == [
            "Array(of several processes, float32[4], P('data'))",
            f"mine {mine}",
            "whole [0.0, 1.0, 2.0, 3.0] 14.0",
            "local (4,) [1.0, 2.0, 11.0, 12.0]",
            f"device {other} belongs to rank {other}, not to this one ({rank}); its part cannot be "
            f"read here; reshard the array to P() first",
            "mesh has 3 devices, and the job 2 processes; start as many processes as the mesh has "
            "devices",
            f"own [{1.0 + rank}, 2.0]",
            "in turn (0, 1, 2)",
        ]


EMULATED = """
backend = ml.MLXBackend(ml.Mesh(data=2, tensor=2), hardware="simulated")
model = ml.Linear(4, bias=False, sharding={"weight": P(None, "tensor")})
given = backend.array(np.ones((4, 8), np.float32), sharding=P("data"))
compiled = ml.compile(model, backend, shapes={"input": given})
if backend.engine.local_devices == (0,):
    print(compiled.explain())
    for row in compiled.plan.collectives():
        print(f"{row.kind}, {row.bytes} bytes, {row.cause.seconds * 1e6:.1f} us")
"""


@pytest.mark.slow
def test_what_is_emulated_is_priced_and_explained(tmp_path: Path) -> None:
    done = launch(4, script(tmp_path, EMULATED))
    assert done.returncode == 0, done.stderr
    text = "\n".join(lines_of(0, done.stdout))
    assert "all_reduce, 32 bytes, 0.3 us" in text, "0.2 us without"
    assert "emulated: all_gather among 4 devices, 128 bytes" in text


@pytest.fixture
def job():
    with training("mlx", 3, "data=3", "MLX_RANK") as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_ends_the_job_with_its_name(job: Training, victim: int) -> None:
    """Its peers wait in a collective that nothing interrupts: they are killed, too."""
    assert sorted(job.processes()) == ["0", "1", "2"]
    told, took = job.kill(victim)
    assert job.launcher.returncode == 128 + signal.SIGKILL
    assert f"rank {victim} " in told
    assert "SIGKILL" in told
    assert took < LIMIT
    wait_until(lambda: not job.processes())


@pytest.mark.slow
def test_nothing_listens_beyond_loopback_and_no_file_is_left(job: Training) -> None:
    ranks = job.processes()
    (hosts,) = {
        variables["MLX_HOSTFILE"] for pid, variables in processes_of(TRAIN) if pid in ranks.values()
    }
    assert Path(hosts).is_file()
    assert listening(set(ranks.values())) <= LOOPBACK
    job.launcher.send_signal(signal.SIGINT)
    job.launcher.communicate(timeout=60)
    assert job.launcher.returncode == 130
    assert not Path(hosts).exists()


@pytest.mark.slow
def test_a_killed_launcher_leaves_no_file(tmp_path: Path) -> None:
    assert files_of_a_killed_launcher("mlx", tmp_path, "MLX_RANK") == []


def test_commands_name_a_port_for_each_process(tmp_path: Path) -> None:
    started = commands(LaunchRequest("train.py", ("--lr", "1"), 3, folder=str(tmp_path)))
    assert [command.environment["MLX_RANK"] for command in started] == ["0", "1", "2"]
    (file,) = {command.environment["MLX_HOSTFILE"] for command in started}
    places = [place for (place,) in json.loads(Path(file).read_text())]
    assert Path(file).parent == tmp_path
    assert len(set(places)) == 3
    assert all(place.startswith("127.0.0.1:") for place in places)


def test_several_machines_are_refused() -> None:
    request = LaunchRequest("train.py", (), 1, nodes=2, coordinator="10.0.0.1:29500")
    with pytest.raises(OptionError) as caught:
        commands(request)
    assert str(caught.value) == (
        "mithril launch --backend mlx starts the processes of one machine, and the ring of several "
        "needs the address of each; start them by mlx.launch --hostfile"
    )


def test_a_job_is_known_by_its_variables() -> None:
    assert library_of({}) is None
    assert library_of({"MLX_RANK": "0", "MLX_HOSTFILE": "hosts.json"}) == "ring"
    assert library_of({"MLX_RANK": "0", "MLX_IBV_DEVICES": "devices.json"}) == "jaccl"
    assert library_of({"OMPI_COMM_WORLD_RANK": "0"}) == "mpi"


GONE = """
backend = ml.MLXBackend(ml.Mesh(data=2))
(rank,) = backend.engine.local_devices
x = backend.array(np.arange(4.0, dtype=np.float32), sharding=P("data"))
for step in range(4):
    if rank == 1 and step == 2:
        raise ValueError("boom")
    total = backend.sum(x * (step + 1.0))
    try:
        print("step", step, total.numpy().tolist(), flush=True)
    except ml.BackendError as error:
        print(error)
        sys.exit(7)
"""


def started(command: list[str], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_rank_that_outlives_another_reads_no_wrong_numbers(tmp_path: Path) -> None:
    """Without a launcher, which would stop it."""
    both = [
        started([sys.executable, script(tmp_path, GONE)], **dict(command.environment))
        for command in commands(LaunchRequest("", (), 2, folder=str(tmp_path)))
    ]
    told = [rank.communicate(timeout=60) for rank in both]
    assert told[0][0].splitlines()[:2] == ["step 0 6.0", "step 1 12.0"]
    assert "step 2" not in told[0][0]
    assert "rank 0 has lost another process of the job while they exchanged data: " in "".join(
        told[0]
    )
    assert "ValueError: boom" in told[1][1]


@pytest.mark.slow
def test_a_rank_that_raises_ends_a_job_of_mpi(tmp_path: Path) -> None:
    done = mpirun(2, script(tmp_path, GONE))
    assert done.returncode != 0
    assert "ValueError: boom" in done.stderr
    assert "step 2" not in done.stdout
