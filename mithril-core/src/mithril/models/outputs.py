"""What a model's outputs are, where a user says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from mithril.errors import GraphError, OptionError, listing, nearest
from mithril.models.composition import Composition
from mithril.models.joining import check_reference, unknown_connection
from mithril.models.layer import Layer
from mithril.models.prefixes import parameter_places
from mithril.models.trace import check_patterns, value_names
from mithril.models.wiring import Wiring


def add_output(wiring: Wiring, name: str) -> None:
    """Make a value an output of a model, whoever reads it.

    Raises:
        GraphError: there is no such value, or it is an input of the model.
    """
    connection = find_made(wiring, name, "output")
    state = wiring.snapshot
    if connection not in state.also_outputs:
        title = connection if "." in name or wiring.has(name) else name
        wiring.say(
            also_outputs=(*state.also_outputs, connection),
            titles=(*state.titles, (connection, title)),
        )


def find_made(wiring: Wiring, name: str, what: str) -> str:
    """Return the connection of a value that some layer makes.

    Args:
        wiring: the model.
        name: what a user calls the value: a connection, or a layer that makes just one.
        what: how it was asked for, for messages.

    Raises:
        GraphError: there is none, several could be meant, or it is an input of the model.
    """
    found = wiring.find_source(check_reference(name, what))
    if found is None and name in wiring.members and len(wiring.members[name].outputs) == 1:
        ((_, found),) = wiring.members[name].outputs
    if found is None:
        raise unknown_connection(wiring, what, name)
    root = wiring.root(found)
    if root not in wiring.producers:
        raise GraphError(
            f"{what} '{name}' is an input of the model and no layer makes it; name what a layer "
            f"makes, or read the array that you pass in"
        )
    return root


def choose_outputs(component: Composition | Layer, names: object) -> Composition | Layer:
    """Return a model with these outputs only, in this order, and the layers that they need.

    Inputs keep the names that they have in the whole model.

    Args:
        component: the whole model.
        names: of the outputs.

    Raises:
        OptionError: they are no list of names.
        GraphError: one does not exist, comes twice, or is an input of the model.
    """
    wanted = _read_names(names)
    if isinstance(component, Layer):
        return _check_layer(component, wanted)
    check_patterns(component)  # of the whole model: what is left may lack what a pattern is for
    wiring = Wiring(component)
    chosen = {name: find_made(wiring, name, "output") for name in wanted}
    if len(set(chosen.values())) < len(wanted):
        raise GraphError(f"outputs={list(wanted)!r} names one value twice; give each output once")
    members = component.members
    if component.pipeline is None and not component.stage_rules:
        needed = _find_needed(component, list(chosen.values()))
        members = tuple(member for member in members if member.name in needed)
    kept = replace(component, members=members, rules=(), parameter_rules=(), only_outputs=())
    inputs = [(name, component.shown[name]) for name in kept.open_inputs]
    kept = replace(
        kept,
        only_outputs=tuple(chosen.values()),
        titles=(*inputs, *((connection, name) for name, connection in chosen.items())),
    )
    values, parameters = value_names(kept), list(parameter_places(kept))
    rules = (
        rule
        for rule in component.rules
        if _matches(rule.pattern, parameters if rule.at_rest else [*parameters, *values])
    )
    said = (rule for rule in component.parameter_rules if _matches(rule.pattern, parameters))
    return replace(kept, rules=tuple(rules), parameter_rules=tuple(said))


def _read_names(names: object) -> tuple[str, ...]:
    is_list = isinstance(names, Sequence) and not isinstance(names, str)
    if not is_list or not names or not all(isinstance(name, str) for name in names):  # type: ignore[attr-defined]
        raise OptionError(
            f'outputs={names!r} is no list of outputs; give their names, such as outputs=["logits"]'
        )
    return tuple(names)  # type: ignore[arg-type]


def _check_layer(layer: Layer, wanted: Sequence[str]) -> Layer:
    for name in wanted:
        if name not in layer.output_ports:
            raise GraphError(
                f"{layer.label} has no output '{name}'; outputs: {listing(layer.output_ports)}"
                f"{nearest(name, layer.output_ports)}"
            )
    if tuple(wanted) != layer.output_ports:
        raise OptionError(
            f"outputs={list(wanted)!r} leaves out outputs of {layer.label}, which has "
            f"{listing(layer.output_ports)}; add the layer to a Model to choose among them"
        )
    return layer


def _find_needed(component: Composition, connections: list[str]) -> set[str]:
    """Return the names of the members that make connections, and of those that they read from."""
    found: set[str] = set()
    waiting = list(connections)
    while waiting:
        member = component.producers.get(component.root(waiting.pop()))
        if member is not None and member.name not in found:
            found.add(member.name)
            waiting += [connection for _, connection in member.inputs]
    return found


def _matches(pattern: str, names: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)
