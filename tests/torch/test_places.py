"""Where processes that something else started stand, and which network they exchange data over."""

from __future__ import annotations

import re

import pytest
from mithril.errors import BackendError
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
