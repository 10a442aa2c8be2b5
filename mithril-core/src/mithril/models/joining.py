"""Adding members and links to a model: each is judged before anything changes.

A model that fails to change is therefore left as it was.
"""

from __future__ import annotations

from dataclasses import replace

from mithril.errors import GraphError, listing, nearest
from mithril.ir import Source
from mithril.ir.source import at
from mithril.models.component import Names, check_depth, check_name, number_ports
from mithril.models.composition import AnyConnected, Composition, Link, Member
from mithril.models.layer import Layer
from mithril.models.wiring import Wiring


def join_member(wiring: Wiring, added: AnyConnected, *, feed: bool) -> None:
    """Add a member to a model.

    Args:
        wiring: the model so far.
        added: the member with the connections the user gave.
        feed: whether the last member's output (the one called `output`, or its last) feeds the
            first unconnected input, unless the new member was told to read it already.

    Raises:
        GraphError: a name is taken or ambiguous, connections form a cycle, or models are nested
            too deeply.
    """
    component = added.component
    _check_component(component, added.source)
    name = _member_name(wiring, component, added.source)
    inputs = _inputs(wiring, added, name)
    outputs, links = _outputs(wiring, added, name)
    member = Member(name, component, inputs, outputs, added.source)
    given = {port for port, _ in added.inputs}
    free = [connection for port, connection in inputs if port not in given]
    before = next(reversed(wiring.members.values()), None) if feed else None
    last = None if before is None else _main_output(before)
    if last and free and last not in dict(inputs).values():  # nobody wants to read it twice
        links = [*links, Link(free[0], last, automatic=True, place=added.source)]
    _check_no_cycle(wiring, member, links)
    wiring.add(member, links)


def _check_component(component: Layer | Composition, source: Source | None) -> None:
    if isinstance(component, Composition) and not component.members:
        raise GraphError(f"{component.label} has no layers{at(source)}; add some to it first")
    check_depth("model", component.depth, source)


def _check_no_cycle(wiring: Wiring, member: Member, links: list[Link]) -> None:
    """Raise if a new member would read what it makes."""
    feeding = {link.destination: link.source for link in links}
    made = [name for _, name in member.outputs]
    fed = {*made, *(end for end, start in feeding.items() if start in made)}
    sources = [feeding.get(name, name) for _, name in member.inputs]
    is_open = not fed.isdisjoint(sources) or any(map(wiring.is_read, fed))
    if is_open and wiring.reads_from(sources, fed):
        state = wiring.snapshot
        joined = (*state.links, *links)
        _ = replace(state, members=(*state.members, member), links=joined).order  # names it


def _main_output(member: Member) -> str:
    """Return the connection that goes on: that of the port `output`, or else the last one."""
    return dict(member.outputs).get("output", member.outputs[-1][1])


def link_ports(wiring: Wiring, source: str, destination: str, place: Source | None) -> None:
    """Feed destination from source.

    Raises:
        GraphError: a name is unknown or ambiguous, the destination is an output or already fed
            by another explicit connection, or connections form a cycle.
    """
    start = wiring.find_source(check_reference(source, "source"))
    if start is None:
        raise unknown_connection(wiring, "source", source)
    end = wiring.find_destination(check_reference(destination, "destination"))
    if end is None:
        raise unknown_connection(wiring, "destination", destination)
    if end in wiring.producers:
        _refuse_rewiring(wiring, start, end, source, destination)
        return
    old = wiring.links.get(end)
    if old is not None and not old.automatic:
        if old.source == start:
            return
        raise GraphError(
            f"connection '{destination}' is fed by '{old.source}'{at(old.place)} and cannot also "
            f"be fed by '{source}'{at(place)}; remove one of the two"
        )
    link = Link(end, start, automatic=False, place=place)
    if wiring.leads_to(end, start):
        if wiring.root(start) == end or start == end:
            raise GraphError(
                f"connecting '{source}' to '{destination}' makes a cycle{at(place)}; a connection "
                f"cannot feed itself"
            )
        state = wiring.snapshot
        kept = tuple(other for other in state.links if other.destination != end)
        _ = replace(state, links=(*kept, link)).order  # names the cycle
    wiring.link(link)


