"""A network of limited speed on one machine: what a job sends over loopback passes a token bucket.

A network namespace of its own holds nothing but a loopback device with a token bucket filter (`tc`),
which all ranks share. Needs root and iproute2.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from mithril import Hardware
from mithril.cost import Level, Link

BURST = "256kb"
LARGEST_PACKET = "9000"
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@contextmanager
def limit(rate: str | None) -> Iterator[list[str]]:
    """Yield what a command begins with that is to run behind a link; nothing for no limit.

    Args:
        rate: as `tc` has it, such as `200mbit`; None for loopback as it is.
    """
    if rate is None:
        yield []
        return
    space = f"mithril-{os.getpid()}"
    inside = ["ip", "netns", "exec", space]
    subprocess.run(["ip", "netns", "add", space], check=True)
    try:
        for command in (
            "ip link set lo up",
            f"ip link set lo mtu {LARGEST_PACKET}",
            f"tc qdisc add dev lo root tbf rate {rate} burst {BURST} latency 200ms",
        ):
            subprocess.run([*inside, *command.split()], check=True)
        yield inside
    finally:
        subprocess.run(["ip", "netns", "del", space], check=True)


def bytes_per_second(rate: str) -> float:
    """Return what a rate of `tc` lets through.

    >>> bytes_per_second("200mbit")
    25000000.0
    """
    for unit, factor in UNITS.items():
        if rate.endswith(unit):
            return float(rate.removesuffix(unit)) * factor / 8
    raise ValueError(f"rate '{rate}' has no unit; give one of {', '.join(UNITS)}")


def behind(hardware: Hardware, rate: str | None, ranks: int) -> Hardware:
    """Return a profile whose devices share a link of a rate; the same for no limit.

    Args:
        hardware: of the machine.
        rate: as `tc` has it.
        ranks: how many share it.
    """
    if rate is None:
        return hardware
    most = bytes_per_second(rate) / ranks
    levels = tuple(_slow(level, most) for level in hardware.levels)
    return replace(hardware, name=f"{hardware.name} behind {rate}", levels=levels)


def _slow(level: Level, most: float) -> Level:
    kinds = {
        kind: Link(link.latency, min(link.bandwidth, most))
        for kind, link in level.collectives.items()
    }
    # What takes so much longer is the network's work, beside which a processor computes.
    is_slower = most < level.bandwidth
    return replace(
        level,
        bandwidth=min(level.bandwidth, most),
        collectives=kinds,
        by_processor=level.by_processor and not is_slower,
    )
