"""Jobs of two processes on JAX, started by `mithril launch` as a user starts them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from itertools import islice
from pathlib import Path

import jax
import pytest
from mithril.errors import BackendError
from mithril.plugins import LaunchRequest, free_port
from mithril_jax.processes import commands, raise_if_lost

from tests.runtime.jobs import LOOPBACK, crowding, listening, processes_of
from tests.runtime.scripts import (
    MARK,
    MITHRIL,
    TRAIN,
    Training,
    files_of_a_killed_launcher,
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_arrays_go_to_another_order_of_axes_among_processes(tmp_path: Path) -> None:
    code = """
backend = ml.JaxBackend(ml.Mesh(data=2, tensor=2))
other = backend.reorder(("tensor", "data"))
x = np.arange(8.0, dtype=np.float32)
there = other.own(backend.array(x, sharding=P("data")), "x")
print("mine", [shard.data.tolist() for shard in there.addressable_shards])
print("whole", (there + 1).numpy().tolist())
"""
    done = launch(script(tmp_path, code))
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        said = [line for line in done.stdout.splitlines() if line.startswith(f"[{rank}]")]
        for expected in (
            "mine [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]",
            "whole [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]",
        ):
            assert any(expected in line for line in said), (rank, expected, done.stdout)


@pytest.mark.slow
def test_a_backend_opened_after_jax_has_started_says_so(tmp_path: Path) -> None:
    done = launch(script(tmp_path, "import jax; jax.devices(); ml.JaxBackend(ml.Mesh(data=2))"))
    assert done.returncode == 1
    assert re.search(
        r"BackendError: process \d of 2 cannot join the job at 127.0.0.1:\d+; .*; open the backend "
        r"before anything else uses JAX",
        done.stderr,
    )


@pytest.mark.slow
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


@pytest.mark.slow
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


ENDS = """
import time
backend = ml.JaxBackend(ml.Mesh(data=2))
rank = backend.engine.local_devices[0]
x = backend.ones(8, sharding=P("data"))
for step in range(1000):
    x.sum().item()
    if step == 3 and rank == RANK:
        print("ends", time.time(), flush=True)
        END
"""
ENDINGS = [
    (0, "raise ValueError('boom')", 1),
    (1, "raise ValueError('boom')", 1),
    (0, "sys.exit(3)", 3),
    (1, "raise SystemExit(3)", 3),
    (0, "os._exit(3)", 3),
]


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "end", "code"), ENDINGS)
def test_a_process_that_fails_ends_the_job_at_once(
    rank: int, end: str, code: int, tmp_path: Path
) -> None:
    """The others wait for it in a collective, and JAX would wait for them at its end."""
    done = launch(script(tmp_path, ENDS.replace("RANK", str(rank)).replace("END", end)))
    assert seconds_since_the_end(done.stdout) < 5 * crowding()
    assert done.returncode == code, done.stderr
    *lines, last = done.stderr.splitlines()
    assert f"launch: rank {rank} ended with exit code {code} (pid " in last
    if "raise ValueError" in end:
        told = [line for line in lines if "Traceback" in line or "Error: " in line]
        assert told[:2] == [
            f"[{rank}] Traceback (most recent call last):",
            f"[{rank}] ValueError: boom",
        ]


def seconds_since_the_end(output: str) -> float:
    (ended,) = re.findall(r"ends (\S+)", output)
    return time.time() - float(ended)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_ends_early_and_well_does_not_leave_the_others_waiting(
    rank: int, tmp_path: Path
) -> None:
    done = launch(script(tmp_path, ENDS.replace("RANK", str(rank)).replace("END", "sys.exit(0)")))
    assert seconds_since_the_end(done.stdout) < 5 * crowding()
    assert done.returncode == 1
    assert f"launch: rank {1 - rank} ended with exit code 1 (pid " in done.stderr


@pytest.mark.slow
def test_a_process_may_end_long_before_the_others(tmp_path: Path) -> None:
    code = """
import time
backend = ml.JaxBackend(ml.Mesh(data=2))
print(backend.ones(8, sharding=P("data")).sum().item())
if backend.engine.local_devices == (1,):
    time.sleep(3)
    print("late")
"""
    done = launch(script(tmp_path, code))
    assert done.returncode == 0, done.stderr
    assert lines_of(1, done.stdout)[-1] == "late"


STARVING = 30
"""Seconds; with heartbeats of 10 s all processes were ended after 25."""


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [("0",), ("0", "1")])
def test_a_job_goes_on_after_its_processes_got_no_time(
    stopped: tuple[str, ...], job: Training
) -> None:
    processes = job.processes()
    for rank in stopped:
        os.kill(processes[rank], signal.SIGSTOP)
    time.sleep(STARVING)
    for rank in stopped:
        os.kill(processes[rank], signal.SIGCONT)
    assert job.launcher.stdout is not None
    steps = [line for line in islice(job.launcher.stdout, 40) if "step" in line]
    assert len(steps) > 10
    assert job.launcher.poll() is None


def services(job: Training) -> list[int]:
    """Return the processes of the job's coordination service."""
    found = processes_of("mithril_jax.coordination")
    return [pid for pid, variables in found if variables.get(MARK) == job.mark]


@pytest.mark.slow
def test_a_killed_launcher_leaves_no_file(tmp_path: Path) -> None:
    assert files_of_a_killed_launcher("jax", tmp_path, "MITHRIL_JAX_PROCESS") == []