def check_reference(name: object, what: str) -> str:
    """Return a name that refers to a connection; it may be a full path with dots.

    Raises:
        GraphError: it is not a string.
    """
    if isinstance(name, str) and "." in name:
        return name
    return check_name(name, what)


def _member_name(wiring: Wiring, component: Layer | Composition, source: Source | None) -> str:
    name = component.given_name
    if name is None:
        return wiring.free_name(component.kind)
    if name not in wiring.members:
        return name
    other = wiring.members[name]
    if other.component is component:  # used again: shares parameters, needs a name of its own
        return wiring.free_name(name, 1)
    raise GraphError(
        f"name '{name}' is taken; it is given to {component.label}{at(source)} and to "
        f"{other.component.label}{at(other.source)}; give one of them another name"
    )


def _inputs(wiring: Wiring, added: AnyConnected, name: str) -> Names:
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
    return tuple((port, _input(wiring, given.get(port), f"{name}.{port}", port)) for port in ports)


def _input(wiring: Wiring, given: str | None, own: str, port: str) -> str:
    if given is None:
        return own
    found = wiring.find_source(given)
    if found is None and "." in given:
        raise unknown_connection(wiring, f"connection for '{port}':", given)
    return found or check_name(given, f"connection for '{port}'")


def _outputs(wiring: Wiring, added: AnyConnected, name: str) -> tuple[Names, list[Link]]:
    """The member's outputs, and links from those named after an input that waits for a value."""
    given, links = dict(added.outputs), []
    outputs: list[tuple[str, str]] = []
    for port in added.component.output_ports:
        wire = given.get(port, f"{name}.{port}")
        _check_free(wiring, wire, added, [taken for _, taken in outputs])
        waiting = wiring.open_input(wire) if port in given else None
        if waiting not in (None, wire):
            links.append(Link(waiting, wire, automatic=False, place=added.source))
        outputs.append((port, wire))
    return tuple(outputs), links


def _check_free(wiring: Wiring, wire: str, added: AnyConnected, siblings: list[str]) -> None:
    other = wiring.producers.get(wire)
    if other is not None or wire in siblings:
        holder = "its other output" if other is None else f"output of '{other.name}'"
        place = "" if other is None else at(other.source)
        raise GraphError(
            f"connection '{wire}' is already the {holder}{place} and cannot also be an output of "
            f"{added.component.label}{at(added.source)}; choose another name"
        )
    shown = wiring.find_titled(wire)
    if shown is not None:
        raise GraphError(
            f"connection '{wire}' is what model.output shows '{shown}' as and cannot also be an "
            f"output of {added.component.label}{at(added.source)}; choose another name"
        )
    link = wiring.links.get(wire)
    if link is not None:
        raise GraphError(
            f"connection '{wire}' is already fed by '{link.source}'{at(link.place)} and cannot "
            f"also be an output of {added.component.label}{at(added.source)}; choose another name"
        )


def _refuse_rewiring(wiring: Wiring, start: str, end: str, source: str, destination: str) -> None:
    if start == end and destination != source:
        return  # the port was given this very connection when its layer was called
    maker, state = wiring.producers[end], wiring.snapshot
    raise GraphError(
        f"connection '{destination}' is fed by '{maker.name}'{at(maker.source)} and cannot also be "
        f"fed by '{source}'; choose a destination that is still open: {listing(state.input_ports)}"
    )


def unknown_connection(wiring: Wiring, what: str, name: str) -> GraphError:
    """Return the error that a name is not a connection of a model."""
    known = list(wiring.everything())
    shown = [known_name for known_name in known if "." not in known_name] or known
    return GraphError(
        f"{what} '{name}' is not a connection of the model; connections: {listing(shown)}"
        f"{nearest(name, known)}"
    )
