"""The layers of a model one after another, with how long each takes: what stages are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mithril.models.composition import Composition
from mithril.models.layer import Layer
from mithril.runtime.balancing.cut import Unit

GRAIN = 0.25
"""A model inside is taken apart where it takes more than this part of a stage's share."""


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """What layers cost, by path.

    Args:
        seconds: that each takes, in parts of it where those are known.
        bytes: of its parameters, and what belongs to them, by the parameter's name.
    """

    seconds: Mapping[str, float]
    bytes: Mapping[str, float]

    def cost(self, path: str) -> tuple[float, float]:
        """Return seconds and bytes of a layer, or of a model with all that is inside."""
        seconds, held = (
            sum(x for name, x in of.items() if name == path or name.startswith(f"{path}."))
            for of in (self.seconds, self.bytes)
        )
        return seconds, held


def list_units(model: Composition, costs: LayerCosts, stages: int) -> tuple[Unit, ...]:
    """Return the layers of a model in the order in which they run.

    Models inside stay whole, so that a stage ends where one does, unless that is too coarse.

    Args:
        model: its snapshot.
        costs: of its layers.
        stages: how many they are put into.
    """
    share = sum(costs.seconds.values()) / stages
    return tuple(_walk(model, "", costs, GRAIN * share))


def _walk(model: Composition, prefix: str, costs: LayerCosts, grain: float) -> Iterator[Unit]:
    for member in model.order:
        path, component = f"{prefix}{member.name}", member.component
        seconds, held = costs.cost(path)
        if isinstance(component, Composition) and seconds > grain:
            yield from _walk(component, f"{path}.", costs, grain)
            continue
        yield Unit(path, seconds, held, _count_repeats(component))


def _count_repeats(component: Composition | Layer) -> int:
    if isinstance(component, Layer) and component.kind == "repeat":
        return int(component.config["count"])
    return 1


__all__ = ["LayerCosts", "list_units"]
