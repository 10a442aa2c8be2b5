"""Levels of links: what a message costs between devices that are linked alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from mithril.cost.rates import check_figure
from mithril.errors import OptionError, listing, nearest
from mithril.ops.collective import SEND, collectives

SWITCH, TORUS, RING, FAT_TREE, FULLY_CONNECTED = (
    "switch", "torus", "ring", "fat_tree", "fully_connected",
)  # fmt: skip
TOPOLOGIES = (SWITCH, TORUS, RING, FAT_TREE, FULLY_CONNECTED)
NEIGHBOURS = (TORUS, RING)
"""Where only neighbours are linked."""


@dataclass(frozen=True, slots=True)
class Link:
    """What a message costs: `latency + bytes / bandwidth` seconds (the alpha-beta model).

    Args:
        latency: seconds to start one message (alpha).
        bandwidth: bytes per second a device sends (1 / beta).
        topology: of the devices that are linked, as of `Level`.
        distance: how many links one after another what is sent goes over, which share them.
    """

    latency: float
    bandwidth: float
    topology: str = SWITCH
    distance: int = 1


@dataclass(frozen=True, slots=True)
class Level:
    """Devices that are linked alike: those of a node, the nodes of a pod.

    Args:
        name: `node`, `pod`.
        devices: how many devices in flat order it links, a multiple of those of the level before;
            None for any number.
        latency: seconds to start one message.
        bandwidth: bytes per second a device sends.
        full_duplex: whether it receives as much at the same time; the bandwidth is shared if not.
        topology: `switch` or `fat_tree`, where any two are linked at full speed whoever else sends;
            `torus`, where neighbours along each mesh axis are, and `ring`, where neighbours in flat
            order are; `fully_connected`, where each two have a link of their own.
        collectives: start-up and bandwidth of kinds of collectives that have others; what two
            devices send each other has the kind `send`.
        by_processor: whether the processor on which devices compute carries what they send, too,
            as over loopback.
        turn_seconds: how much longer a message takes to start for each device that a core has
            beside the first: those that take part wait until each has had its turn.

    Raises:
        OptionError: a figure is none that links can have.
    """

    name: str
    devices: int | None
    latency: float
    bandwidth: float
    full_duplex: bool = True
    topology: str = SWITCH
    collectives: Mapping[str, Link] = field(default_factory=dict)
    by_processor: bool = False
    turn_seconds: float = 0.0

    def __post_init__(self) -> None:
        what, count = f"level '{self.name}'", self.devices
        check_figure(what, "turn_seconds", self.turn_seconds, least=0.0)
        if count is not None and (not isinstance(count, int) or count < 1):
            raise OptionError(f"{what} links {count!r} devices; give 1 or more, or none for any")
        if self.topology not in TOPOLOGIES:
            raise OptionError(
                f"{what} has topology '{self.topology}'{nearest(self.topology, TOPOLOGIES)}; "
                f"there are {listing(TOPOLOGIES)}"
            )
        if self.topology in NEIGHBOURS and count is None:
            raise OptionError(
                f"{what} is a {self.topology} of no known size; say how many devices it links"
            )
        for said, given in {
            "full_duplex": self.full_duplex, "by_processor": self.by_processor,
        }.items():  # fmt: skip
            if not isinstance(given, bool):
                raise OptionError(f"{what} has {said} {given!r}; give true or false")
        known = [*collectives(), SEND]
        for kind in self.collectives:
            if kind not in known:
                raise OptionError(
                    f"{what} has figures of '{kind}', which is no collective"
                    f"{nearest(kind, known)}; there are {listing(known)}"
                )
        for link in (Link(self.latency, self.bandwidth), *self.collectives.values()):
            check_figure(what, "latency", link.latency, least=0.0)
            check_figure(what, "bandwidth", link.bandwidth)

    @property
    def link(self) -> Link:
        """What a message costs on it."""
        return self.link_of("")

    def share_cores(self, devices: float) -> Level:
        """Return the level of devices that wait for each other's turns on their cores.

        Args:
            devices: how many a core has.

        >>> Level("node", None, 1e-3, 1e9, turn_seconds=2e-3).share_cores(2).latency
        0.003
        """
        more = self.turn_seconds * max(devices - 1, 0.0)
        kinds = {kind: Link(x.latency + more, x.bandwidth) for kind, x in self.collectives.items()}
        return replace(self, latency=self.latency + more, collectives=kinds, turn_seconds=0.0)

    def link_of(self, kind: str) -> Link:
        """Return what a message costs on it.

        Args:
            kind: of the collective that it is part of; empty for any.
        """
        found = self.collectives.get(kind, self)
        bandwidth = found.bandwidth if self.full_duplex else found.bandwidth / 2
        return Link(found.latency, bandwidth, self.topology)


def check_levels(levels: Sequence[Level]) -> None:
    """Raise unless each level links a multiple of the devices of the one inside it.

    Raises:
        OptionError: one does not, or there is none.
    """
    if not levels:
        raise OptionError("device has no level of links; give at least one")
    for inner, outer in pairwise(levels):
        sizes = (inner.devices, outer.devices)
        if sizes[0] is None or (
            sizes[1] is not None and (sizes[1] % sizes[0] or len({*sizes}) < 2)
        ):
            raise OptionError(
                f"level '{outer.name}' links {sizes[1] or 'any number of'} devices, which is no "
                f"multiple of the {sizes[0] or 'any number'} of '{inner.name}'; give the innermost "
                f"level first"
            )
