"""Wiring: a plan with the names by which a backend plugin reaches what goes in and out.

A plugin that hands compiled models to its framework (as a pure function, a module) runs the program
itself, inside whatever the framework does around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mithril.engine import Engine, Executable
from mithril.plan import Plan, Program
from mithril.runtime.backend import lower
from mithril.types import TensorType


@dataclass(frozen=True, eq=False)
class Wiring:
    """A plan and its names.

    Args:
        plan: what runs.
        seeds: for each output that may be given a gradient the name of the input it goes in by.
        gradients: for each parameter and float input the name of the output its gradient comes by.
        uses_seed: whether the plan has an input `seed` that decides random numbers.
    """

    plan: Plan
    seeds: Mapping[str, str]
    gradients: Mapping[str, str]
    uses_seed: bool
    _lowered: dict[Engine, Any] = field(default_factory=dict)

    @property
    def program(self) -> Program:
        """The program of a plan of one stage."""
        return self.plan.stages[0].program

    def seed_type(self, output: str) -> TensorType:
        """Return the type of the gradient of an output."""
        wanted = self.seeds[output]
        return next(port.type for port in self.plan.inputs if port.name == wanted)

    def lowered_on(self, engine: Engine) -> Executable:
        """Return the plan lowered for an engine, once, as an evaluation lowers it."""
        if engine not in self._lowered:
            self._lowered[engine] = lower(engine, self.plan)
        executable: Executable = self._lowered[engine]
        return executable
