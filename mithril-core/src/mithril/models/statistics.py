"""Running statistics among the inputs of a model: which they are, and the layers that keep them."""

from __future__ import annotations

from collections.abc import Collection

from mithril.models.composition import Composition
from mithril.models.definition import Statistic
from mithril.models.layer import Layer


def find_unsaid(component: Composition | Layer, given: Collection[str]) -> list[str]:
    """Return the inputs that are not given, and whose layer knows their shape.

    Args:
        component: the model, or a lone layer.
        given: names of inputs.
    """
    missing = [name for name in component.input_ports if name not in given]
    kept = {name: find_statistic(component, name) for name in missing}
    return [name for name, statistic in kept.items() if statistic and statistic.shape]


def find_statistic(component: Composition | Layer, name: str) -> Statistic | None:
    """Return what a layer keeps in an input of a model.

    Returns:
        None where the input is anything else, or is read at several places.
    """
    while isinstance(component, Composition):
        connection = next(root for root, shown in component.shown.items() if shown == name)
        readers = [
            (member.component, port)
            for member in component.members
            for port, read in member.inputs
            if component.root(read) == connection
        ]
        if len(readers) != 1:
            return None
        ((component, name),) = readers
    kept = component.definition.statistics.values()
    return next((statistic for statistic in kept if statistic.port == name), None)
