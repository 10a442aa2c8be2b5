"""Whether the loopback device of this host is limited, so that it stands for a slower network."""

from __future__ import annotations

import socket
import struct

NETLINK_ROUTE = 0
RTM_NEWQDISC = 36
RTM_GETQDISC = 38
NLM_F_REQUEST_DUMP = 0x301
HEADER = "=IHHII"
"""Of a message of netlink, as in `linux/netlink.h`."""
TRAFFIC = "=BxxxiIII"
"""Of a message about queues, `struct tcmsg`; behind it are attributes, the kind is the first."""
FREE = ("noqueue", "clsact", "ingress")
"""Kinds of queues that let everything pass at once: the last two hold filters."""


def is_loopback_limited() -> bool:
    """Return whether somebody has `tc` shape what passes the loopback device.

    Who does so wants to see programs behind a slow network; memory would pass it by.
    """
    try:
        index = socket.if_nametoindex("lo")
        kinds = list_queues(index)
    except (AttributeError, OSError, struct.error):  # not Linux, or a container without netlink
        return False
    return any(kind not in FREE for kind in kinds)


def list_queues(index: int) -> list[str]:
    """Return the kinds of the queues of a network device.

    Raises:
        AttributeError: this system has no netlink.
        OSError: netlink does not answer.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_ROUTE) as link:
        link.settimeout(1.0)
        request = struct.pack(TRAFFIC, 0, index, 0, 0, 0)
        size = struct.calcsize(HEADER) + len(request)
        link.send(struct.pack(HEADER, size, RTM_GETQDISC, NLM_F_REQUEST_DUMP, 1, 0) + request)
        kinds: list[str] = []
        while read_queues(link.recv(1 << 16), index, kinds):
            pass
        return kinds


def read_queues(answer: bytes, index: int, kinds: list[str]) -> bool:
    """Add the kinds of the queues of a device in an answer; return whether more answers follow.

    The kind is the first attribute of a queue.
    """
    start, head = 0, struct.calcsize(HEADER)
    while start + head <= len(answer):
        size, what = struct.unpack_from("=IH", answer, start)
        if what != RTM_NEWQDISC:
            return False  # the end, or an error
        at = start + head
        if struct.unpack_from(TRAFFIC, answer, at)[1] == index:
            at += struct.calcsize(TRAFFIC)
            (length,) = struct.unpack_from("=H", answer, at)
            kinds.append(answer[at + 4 : at + length].rstrip(b"\0").decode())
        start += -(-size // 4) * 4
    return True


__all__: list[str] = []