def test_commands_of_several_machines() -> None:
    first, second = (
        commands(LaunchRequest("a.py", (), 2, nodes=2, node_rank=node, coordinator="node0:9"))
        for node in range(2)
    )
    assert [command.name for command in first] == ["coordination service", "rank 0", "rank 1"]
    assert [command.name for command in second] == ["rank 2", "rank 3"]
    assert first[0].argv[-4:] == ("[::]:9", "4", "60", "300")
    (alone, _) = commands(LaunchRequest("a.py"))
    assert alone.argv[-4].startswith("127.0.0.1:")
    assert alone.argv[-3:] == ("1", "86400", "0")


def test_the_port_of_a_service_is_given_to_nobody_else() -> None:
    (service, _) = commands(LaunchRequest("a.py"))
    place = ("127.0.0.1", int(service.argv[-4].rpartition(":")[2]))
    with socket.socket() as another, pytest.raises(OSError, match="in use"):
        another.bind(place)
    with socket.socket() as served:
        served.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        served.bind(place)
        served.listen()


@pytest.fixture
def job():
    with training("jax", 2, "data=4", "MITHRIL_JAX_PROCESS") as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_ends_the_job_and_is_named(job: Training, victim: int) -> None:
    assert sorted(job.processes()) == ["0", "1"]
    told, took = job.kill(victim)
    assert job.launcher.returncode == 128 + signal.SIGKILL
    assert f"rank {victim} " in told
    assert "SIGKILL" in told
    assert not job.processes(), "nothing is left running"
    assert took < LIMIT


@pytest.mark.slow
def test_nothing_listens_beyond_loopback_and_a_service_that_ends_is_named(job: Training) -> None:
    found = listening({*job.processes().values(), *services(job)})
    assert found
    assert found <= LOOPBACK
    (service,) = services(job)
    os.kill(service, signal.SIGKILL)
    _, errors = job.launcher.communicate(timeout=60)
    assert job.launcher.returncode == 128 + signal.SIGKILL
    assert "launch: coordination service ended by SIGKILL (pid " in errors
    assert not job.processes()


def test_a_place_that_is_half_said(tmp_path: Path) -> None:
    code = """
try:
    ml.JaxBackend()
except ml.BackendError as error:
    print(error)
"""
    told = ran([sys.executable, script(tmp_path, code)], MITHRIL_JAX_COORDINATOR="127.0.0.1:1")
    assert told.stdout == (
        "environment variable MITHRIL_JAX_COORDINATOR is set, and 'MITHRIL_JAX_PROCESSES', "
        "'MITHRIL_JAX_PROCESS', 'MITHRIL_JAX_NODES' not; start the job by mithril launch, or "
        "unset it\n"
    )


@pytest.mark.slow
def test_a_rank_hears_of_sigterm(tmp_path: Path) -> None:
    """The others get it when one fails, to save what they have."""
    code = """
def save(number, frame):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
backend = ml.JaxBackend(ml.Mesh(data=2))
float(backend.ones(4, sharding=P("data")).sum())
if ml.is_main():
    time.sleep(1.5)
    raise ValueError("of the user")
while True:
    time.sleep(0.1)
"""
    done = launch("--grace", "20", script(tmp_path, code, "signal", "sys", "time"))
    assert "[1] saved" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_a_process_that_is_lost_is_told(tmp_path: Path) -> None:
    """It ends well, so nobody stops the others: they find out in their next exchange."""
    code = """
backend = ml.JaxBackend(ml.Mesh(data=2))
total = ml.jit(lambda x: (x * x).sum(), backend=backend)
x = backend.arange(8.0, sharding=P("data"))
float(total(x))
if not ml.is_main():
    os._exit(0)
try:
    while True:
        float(total(x))
except ml.BackendError as error:
    print(error, flush=True)
os._exit(0)
"""
    done = launch(script(tmp_path, code))
    text = "process 0 of 2 has lost another process of the job while they exchanged data: "
    assert f"[0] {text}" in done.stdout, done.stdout + done.stderr


LOST = "UNAVAILABLE: Gloo all-reduce failed: Connection closed by peer"


def place(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("COORDINATOR", "127.0.0.1:1"), ("PROCESS", "0"), ("PROCESSES", "2")):
        monkeypatch.setenv(f"MITHRIL_JAX_{name}", value)


@pytest.mark.parametrize("error", [jax.errors.JaxRuntimeError(LOST), ValueError(LOST)])
def test_errors_of_connections_tell_of_a_lost_process(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    raise_if_lost(error)  # there is no job, so that it is something else
    place(monkeypatch)
    text = "process 0 of 2 has lost another process of the job while they exchanged data: UNAVAIL"
    with pytest.raises(BackendError, match=text):
        raise_if_lost(error)


@pytest.mark.parametrize("kind", [RuntimeError, ConnectionRefusedError])
def test_what_a_user_raises_is_no_lost_process(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel raises while it is traced, a callback while it runs."""
    place(monkeypatch)

    def ask(x: object) -> object:
        raise kind("Connection refused: UNAVAILABLE")

    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        jax.block_until_ready(jax.jit(lambda x: jax.pure_callback(ask, x, x))(jax.numpy.ones(2)))
    assert "Connection refused" in str(raised.value)
    raise_if_lost(raised.value)
    raise_if_lost(RuntimeError("Connection refused: UNAVAILABLE"))
    raise_if_lost(ValueError("Connection refused: UNAVAILABLE"))
