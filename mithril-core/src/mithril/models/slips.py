"""Why an input is missing that nobody meant to be one: most often a connection is misspelt."""

from __future__ import annotations

from mithril.errors import listing, nearest
from mithril.ir.source import at
from mithril.models.composition import Composition, Member
from mithril.models.layer import Layer
from mithril.models.statistics import find_statistic


def explain_missing(component: Composition | Layer, name: str) -> str:
    """Return why an input is one at all, and the output that its reader probably meant.

    Args:
        component: the model.
        name: of the input.
    """
    if isinstance(component, Layer):
        return f"inputs: {listing(component.input_ports)}"
    inside, connection, path = _find(component, name)
    reader = _first_reader(inside, connection)
    statistic = find_statistic(component, name)
    if statistic is not None:
        return (
            f"'{path}{reader.name}'{at(reader.source)} keeps it from step to step, a running "
            f"statistic that begins with {statistic.start}; give its values, or its shape where "
            f"shapes are asked for"
        )
    unread = [wire for wire in inside.open_outputs if "." not in wire]
    slips = [wire for wire in unread if is_slip(wire, connection)]
    if slips:
        maker = inside.producers[slips[0]]
        near = (
            f"; did you mean '{slips[0]}', which '{path}{maker.name}'{at(maker.source)} makes and "
            f"nobody reads?"
        )
    else:
        near = nearest(connection, [wire for wire in inside.producers if "." not in wire])
    return (
        f"'{path}{reader.name}'{at(reader.source)} reads it and no layer makes it; give it, or "
        f"connect it{near}"
    )


def is_slip(one: str, other: str) -> bool:
    """Return whether names differ by one letter: another, a missing, or two exchanged ones.

    >>> is_slip("hidden", "hiden"), is_slip("logits", "logist"), is_slip("key", "query")
    (True, True, False)
    """
    short, long = sorted((one, other), key=len)
    if len(long) - len(short) > 1 or one == other:
        return False
    start = next((i for i, letter in enumerate(short) if letter != long[i]), len(short))
    rest, more = short[start:], long[start:]
    if len(short) < len(long):
        return rest == more[1:]
    exchanged = rest[1::-1] + rest[2:] == more
    return rest[1:] == more[1:] or (len(rest) > 1 and exchanged)


def _find(component: Composition, name: str) -> tuple[Composition, str, str]:
    """Return the innermost model that an input goes to, its connection there, and its path."""
    path = ""
    while True:
        connection = next(root for root, shown in component.shown.items() if shown == name)
        reader = _first_reader(component, connection)
        inside = reader.component
        port = _port(reader, component, connection)
        if not isinstance(inside, Composition) or "." not in connection:
            return component, connection, path
        component, name, path = inside, port, f"{path}{reader.name}."


def _first_reader(component: Composition, connection: str) -> Member:
    name = next(name for name in component.consumers if component.root(name) == connection)
    return component.consumers[name]


def _port(member: Member, component: Composition, connection: str) -> str:
    return next(port for port, name in member.inputs if component.root(name) == connection)
