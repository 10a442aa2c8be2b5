"""Which layers a model consists of, and what the names of their parameters begin with."""

from __future__ import annotations

from collections.abc import Iterator

from mithril.errors import GraphError
from mithril.models.component import Component
from mithril.models.composition import Composition
from mithril.models.layer import Layer

Traceable = Component[Composition] | Composition | Layer


def component_of(model: Traceable) -> Composition | Layer:
    """Return the snapshot or layer a model is.

    Raises:
        GraphError: it is no model, has no layers, or cannot stand alone.
    """
    if isinstance(model, Layer) and model.variadic_input is not None:
        raise GraphError(
            f"{model.label} takes any number of inputs and cannot stand alone; add it to a Model "
            f'with {model.variadic_input}=["a", "b"]'
        )
    if not isinstance(model, Component | Composition):
        raise GraphError(
            f"{type(model).__name__} is not a model; give a Model or a layer, such as "
            f"ml.Linear(dimension=10)"
        )
    component = model._component() if isinstance(model, Component) else model
    if isinstance(component, Composition) and not component.members:
        raise GraphError(f"{component.label} has no layers; add one with model += ml.Linear(…)")
    return component


def parameter_prefixes(component: Composition | Layer) -> dict[Layer, str]:
    """Return what the parameter names of each layer begin with: its first place, if reused."""
    if isinstance(component, Layer):
        return {component: ""}
    found: dict[Layer, str] = {}
    for layer, prefix in walk_layers(component, ""):
        found.setdefault(layer, prefix)
    return found


def walk_layers(composition: Composition, prefix: str) -> Iterator[tuple[Layer, str]]:
    """Yield each layer, as often as it is used, and what the names of its parameters begin with."""
    for member in composition.members:
        path = f"{prefix}{member.name}."
        if isinstance(member.component, Layer):
            yield member.component, path
        else:
            yield from walk_layers(member.component, path)


def list_declared(component: Composition | Layer) -> list[str]:
    """Return the names of all parameters, those that are tied to others included."""
    prefixes = parameter_prefixes(component)
    return [prefix + name for layer, prefix in prefixes.items() for name in layer.parameters]


def parameter_places(component: Composition | Layer) -> dict[str, str]:
    """Return for each name that a parameter has at some place that of its first place."""
    if isinstance(component, Layer):
        return {name: name for name in component.parameters}
    first = parameter_prefixes(component)
    return {
        prefix + name: first[layer] + name
        for layer, prefix in walk_layers(component, "")
        for name in layer.parameters
    }


__all__ = [
    "Traceable",
    "component_of",
    "list_declared",
    "parameter_places",
    "parameter_prefixes",
    "walk_layers",
]
