"""What a train step keeps from call to call, and what it tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mithril.runtime.array import Array
from mithril.runtime.parameters import Parameters


class TrainState(NamedTuple):
    """All that a train step changes: a tree of arrays, which each call gives up for the next one.

    Args:
        params: the parameters of the model by name, as `evaluate` takes them.
        optimizer: the state of the optimiser, a tree of its own form.
        statistics: running statistics of layers, such as those of BatchNorm, by input name.
        step: how many steps were made, int32.
        seed: decides the random numbers of the next step, uint32.
        loss_scale: with `loss_scale=` the scale and its counters, by name; otherwise empty.
        compression: what `gradient_compression=` keeps, by name: what each device lost of its
            gradients, and factors of PowerSGD, with an entry for each device; otherwise empty.
    """

    params: Parameters
    optimizer: Any
    statistics: dict[str, Array]
    step: Array
    seed: Array
    loss_scale: dict[str, Array]
    compression: dict[str, Array]


class Metrics(dict[str, Array]):
    """What a step tells, by name: scalars that stay on the devices until they are read."""

    def numbers(self) -> dict[str, float]:
        """Return all of them as numbers of Python, which waits for the step to end."""
        return {name: float(x.item()) for name, x in self.items()}

    def __repr__(self) -> str:
        return f"Metrics({', '.join(self)})"


class MeanMetrics(Metrics):
    """What a step of several parts tells: the mean of theirs, taken when it is read."""

    def __init__(self, parts: Mapping[str, Array]) -> None:
        super().__init__(parts)
        self._means: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._means:
            x = super().__getitem__(name)
            self._means[name] = x.backend.mean(x)
        return self._means[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the mean of a metric, or something else where there is none."""
        return self[name] if super().__contains__(name) else default

    def items(self) -> Any:
        """Return names and means."""
        return {name: self[name] for name in self}.items()

    def values(self) -> Any:
        """Return the means."""
        return {name: self[name] for name in self}.values()


__all__ = ["MeanMetrics", "Metrics", "TrainState"]
