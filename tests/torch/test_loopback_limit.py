"""Whether somebody limits the loopback device is read from what netlink tells of its queues."""

from __future__ import annotations

import socket
import struct
import sys

import pytest

pytest.importorskip("torch")

from mithril_torch.program.runtime_library import loopback_limit

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="netlink is Linux's")


def answer_queue(index: int, kind: str) -> bytes:
    """Return what netlink tells of a queue."""
    name = kind.encode() + b"\0"
    attribute = struct.pack("=HH", 4 + len(name), 1) + name
    body = struct.pack(loopback_limit.TRAFFIC, 0, index, 0, 0, 0) + attribute
    body += b"\0" * (-len(body) % 4)
    size = struct.calcsize(loopback_limit.HEADER) + len(body)
    return struct.pack(loopback_limit.HEADER, size, loopback_limit.RTM_NEWQDISC, 2, 1, 0) + body


END = struct.pack(loopback_limit.HEADER, 16, 3, 2, 1, 0)


@pytest.mark.parametrize(
    ("kinds", "limited"),
    [
        (["noqueue"], False), ([], False), (["noqueue", "clsact"], False), (["tbf"], True),
        (["noqueue", "ingress", "netem"], True), (["htb", "fq_codel"], True),
    ],
)  # fmt: skip
def test_queues_of_the_loopback_device_are_read(
    kinds: list[str], limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = socket.if_nametoindex("lo")
    rows = [answer_queue(index, kind) for kind in kinds]
    answers = [b"".join([answer_queue(index + 1, "tbf"), *rows[:1]]), b"".join(rows[1:]), END]
    asked: list[bytes] = []

    class Link:
        def __enter__(self) -> Link:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def settimeout(self, seconds: float) -> None:
            assert seconds > 0

        def send(self, request: bytes) -> None:
            asked.append(request)

        def recv(self, size: int) -> bytes:
            return answers.pop(0)

    monkeypatch.setattr(socket, "socket", lambda *_: Link())
    assert loopback_limit.is_loopback_limited() is limited
    assert len(asked) == 1
    assert not answers


def test_the_kernel_tells_of_its_queues() -> None:
    found = loopback_limit.list_queues(socket.if_nametoindex("lo"))
    assert all(kind.isidentifier() for kind in found)
