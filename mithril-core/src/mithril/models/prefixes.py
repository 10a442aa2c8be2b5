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
    """Return what the names of each layer's parameters begin with: its first place, if reused."""
    if isinstance(component, Layer):
        return {component: ""}
    found: dict[Layer, str] = {}
    for layer, prefix in _layers(component, ""):
        found.setdefault(layer, prefix)
    return found


def _layers(composition: Composition, prefix: str) -> Iterator[tuple[Layer, str]]:
    for member in composition.members:
        path = f"{prefix}{member.name}."
        if isinstance(member.component, Layer):
            yield member.component, path
        else:
            yield from _layers(member.component, path)


__all__ = ["Traceable", "component_of", "parameter_prefixes"]
