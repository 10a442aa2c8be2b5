"""Wiring: a plan with the names by which a backend plugin reaches what goes in and out.

A plugin that hands compiled models to its framework (as a pure function, a module) runs the program
itself, inside whatever the framework does around it. It sees this as an `interop.ProgramView`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from mithril.engine import Engine, Executable
from mithril.plan import Plan
from mithril.runtime.backend import lower
from mithril.types import TensorType


@dataclass(frozen=True, eq=False)
class Wiring:
    """A plan and its names.

    Args:
        engine: where it runs.
        plan: what runs.
        cotangents: for each output that may be given a gradient the name of the input it goes in
            by.
        gradients: for each parameter and float input the name of the output its gradient comes by.
        uses_seed: whether the plan has an input `seed` that decides random numbers.
    """

    engine: Engine
    plan: Plan
    cotangents: Mapping[str, str]
    gradients: Mapping[str, str]
    uses_seed: bool

    @cached_property
    def executable(self) -> Executable:
        """The plan lowered as an evaluation lowers it, when this is first read."""
        return lower(self.engine, self.plan)

    def cotangent_type(self, output: str) -> TensorType:
        """Return the type of the gradient of an output."""
        wanted = self.cotangents[output]
        return next(port.type for port in self.plan.inputs if port.name == wanted)
