"""What a plan of a model depends on, and what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass

from mithril.compiler import Request
from mithril.models.trace import Traced
from mithril.runtime.call import Interface
from mithril.runtime.capture import Captured
from mithril.runtime.host_indices import IndexUse
from mithril.runtime.model_layouts import Arguments


@dataclass(frozen=True)
class ArgumentKinds:
    """What a plan depends on: type and sharding of every argument, by name.

    Args:
        inputs: the model's inputs; unplaced ones may lie anywhere.
        parameters: the model's parameters; likewise before it is decided where they lie.
        gradients: the output gradients; None for a forward plan.
    """

    inputs: Arguments
    parameters: Arguments
    gradients: Arguments | None


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """What is evaluated: a traced model, and which gradients go in and come out.

    Args:
        traced: the model.
        seeded: outputs whose gradients are given.
        differentiated: parameters and inputs whose gradients come out.
        captured: arrays that its layers use from around them.
        index_uses: where the model chooses by integers that come from inputs.
    """

    traced: Traced
    seeded: tuple[str, ...]
    differentiated: tuple[str, ...]
    captured: Captured
    index_uses: tuple[IndexUse, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What is asked of a plan.

    Args:
        traced: the model.
        request: how its tensors lie, and which gradients are wanted.
        interface: what is passed, and what comes out.
    """

    traced: Traced
    request: Request
    interface: Interface[Evaluation]

    @property
    def has_stages(self) -> bool:
        """Whether layers run on parts of the mesh."""
        placement = self.request.placement
        return placement is not None and len(placement.parts) > 1

    @property
    def cuts_loops(self) -> bool:
        """Whether loops are cut over stages."""
        placement = self.request.placement
        return placement is not None and bool(placement.loops)

    def is_cut(self, name: str) -> bool:
        """Return whether a parameter is of a loop that is cut over stages."""
        loops = () if self.request.placement is None else self.request.placement.loops
        return any(name.startswith(f"{path}.") for path in loops)
