"""The texts that rank 0 of a job keeps: others write and read them, and strangers do not."""

from __future__ import annotations

import json
import socket
import uuid
from pathlib import Path
from threading import Thread

import pytest
from mithril.errors import BackendError

pytest.importorskip("mlx")

from mithril_mlx import job_store
from mithril_mlx.job_store import LOOPBACK, KeptTexts, ServedTexts

from tests.mlx.jobs import mpirun
from tests.runtime.scripts import script


@pytest.fixture
def kept() -> KeptTexts:
    return KeptTexts()


@pytest.fixture
def served(kept: KeptTexts) -> ServedTexts:
    return ServedTexts(*job_store._serve(kept, LOOPBACK))


def test_other_ranks_read_and_write_what_rank_0_keeps(kept: KeptTexts, served: ServedTexts) -> None:
    served.set("a/0", "früh\nspät")
    assert kept.get("a/0", 0.0) == served.get("a/0", 0.0) == "früh\nspät"
    served.set("a/0", "")
    assert served.get("a/0", 60.0) == ""
    assert served.get("b", 0.01) is None


def test_who_waits_gets_what_comes(kept: KeptTexts, served: ServedTexts) -> None:
    found: list[str | None] = []
    waiting = Thread(target=lambda: found.append(served.get("late", 60.0)))
    waiting.start()
    kept.set("late", "here")
    waiting.join(60)
    assert found == ["here"]


GUESSES = ("guess", "früh", "a")


@pytest.mark.parametrize(
    "line",
    [
        *(f'["{guess}", "a", "text", 0.0]' for guess in GUESSES),
        "[]",
        "5",
        "[" * 100_000,
        "GET /",
        "",
    ],
    ids=[*GUESSES, "nothing", "a number", "deep", "http", "an empty line"],
)
def test_strangers_are_told_nothing(
    line: str, kept: KeptTexts, served: ServedTexts, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection((served.host, served.port), 60) as link:
        link.sendall(line.encode() + b"\n")
        assert link.recv(100) == b""
    assert kept.texts == {}
    assert capfd.readouterr().err == ""


def test_who_asks_nothing_is_left(kept: KeptTexts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_store, "SILENCE", 0.05)
    host, port, _ = job_store._serve(kept, LOOPBACK)
    with socket.create_connection((host, port), 60) as link:
        assert link.recv(100) == b""


def test_rank_0_may_have_an_address_of_ipv6() -> None:
    kept = KeptTexts()
    place = job_store._serve(kept, "::1")
    if place[1] == 0:
        pytest.skip("this machine has no IPv6")
    ServedTexts(*place).set("a", "text")
    assert kept.get("a", 0.0) == "text"


def test_a_hardware_address_that_a_process_draws_is_not_of_its_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hash_with(node: int) -> int:
        monkeypatch.setattr(uuid, "getnode", lambda: node)
        return job_store._hash_machine()

    assert hash_with(0x010000000001) == hash_with(0x010000000002)
    assert hash_with(0x020000000001) != hash_with(0x020000000002)


def test_a_rank_0_that_is_gone() -> None:
    with socket.socket() as unused:
        unused.bind((LOOPBACK, 0))  # nobody listens
        served = ServedTexts(LOOPBACK, unused.getsockname()[1], "token")
        pattern = r"^rank 0, through which .* cannot be reached at 127\.0\.0\.1:\d+: .*refused"
        with pytest.raises(BackendError, match=pattern):
            served.get("a", 0.0)


def test_a_port_that_may_not_be_listened_at() -> None:
    assert job_store._serve(KeptTexts(), "192.0.2.1")[1] == 0


def test_where_rank_0_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = tmp_path / "hosts.json"
    hosts.write_text(json.dumps([["10.0.0.1:5000", "10.0.1.1:5001"], ["10.0.0.2:5000"]]))
    monkeypatch.setenv("MLX_HOSTFILE", str(hosts))
    monkeypatch.setenv("MLX_JACCL_COORDINATOR", "[fd00::1]:4000")
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "10.0.0.3")
    one, several = [7, 7, 7], [7, 8, 8]
    assert job_store._find_host("ring", one) == LOOPBACK
    assert job_store._find_host("ring", several) == "10.0.0.1"
    assert job_store._find_host("jaccl", several) == "fd00::1"
    assert job_store._find_host("mpi", several) == "10.0.0.3"
    monkeypatch.delenv("MLX_HOSTFILE")
    assert job_store._find_host("ring", several) == LOOPBACK


JOB = """
from mithril_mlx import job_store
if "unreachable" in sys.argv:
    job_store._serve = lambda kept, host: (host, 0, "")
backend = ml.MLXBackend(ml.Mesh(data=2))
store, rank = backend.engine.job_store, ml.process_index()
total = ml.jit(lambda x: (x * 2).sum(), backend=backend)
told = f"{store is not None} {total(backend.ones(8, sharding=P('data'))).item()}\\n"
try:
    total(backend.ones(8, 2 + rank, sharding=P("data")))
except ml.BackendError as error:
    os.write(1, f"{told}{str(error)[:40]}\\n".encode())  # at once: mpirun mixes lines
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["reachable", "unreachable"])
def test_processes_of_mpi_compare_plans(how: str, tmp_path: Path) -> None:
    """Through rank 0, or all together where one of them does not reach it."""
    done = mpirun(2, script(tmp_path, JOB), how)
    assert done.returncode == 0, done.stderr
    expected = [f"{how == 'reachable'} 16.0", "function 'lambda' is called with x float"]
    assert done.stdout.splitlines() == expected * 2
