"""Where the parameters of a compiled model lie, if nobody placed them otherwise.

That is decided once, by the annotations and by the plan for the inputs that were known first
(`shapes=`, or the first evaluation), with all parameters unplaced. What is passed to later plans,
and which of them ran last, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from mithril.mesh import Sharding
from mithril.runtime.call import Bound
from mithril.types import TensorType

Source = TypeVar("Source")


class Decision(NamedTuple):
    """How a parameter lies, and who decided it."""

    sharding: Sharding
    decided_by: str


class ParameterShardings(Generic[Source]):
    """Decides how parameters lie; shared by all planners of a model.

    `bound` is the plan that decided it, None before.

    Args:
        names: of the parameters.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.bound: Bound[Source] | None = None
        self._names = names
        self._asked: Callable[[], Bound[Source]] | None = None
        self._decisions: dict[tuple[str, TensorType], Decision] = {}

    def of(self, name: str, type: TensorType) -> Decision | None:
        """Return what is decided of a parameter of some type, None before it is."""
        return self._decisions.get((name, type))

    def ask(self, plan: Callable[[], Bound[Source]]) -> None:
        """Note what returns the plan that decides; the first one counts."""
        self._asked = self._asked or plan

    def decide(self) -> Bound[Source] | None:
        """Return the plan that decides, made if need be; None before anything is known."""
        if self.bound is None and self._asked is not None:
            self.add(self._asked())
        return self.bound

    def add(self, bound: Bound[Source]) -> None:
        """Let a plan decide, whose parameters were all unplaced; earlier ones come first."""
        self.bound = self.bound or bound
        for name in self._names:
            port, report = bound.ports[name], bound.plan.specs[name]
            decision = Decision(port.sharding, report.decided_by)
            self._decisions.setdefault((name, port.type), decision)
