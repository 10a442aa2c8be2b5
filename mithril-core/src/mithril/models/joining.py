"""Adding members and links to a composition: pure functions that return the new one or raise.

A model that fails to change is therefore left as it was.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from itertools import count

from mithril.errors import GraphError, listing, nearest
from mithril.ir import Source
from mithril.ir.source import at
from mithril.models.component import Names, check_name, number_ports
from mithril.models.composition import AnyConnected, Composition, Link, Member
from mithril.models.layer import Layer


def join_member(state: Composition, added: AnyConnected, *, feed: bool) -> Composition:
    """Return the composition with one more member.

    Args:
        state: the composition so far.
        added: the member with the connections the user gave.
        feed: whether the last member's output (the one called `output`, or its last) feeds the
            first unconnected input, unless the new member was told to read it already.

    Raises:
        GraphError: a name is taken or ambiguous, or connections form a cycle.
    """
    component = added.component
    if isinstance(component, Composition) and not component.members:
        raise GraphError(f"{component.label} has no layers{at(added.source)}; add some to it first")
    name = _member_name(state, component, added.source)
    inputs = _inputs(state, added, name)
    outputs, links = _outputs(state, added, name)
    member = Member(name, component, inputs, outputs, added.source)
    given = {port for port, _ in added.inputs}
    free = [connection for port, connection in inputs if port not in given]
    last = _main_output(state.members[-1]) if feed and state.members else None
    if last and free and last not in dict(inputs).values():  # nobody wants to read it twice
        links = [*links, Link(free[0], last, automatic=True, place=added.source)]
    result = replace(state, members=(*state.members, member), links=(*state.links, *links))
    _ = result.order  # raises on a cycle
    return result


def _main_output(member: Member) -> str:
    """Return the connection that goes on: that of the port `output`, or else the last one."""
    return dict(member.outputs).get("output", member.outputs[-1][1])


def link_ports(
    state: Composition, source: str, destination: str, place: Source | None
) -> Composition:
    """Return the composition with destination fed by source.

    Raises:
        GraphError: a name is unknown or ambiguous, the destination is an output or already fed
            by another explicit connection, or connections form a cycle.
    """
    start = state.find_source(check_reference(source, "source"))
    if start is None:
        raise _unknown(state, "source", source)
    end = state.find_destination(check_reference(destination, "destination"))
    if end is None:
        raise _unknown(state, "destination", destination)
    if end in state.producers:
        return _refuse_rewiring(state, start, end, source, destination)
    old = state.link_to.get(end)
    if old is not None and not old.automatic:
        if old.source == start:
            return state
        raise GraphError(
            f"connection '{destination}' is fed by '{old.source}'{at(old.place)} and cannot also "
            f"be fed by '{source}'{at(place)}; remove one of the two"
        )
    kept = tuple(link for link in state.links if link.destination != end)
    without = replace(state, links=kept)
    if without.root(start) == end:
        raise GraphError(
            f"connecting '{source}' to '{destination}' makes a cycle{at(place)}; a connection "
            f"cannot feed itself"
        )
    result = replace(state, links=(*kept, Link(end, start, automatic=False, place=place)))
    _ = result.order  # raises on a cycle
    return result


def check_reference(name: object, what: str) -> str:
    """Return a name that refers to a connection; it may be a full path with dots.

    Raises:
        GraphError: it is not a string.
    """
    if isinstance(name, str) and "." in name:
        return name
    return check_name(name, what)


def _member_name(state: Composition, component: Layer | Composition, source: Source | None) -> str:
    taken = {member.name: member for member in state.members}
    name = component.given_name
    if name is None:
        return _first_free((f"{component.kind}_{index}" for index in count()), taken)
    if name not in taken:
        return name
    other = taken[name]
    if other.component is component:  # used again: shares parameters, needs a name of its own
        return _first_free((f"{name}_{index}" for index in count(1)), taken)
    raise GraphError(
        f"name '{name}' is taken; it is given to {component.label}{at(source)} and to "
        f"{other.component.label}{at(other.source)}; give one of them another name"
    )


def _first_free(names: Iterable[str], taken: Container[str]) -> str:
    return next(name for name in names if name not in taken)


def _inputs(state: Composition, added: AnyConnected, name: str) -> Names:
    component, given = added.component, dict(added.inputs)
    ports = component.input_ports + tuple(p for p in component.optional_ports if p in given)
    if component.variadic_input is not None:
        port = component.variadic_input
        named = sum(1 for item in given if item not in ports)
        if not named:
            raise GraphError(
                f"{component.label} takes any number of inputs, and none is named"
                f"{at(added.source)}; "
                f'write (…)({port}=["a", "b"])'
            )
        ports = (*ports, *number_ports(port, named))
    return tuple((port, _input(state, given.get(port), f"{name}.{port}", port)) for port in ports)


def _input(state: Composition, given: str | None, own: str, port: str) -> str:
    if given is None:
        return own
    found = state.find_source(given)
    if found is None and "." in given:
        raise _unknown(state, f"connection for '{port}':", given)
    return found or check_name(given, f"connection for '{port}'")


def _outputs(state: Composition, added: AnyConnected, name: str) -> tuple[Names, list[Link]]:
    """The member's outputs, and links from those named after an input that waits for a value."""
    given, links = dict(added.outputs), []
    outputs: list[tuple[str, str]] = []
    for port in added.component.output_ports:
        wire = given.get(port, f"{name}.{port}")
        _check_free(state, wire, added, [taken for _, taken in outputs])
        waiting = next((name for name in state.open_inputs if state.shown[name] == wire), wire)
        if port in given and waiting != wire:
            links.append(Link(waiting, wire, automatic=False, place=added.source))
        outputs.append((port, wire))
    return tuple(outputs), links


def _check_free(state: Composition, wire: str, added: AnyConnected, siblings: list[str]) -> None:
    other = state.producers.get(wire)
    if other is not None or wire in siblings:
        holder = "its other output" if other is None else f"output of '{other.name}'"
        place = "" if other is None else at(other.source)
        raise GraphError(
            f"connection '{wire}' is already the {holder}{place} and cannot also be an output of "
            f"{added.component.label}{at(added.source)}; choose another name"
        )
    link = state.link_to.get(wire)
    if link is not None:
        raise GraphError(
            f"connection '{wire}' is already fed by '{link.source}'{at(link.place)} and cannot "
            f"also be an output of {added.component.label}{at(added.source)}; choose another name"
        )


def _refuse_rewiring(
    state: Composition, start: str, end: str, source: str, destination: str
) -> Composition:
    if start == end and destination != source:
        return state  # the port was given this very connection when its layer was called
    maker = state.producers[end]
    raise GraphError(
        f"connection '{destination}' is fed by '{maker.name}'{at(maker.source)} and cannot also be "
        f"fed by '{source}'; choose a destination that is still open: {listing(state.input_ports)}"
    )


def _unknown(state: Composition, what: str, name: str) -> GraphError:
    known = list(state.everything())
    shown = [known_name for known_name in known if "." not in known_name] or known
    return GraphError(
        f"{what} '{name}' is not a connection of the model; connections: {listing(shown)}"
        f"{nearest(name, known)}"
    )
