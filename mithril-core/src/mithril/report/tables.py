"""Tables of a plan: its collectives, and what each device holds of the parameters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from mithril.plan import Plan
from mithril.plan.printer import collective_lines, port_line


def print_collectives(plan: Plan) -> str:
    """Return a plan's collectives with their reasons, one a line, and the bytes per mesh axis."""
    return "\n".join(collective_lines(plan.collectives()))


def print_shapes(plan: Plan, parameters: Sequence[str]) -> str:
    """Return what each device holds of the parameters of a plan, one a line, and the totals.

    Args:
        plan: a plan.
        parameters: names of the parameters.
    """
    ports = {port.name: port for port in plan.inputs}
    known = [ports[name] for name in parameters if name in ports]
    total = sum(port.type.size for port in known)
    bytes_on = Counter(dict.fromkeys(range(plan.mesh.size), 0))
    for port in known:
        local = math.prod(port.sharding.local_shape(port.type.shape))
        for device in port.sharding.mesh.flat:
            bytes_on[device] += local * port.type.dtype.itemsize
    least, most = min(bytes_on.values()), max(bytes_on.values())
    each = f"{most}" if least == most else f"{least} to {most}"
    return "\n".join(
        [
            f"{len(known)} parameters, {total} numbers, {each} bytes on each of "
            f"{plan.mesh.size} devices",
            *map(port_line, known),
        ]
    )
