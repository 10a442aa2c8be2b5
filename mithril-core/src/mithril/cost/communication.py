"""Time of a collective in the alpha-beta model.

A device that sends m messages, b bytes in all, needs m alpha + b beta seconds. The class of each
collective knows m and b, by the formulas of Thakur, Rabenseifner and Gropp, "Optimization of
Collective Communication Operations in MPICH" (2005): recursive doubling and halving, whose start-up
grows with the logarithm of the group and whose bytes are the least possible; pairwise exchange for
all_to_all. Where only neighbours are linked, as in a torus, it is rings; what goes over several
links in a ring shares them with what others send, so that its bytes count once for each. Where each
two devices have a link of their own, each phase is one message to all at once. A group that crosses
several levels of links is priced by the narrowest of them; see `Hardware.link`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache

from mithril.cost.hardware import Hardware
from mithril.cost.levels import FULLY_CONNECTED, NEIGHBOURS, Link
from mithril.engine.transport import Call
from mithril.mesh import Mesh
from mithril.ops.collective import SEND, Traffic, class_of
from mithril.plan.timetable import Transfer

LARGE = 1 << 30
LEAST_SHARE = 8
"""How much longer the bytes of a bucket take than its start-up, at most."""


def collective_seconds(
    kind: str, nbytes: int, axes: Sequence[str], mesh: Mesh, hardware: Hardware
) -> float:
    """Return the predicted seconds of one collective, or of what is issued instead of it.

    Args:
        kind: of the collective (see `mithril.ops.collective`).
        nbytes: counted as in `mithril.plan.Collective`.
        axes: mesh axes it runs over.
        mesh: the devices.
        hardware: the profile to price with.

    >>> from mithril.cost import SIMULATED
    >>> collective_seconds("all_reduce", 10**9, ["a"], Mesh(a=2), SIMULATED)
    1.0000002
    """
    return price_collective(kind, axes, mesh, hardware)(nbytes)


def price_collective(
    kind: str, axes: Sequence[str], mesh: Mesh, hardware: Hardware
) -> Callable[[int], float]:
    """Return a function from the bytes of a collective to its `collective_seconds`.

    Args:
        kind: of the collective.
        axes: mesh axes it runs over.
        mesh: the devices.
        hardware: the profile to price with.

    >>> from mithril.cost import SIMULATED
    >>> seconds = price_collective("all_reduce", ["a"], Mesh(a=2), SIMULATED)
    >>> seconds(0), seconds(10**9)
    (2e-07, 1.0000002)
    """
    group, transport = mesh.product(axes), hardware.transport
    if transport is None:
        link = hardware.link(mesh, axes, kind)
        return lambda nbytes: _seconds(Call(kind, nbytes, group), link)

    @cache
    def find_link(of: str, is_among_group: bool) -> Link:
        # What is issued among others than the group may go over any axis.
        return hardware.link(mesh, axes if is_among_group else mesh.names, of)

    def price(nbytes: int) -> float:
        calls = transport.calls(kind, nbytes, group)
        return sum(_seconds(call, find_link(call.kind, call.group == group)) for call in calls)

    return price


def find_bucket_bytes(
    kind: str, axes: Sequence[str], mesh: Mesh, hardware: Hardware, share: int = LEAST_SHARE
) -> int:
    """Return the size from which the start-up of a collective is a small part of its time.

    More in one buffer would save little, and takes memory.

    Args:
        kind: of the collective.
        axes: mesh axes it runs over.
        mesh: the devices.
        hardware: the profile to price with.
        share: how much longer its bytes then take than its start-up.

    >>> from mithril.cost import SIMULATED
    >>> find_bucket_bytes("all_gather", ["a"], Mesh(a=2), SIMULATED)
    1600
    """
    start, per_byte = find_start_up(kind, axes, mesh, hardware)
    return round(share * start / per_byte) if per_byte else 0


def find_start_up(
    kind: str, axes: Sequence[str], mesh: Mesh, hardware: Hardware
) -> tuple[float, float]:
    """Return the seconds that a collective takes to start, and those that each byte takes.

    Args:
        kind: of the collective.
        axes: mesh axes it runs over.
        mesh: the devices.
        hardware: the profile to price with.

    >>> from mithril.cost import SIMULATED
    >>> start, per_byte = find_start_up("all_reduce", ["a"], Mesh(a=2), SIMULATED)
    >>> f"{start:.0e} {per_byte:.0e}"
    '2e-07 1e-09'
    """
    start = collective_seconds(kind, 0, axes, mesh, hardware)
    return start, (collective_seconds(kind, LARGE, axes, mesh, hardware) - start) / LARGE


def transfer_seconds(transfer: Transfer, hardware: Hardware) -> float:
    """Return the predicted seconds in which what goes between two parts of a mesh is there.

    Args:
        transfer: what goes where.
        hardware: the profile to price with.
    """
    seconds: dict[int, float] = defaultdict(float)
    for calls, sender, receiver in _messages(transfer, hardware):
        link = hardware.link_between((sender, receiver))
        seconds[receiver] += sum(_seconds(call, link) for call in calls)
    return max(seconds.values(), default=0.0)


def describe_relay(transfer: Transfer, hardware: Hardware) -> str:
    """Return in words what is sent where devices in between pass it on; empty where none does."""
    ways = [calls for calls, *_ in _messages(transfer, hardware)]
    longest = max(ways, key=len, default=())
    if len(longest) < 2:
        return ""
    return f"{len(longest)} sends one after another, {longest[0].bytes} bytes each"


def _messages(
    transfer: Transfer, hardware: Hardware
) -> Sequence[tuple[tuple[Call, ...], int, int]]:
    """Return the sends that bring each piece to its receiver, its sender, and that receiver."""
    transport, itemsize = hardware.transport, transfer.type.dtype.itemsize
    return [
        ((Call(SEND, piece.size * itemsize, 2),) * hops, piece.sender, piece.receiver)
        for piece in transfer.chunks
        if piece.sender != piece.receiver
        for hops in [1 if transport is None else len(transport.route(piece.sender, piece.receiver))]
    ]


def _seconds(call: Call, link: Link) -> float:
    traffic = _find_traffic(call, link.topology)
    return traffic.messages * link.latency + traffic.bytes * link.distance / link.bandwidth


def _find_traffic(call: Call, topology: str) -> Traffic:
    if call.kind == SEND:
        return Traffic(1, call.bytes)
    kind = class_of(call.kind)
    if topology in NEIGHBOURS:
        return kind.torus_traffic(call.bytes, call.group)
    is_direct = topology == FULLY_CONNECTED
    return (kind.direct_traffic if is_direct else kind.traffic)(call.bytes, call.group)


def describe_emulation(
    kind: str, nbytes: int, axes: Sequence[str], mesh: Mesh, hardware: Hardware
) -> str:
    """Return in words what is issued instead of a collective; empty where it is issued itself.

    Args:
        kind: of the collective.
        nbytes: counted as in `mithril.plan.Collective`.
        axes: mesh axes it runs over.
        mesh: the devices.
        hardware: the profile that says what carries the data.
    """
    transport = hardware.transport
    return (
        "" if transport is None else transport.describe_emulation(kind, nbytes, mesh.product(axes))
    )
