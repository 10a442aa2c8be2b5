"""Lay the axes of a mesh on the network so that what a plan sends takes the least time.

Collectives over an axis cross the levels of links that its devices lie apart, and how far these are
depends on the order of the axes (`Mesh.order`). The search is exact: every order is priced by the
collectives and sends of the whole plan, each as long as it would take by itself. What goes over
some axes takes the same time in all orders in which these axes have the same strides, and is priced
once for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

from mithril.cost.communication import transfer_seconds
from mithril.cost.hardware import Hardware, hardware_within
from mithril.cost.pairs import exchange_seconds
from mithril.errors import OptionError
from mithril.ir.rewrite import walk
from mithril.mesh import Mesh, follow, follow_sharding
from mithril.ops.collective import Collective, collective_of
from mithril.plan import Plan
from mithril.plan.program import describe_collective
from mithril.plan.timetable import Send, Transfer

OPTION = "network_topology_aware"
MOST_AXES = 6
"""So many axes have 720 orders."""
ALIKE = 1e-9
"""Times of which one is shorter by no larger a part are equal: sums are rounded."""


@dataclass(frozen=True, slots=True)
class AxisOrder:
    """The order of axes in which a plan is predicted to communicate least.

    Args:
        order: all axes, the slowest first.
        seconds: that the communication of the plan takes in it.
        given: the order of the plan's own mesh.
        seconds_as_given: that it takes in that.
    """

    order: tuple[str, ...]
    seconds: float
    given: tuple[str, ...]
    seconds_as_given: float


def check_axes(mesh: Mesh) -> None:
    """Raise unless all orders of the axes can be compared.

    Raises:
        OptionError: the mesh has too many axes.
    """
    count = sum(size > 1 for size in mesh.shape)
    if count > MOST_AXES:
        raise OptionError(
            f"{OPTION}=True compares all orders of up to {MOST_AXES} mesh axes of several devices; "
            f"{mesh!r} has {count}; leave it out, and say Mesh(…, order=)"
        )


def find_axis_order(plan: Plan, hardware: Hardware) -> AxisOrder:
    """Return the order of mesh axes in which what a plan sends takes the least time.

    Of orders that are equally good that of the plan's mesh is returned, or else the first one.

    Args:
        plan: whose bytes are counted.
        hardware: the profile to price with.

    Raises:
        OptionError: as of `check_axes`.
    """
    check_axes(plan.mesh)
    prices = _Prices(plan, hardware)
    given = plan.mesh.order or plan.mesh.names
    best, least = given, prices.of_exchanges(given) + prices.of_sends(given)
    as_given = least
    exchanged = {order: prices.of_exchanges(order) for order in list_orders(plan.mesh)}
    for order in sorted(exchanged, key=exchanged.__getitem__):
        if exchanged[order] >= least * (1 - ALIKE):
            break  # nor is any behind it better, whatever its sends take
        seconds = exchanged[order] + prices.of_sends(order)
        if seconds < least * (1 - ALIKE):
            best, least = order, seconds
    return AxisOrder(best, least, given, as_given)


def list_orders(mesh: Mesh) -> Iterator[tuple[str, ...]]:
    """Yield the orders of axes that number devices differently; axes of one device come first.

    >>> list(list_orders(Mesh(data=2, pipeline=1, tensor=4)))
    [('pipeline', 'data', 'tensor'), ('pipeline', 'tensor', 'data')]
    """
    alone = tuple(name for name in mesh.names if mesh.sizes[name] == 1)
    several = [name for name in mesh.order or mesh.names if mesh.sizes[name] > 1]
    return ((*alone, *order) for order in permutations(several))


class _Prices:
    """What the communication of a plan takes, by the order of axes.

    Args:
        plan: in the order of its mesh.
        hardware: the profile to price with.
    """

    def __init__(self, plan: Plan, hardware: Hardware) -> None:
        self._mesh, self._hardware = plan.mesh, hardware
        times = plan.timetable.times()
        self._exchanges: Counter[tuple[Mesh, Collective, int]] = Counter()
        for number, stage in enumerate(plan.stages):
            for node, count in walk(stage.program.graph):
                op = collective_of(node.op)
                if op is not None and node.op.is_collective:
                    nbytes = describe_collective(node, stage.program.mesh)[2]
                    self._exchanges[stage.program.mesh, op, nbytes] += count * times[number]
        sent = Counter(step.transfer for step in plan.timetable.steps if isinstance(step, Send))
        self._sends = [(plan.timetable.transfers[n], count) for n, count in sent.items()]
        self._known: dict[object, float] = {}

    def of_exchanges(self, order: tuple[str, ...]) -> float:
        """Return what all collectives take in an order, one after another."""
        whole = self._mesh.reorder(order)
        laid = {mesh: follow(mesh, self._mesh, whole) for mesh, *_ in self._exchanges}
        return sum(
            count * self._exchange(op, nbytes, laid[mesh])
            for (mesh, op, nbytes), count in self._exchanges.items()
        )

    def of_sends(self, order: tuple[str, ...]) -> float:
        """Return what all that is sent between stages takes in an order, one after another."""
        whole = self._mesh.reorder(order)
        return sum(count * self._send(transfer, whole) for transfer, count in self._sends)

    def _exchange(self, op: Collective, nbytes: int, laid: Mesh) -> float:
        strides = tuple(laid.strides[axis] for axis in op.axes)
        key = (laid.axes, laid.devices, op, nbytes, strides)
        if key not in self._known:
            hardware = hardware_within(self._hardware, laid.flat)
            self._known[key] = exchange_seconds(op, nbytes, laid, hardware)
        return self._known[key]

    def _send(self, transfer: Transfer, whole: Mesh) -> float:
        source, target = (
            follow_sharding(sharding, self._mesh, whole)
            for sharding in (transfer.source, transfer.target)
        )
        key = (transfer.type, transfer.arriving, transfer.offset, source, target)
        if key not in self._known:
            laid = Transfer(
                transfer.type, source, target, transfer.cause, transfer.phase, transfer.scope,
                transfer.place, transfer.goal, transfer.offset,
            )  # fmt: skip
            self._known[key] = transfer_seconds(laid, self._hardware)
        return self._known[key]


__all__ = ["OPTION", "AxisOrder", "check_axes", "find_axis_order", "list_orders"]
