"""What a user asks of recomputation, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ALL, NONE, SELECTIVE = "all", "none", "selective"
MINIMAL, FULL = "minimal", "full"
LAYER, OPERATION = "layer", "operation"


@dataclass(frozen=True, slots=True)
class Recompute:
    """What is computed again in the backward instead of kept for it.

    Args:
        budget: `all` of what lies inside layers, `none`, `selective` for what costs next to
            nothing, a fraction of the memory that keeping everything takes, or bytes of a device.
        layers: `all` or `none` for patterns of layer paths; then `budget` is for no other layer.
        collectives: for mesh axes, whether what a collective over it has brought is kept
            (`minimal`) or exchanged again (`full`); then parameters are gathered for each
            micro-batch, too.
        granularity: whether whole layers are recomputed or kept, or any operation.
        said: the options as they were given, for messages.
    """

    budget: str | float | int = NONE
    layers: Mapping[str, str] = field(default_factory=dict)
    collectives: Mapping[str, str] = field(default_factory=dict)
    granularity: str = OPERATION
    said: str = ""

    @property
    def is_on(self) -> bool:
        """Whether anything is asked for."""
        return self.budget != NONE or ALL in self.layers.values()

    @property
    def is_solved(self) -> bool:
        """Whether what is dropped has to be found, rather than follows from the layers."""
        return not self.layers and self.budget not in (ALL, NONE)

    @property
    def kept_axes(self) -> frozenset[str]:
        """The mesh axes over which nothing is exchanged again."""
        return self._list_axes(MINIMAL)

    @property
    def repeated_axes(self) -> frozenset[str]:
        """The mesh axes over which all is exchanged again that is needed again."""
        return self._list_axes(FULL)

    def _list_axes(self, asked: str) -> frozenset[str]:
        return frozenset(axis for axis, how in self.collectives.items() if how == asked)


__all__ = ["ALL", "FULL", "LAYER", "MINIMAL", "NONE", "OPERATION", "SELECTIVE", "Recompute"]
