"""Where processes that something else started stand, and which network they exchange data over."""

from __future__ import annotations

import os
import re

import mithril as ml
import pytest
import torch
import torch.distributed as dist
from mithril.errors import BackendError
from mithril_torch.eject import standalone
from mithril_torch.launch.distributed import job_of

PLACE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "localhost", "::1"])
def test_processes_that_meet_on_loopback_stay_on_it(address: str) -> None:
    job = job_of({**PLACE, "MASTER_ADDR": address})
    assert job is not None
    assert job.is_on_loopback


@pytest.mark.parametrize("address", ["10.77.0.1", "node0", "fe80::1", "localhost.example.org"])
def test_another_address_may_be_on_another_machine(address: str) -> None:
    job = job_of({**PLACE, "MASTER_ADDR": address})
    assert job is not None
    assert not job.is_on_loopback


@pytest.mark.parametrize(("here", "is_on_loopback"), [("2", True), ("1", False)])
def test_how_many_a_machine_has_is_believed(here: str, is_on_loopback: bool) -> None:
    for address in ("10.77.0.1", "127.0.0.1"):
        job = job_of({**PLACE, "MASTER_ADDR": address, "LOCAL_WORLD_SIZE": here})
        assert job is not None
        assert job.is_on_loopback == is_on_loopback


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            {"RANK": "2"},
            "environment variable RANK=2 counts from 0, and WORLD_SIZE=2; give each process a "
            "number of its own below that",
        ),
        (
            {"MASTER_PORT": "99999"},
            "environment variable MASTER_PORT=99999 is no port; the last one is 65535; set one "
            "that is free",
        ),
    ],
)
def test_places_that_cannot_be(changed: dict[str, str], text: str) -> None:
    with pytest.raises(BackendError, match=f"^{re.escape(text)}$"):
        job_of({**PLACE, "MASTER_ADDR": "127.0.0.1", **changed})


@pytest.mark.parametrize(
    ("address", "is_meant"),
    [
        ("127.0.0.1", True), ("localhost", True), ("[::1]", True), ("0:0:0:0:0:0:0:1", True),
        ("127.example.org", False), ("localhost.cluster.example", False), ("::123", False),
    ],
)  # fmt: skip
def test_an_ejected_file_stays_on_loopback_where_processes_meet_there(
    address: str, is_meant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    for name, value in {**PLACE, "MASTER_ADDR": address, "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)

    def meet(*arguments: object, **options: object) -> None:
        raise KeyError("nobody is there")

    monkeypatch.setattr(standalone, "TCPStore", meet)
    with pytest.raises(KeyError, match="nobody is there"):
        standalone.meet_others(2, "cpu")
    assert ("GLOO_SOCKET_IFNAME" in os.environ) == is_meant


@pytest.mark.parametrize("text", ["Connection refused", "Broken pipe"])
def test_what_a_kernel_of_a_user_raises_is_no_lost_process(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have connections of its own."""

    def ask(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(f"data base: {text}")

    double = ml.define_op(
        "places.ask", shapes=lambda x: x, rule="elementwise", kernels={"torch": ask}
    )
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    x = ml.TorchBackend(device="cpu").ones(2)
    with pytest.raises(RuntimeError, match=f"^data base: {text}"):
        ml.jit(lambda x: double(x) + 1)(x)
