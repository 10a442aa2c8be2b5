"""Which values of layers that are computed again would be kept first, were there room for some.

Those whose makers take the longest for the bytes that they leave: attention before the products of
a feed-forward, these before norms. What is kept for that is measured, so that an order is enough.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mithril.ir import Value
from mithril.partition.recompute.sections import Reading


def rank_by_price(readings: Sequence[Reading], dropped: Collection[Value]) -> list[Value]:
    """Return values that are dropped, those first that take longest to make for their bytes.

    Args:
        readings: local programs of the same devices.
        dropped: what is made again, of them and of others.
    """
    found: list[tuple[float, Value]] = []
    for flow in (reading.flow for reading in readings if reading.flow is not None):
        for made, seconds in zip(flow.made, flow.seconds, strict=True):
            size = sum(flow.buffers[number].bytes for number in made)
            values = (flow.buffers[number].value for number in made)
            found += [(seconds / size, v) for v in values if size and v in dropped]
    found.sort(key=lambda pair: -pair[0])
    return [value for _, value in found]


__all__ = ["rank_by_price"]
