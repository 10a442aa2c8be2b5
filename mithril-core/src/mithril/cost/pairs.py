"""The price of a collective of a program: of a permute by who sends to whom.

What stays inside a node takes its links alone.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from mithril.cost.communication import collective_seconds, describe_emulation
from mithril.cost.crossing import level_within
from mithril.cost.hardware import Hardware
from mithril.ir import Cause
from mithril.mesh import Mesh
from mithril.ops.collective import Collective, Permute


def exchange_seconds(op: Collective, nbytes: int, mesh: Mesh, hardware: Hardware) -> float:
    """Return the predicted seconds of a collective of a program.

    A permute takes as long as the slowest of its pairs. Any other kind, and what is carried out
    by something else, is priced by the axes it runs over.

    Args:
        op: the collective.
        nbytes: counted as in `mithril.plan.Collective`.
        mesh: the devices.
        hardware: the profile to price with.

    >>> from dataclasses import replace
    >>> from mithril.cost import SIMULATED
    >>> from mithril.cost.levels import Level
    >>> levels = Level("node", 2, 1e-6, 1e10), Level("pod", None, 1e-4, 1e8)
    >>> mesh, nodes = Mesh(a=4), replace(SIMULATED, levels=levels)
    >>> inside, between = Permute(("a",), ((0, 1), (2, 3))), Permute(("a",), ((0, 2), (1, 3)))
    >>> [f"{exchange_seconds(op, 10**6, mesh, nodes):.6f}" for op in (inside, between)]
    ['0.000101', '0.010100']
    """
    by_axes = op.name, nbytes, op.axes, mesh, hardware
    if not isinstance(op, Permute) or len(hardware.levels) < 2 or describe_emulation(*by_axes):
        return collective_seconds(*by_axes)
    sizes = tuple(level.devices for level in hardware.levels)
    link = hardware.levels[_find_level(op, sizes, mesh)].link_of(op.name)
    traffic = op.traffic(nbytes, mesh.product(op.axes))
    return traffic.messages * link.latency + traffic.bytes / link.bandwidth


def price_cause(cause: Cause, op: Collective, nbytes: int, mesh: Mesh, hardware: Hardware) -> Cause:
    """Return why a collective is there, with its price, and what is issued in its place.

    Args:
        cause: of what it stands for.
        op: the collective.
        nbytes: counted as in `mithril.plan.Collective`.
        mesh: the devices.
        hardware: the profile to price with.
    """
    return replace(
        cause,
        seconds=exchange_seconds(op, nbytes, mesh, hardware),
        emulated=describe_emulation(op.name, nbytes, op.axes, mesh, hardware),
    )


@lru_cache(maxsize=4096)
def _find_level(op: Permute, sizes: tuple[int | None, ...], mesh: Mesh) -> int:
    """Return the outermost level that a pair of any group crosses."""
    return max(
        level_within(sizes, [mesh.in_whole(group[end]) for end in pair])
        for group in mesh.groups(op.axes)
        for pair in op.pairs
    )


__all__ = ["exchange_seconds", "price_cause"]
