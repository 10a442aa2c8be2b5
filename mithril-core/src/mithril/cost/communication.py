"""Time of a collective in the alpha-beta model.

The formulas are those of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
Operations in MPICH" (2005): recursive doubling and halving, whose start-up grows with the logarithm
of the group and whose bytes are the least possible; pairwise exchange for all_to_all.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from mithril.cost.hardware import Hardware
from mithril.engine.transport import Call
from mithril.plan.timetable import Transfer


def collective_seconds(kind: str, nbytes: float, group: int, hardware: Hardware) -> float:
    """Return the predicted seconds of one collective, or of what is issued instead of it.

    Args:
        kind: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all` or `permute`.
        nbytes: the buffer of an all_reduce, the output of an all_gather, the input of a
            reduce_scatter, the local part of an all_to_all or permute.
        group: devices that take part.
        hardware: the profile to price with.

    >>> from mithril.cost import SIMULATED
    >>> collective_seconds("all_reduce", 1e9, 2, SIMULATED)
    1.0000002
    """
    if hardware.transport is None:
        return _seconds(kind, nbytes, group, hardware)
    calls = hardware.transport.calls(kind, int(nbytes), group)
    return sum(_seconds(call.kind, call.bytes, call.group, hardware) for call in calls)


def transfer_seconds(transfer: Transfer, hardware: Hardware) -> float:
    """Return the predicted seconds in which what goes between two parts of a mesh is there.

    Args:
        transfer: what goes where.
        hardware: the profile to price with.
    """
    seconds: dict[int, float] = defaultdict(float)
    for calls, receiver in _messages(transfer, hardware):
        seconds[receiver] += sum(_seconds(c.kind, c.bytes, c.group, hardware) for c in calls)
    return max(seconds.values(), default=0.0)


def relayed(transfer: Transfer, hardware: Hardware) -> str:
    """Return in words what is sent where devices in between pass it on; empty where none does."""
    ways = [calls for calls, _ in _messages(transfer, hardware)]
    longest = max(ways, key=len, default=())
    if len(longest) < 2:
        return ""
    return f"{len(longest)} sends one after another, {longest[0].bytes} bytes each"


def _messages(transfer: Transfer, hardware: Hardware) -> Sequence[tuple[tuple[Call, ...], int]]:
    """Return the sends that bring each piece to its receiver, and that receiver."""
    transport, itemsize = hardware.transport, transfer.type.dtype.itemsize
    return [
        ((Call("send", piece.size * itemsize, 2),) * hops, piece.receiver)
        for piece in transfer.chunks
        if piece.sender != piece.receiver
        for hops in [1 if transport is None else len(transport.route(piece.sender, piece.receiver))]
    ]


def _seconds(kind: str, nbytes: float, group: int, hardware: Hardware) -> float:
    if kind in ("permute", "send"):
        return hardware.latency + nbytes / hardware.bandwidth
    messages = group - 1 if kind == "all_to_all" else math.ceil(math.log2(group))
    once = messages * hardware.latency + (group - 1) / group * nbytes / hardware.bandwidth
    return 2 * once if kind == "all_reduce" else once


def emulated(kind: str, nbytes: int, group: int, hardware: Hardware) -> str:
    """Return in words what is issued instead of a collective; empty where it is issued itself."""
    transport = hardware.transport
    return "" if transport is None else transport.emulated(kind, nbytes, group)
