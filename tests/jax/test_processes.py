"""Jobs of two processes on JAX, started by `mithril launch` as a user starts them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from mithril.plugins import free_port

from tests.profiles import quick
from tests.runtime.jobs import LOOPBACK, listening
from tests.runtime.scripts import (
    MITHRIL,
    TRAIN,
    Training,
    launched,
    lines_of,
    losses,
    ran,
    script,
    training,
)

LIMIT = 15  # seconds in which a job with a dead process has to end


launch = partial(launched, "jax", 2)


@pytest.mark.slow
def test_two_processes_train_as_one_does() -> None:
    options = ("--backend", "jax", "--mesh", "data=4,tensor=2", "--steps", "4")
    alone = ran([sys.executable, TRAIN, *options])
    together = launch(TRAIN, *options)
    assert together.returncode == 0, together.stderr
    assert len(losses(alone.stdout)) == 4
    for rank in range(2):
        assert losses("\n".join(lines_of(rank, together.stdout))) == losses(alone.stdout)


def test_arrays_of_several_processes(tmp_path: Path) -> None:
    code = """
backend = ml.JaxBackend(ml.Mesh(data=4))
x = backend.array(np.arange(8.0, dtype=np.float32), sharding=P("data"))
print(x)
print("mine", [shard.data.tolist() for shard in x.addressable_shards])
print("whole", x.numpy().tolist(), float((x * x).sum()))
rank = backend.engine.local_devices[0] // 2
rows = [[10.0 * rank + 1, 10.0 * rank + 2], [10.0 * rank + 3, 10.0 * rank + 4]]
y = backend.from_local_shards(rows, sharding=P("data"))
print("read", y.shape, y.numpy().tolist())
uneven = [[1.0], [2.0]] if rank == 0 else [[3.0], []]
print("uneven", backend.from_local_shards(uneven, shape=(3,), sharding=P("data")).numpy().tolist())
try:
    ml.JaxBackend(ml.Mesh(data=3))
except ml.BackendError as error:
    print(error)
print("own", ml.JaxBackend().ones(2).numpy().tolist())
"""
    done = launch(script(tmp_path, code))
    assert done.returncode == 0, done.stderr
    for rank, mine in ((0, "[[0.0, 1.0], [2.0, 3.0]]"), (1, "[[4.0, 5.0], [6.0, 7.0]]")):
        # Gloo writes about itself in pieces, which may come in the middle of a line.
        said = [line for line in done.stdout.splitlines() if line.startswith(f"[{rank}]")]
        for expected in (
            "Array(of several processes, float32[8], P('data'))",
            f"mine {mine}",
            "whole [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0] 140.0",
            "read (8,) [1.0, 2.0, 3.0, 4.0, 11.0, 12.0, 13.0, 14.0]",
            "uneven [1.0, 2.0, 3.0]",
            "mesh of 3 devices does not divide among 2 processes; use a mesh of 4 devices, or "
            "another number of processes",
            "own [1.0, 1.0]",
        ):
            assert any(expected in line for line in said), (rank, expected, done.stdout)


def test_a_backend_opened_after_jax_has_started_says_so(tmp_path: Path) -> None:
    done = launch(script(tmp_path, "import jax; jax.devices(); ml.JaxBackend(ml.Mesh(data=2))"))
    assert done.returncode == 1
    assert re.search(
        r"BackendError: process \d of 2 cannot join the job at 127.0.0.1:\d+; .*; open the backend "
        r"before anything else uses JAX",
        done.stderr,
    )


@quick(lambda answer: "raise" in answer)
@pytest.mark.parametrize("answer", ["return '192.0.2.1'", "raise socket.gaierror('no such name')"])
def test_loopback_is_kept_to_where_the_machine_has_another_name(
    answer: str, tmp_path: Path
) -> None:
    """JAX lets its collectives listen where the name of the machine leads."""
    code = f"""
import socket
def lead(name): {answer}
socket.gethostbyname = lead
from jax._src.lib import _jax
make, asked = _jax.make_gloo_tcp_collectives, []
_jax.make_gloo_tcp_collectives = lambda **options: asked.append(options) or make(**options)
backend = ml.JaxBackend(ml.Mesh(data=2))
print(backend.ones(8, sharding=P("data")).sum().item(), asked[0]["hostname"])
"""
    done = launch(script(tmp_path, code))
    assert done.returncode == 0, done.stderr
    assert "[1] 8.0 127.0.0.1" in done.stdout.splitlines()


def test_two_nodes_meet_at_the_coordinator(tmp_path: Path) -> None:
    code = """
backend = ml.JaxBackend(ml.Mesh(data=4))
print("sum", float(backend.arange(8.0, sharding=P("data")).sum()), backend.engine.local_devices)
"""
    place = f"127.0.0.1:{free_port()}"
    shared = [MITHRIL, "launch", "--backend", "jax", "-n", "1", "--nodes", "2"]
    nodes = [
        subprocess.Popen(
            [*shared, "--node-rank", str(node), "--coordinator", place, script(tmp_path, code)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    told = [node.communicate(timeout=120)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0]
    assert "[0] sum 28.0 (0, 1)" in told[0].splitlines()
    assert "[1] sum 28.0 (2, 3)" in told[1].splitlines()


@pytest.fixture
def job():
    with training("jax", 2, "data=4", "MITHRIL_JAX_PROCESS") as running:
        yield running


@quick(lambda victim: victim == 1)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_ends_the_job_and_is_named(job: Training, victim: int) -> None:
    assert sorted(job.processes()) == ["0", "1"]
    told, took = job.kill(victim)
    assert job.launcher.returncode == 128 + signal.SIGKILL
    assert f"rank {victim} " in told
    assert "SIGKILL" in told
    assert not job.processes(), "nothing is left running"
    assert took < LIMIT


def test_nothing_listens_beyond_loopback(job: Training) -> None:
    found = listening(set(job.processes().values()))
    assert found
    assert found <= LOOPBACK
