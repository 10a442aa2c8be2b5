"""Wiring: a plan's program with the names by which a backend plugin reaches what goes in and out.

A plugin that hands compiled models to its framework (as a pure function, a module) runs the program
itself, inside whatever the framework does around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mithril.engine import Engine, Executable
from mithril.ir import Program
from mithril.types import TensorType


@dataclass(frozen=True, eq=False)
class Wiring:
    """A program and its names.

    Args:
        program: what runs.
        seeds: for each output that may be given a gradient the name of the input it goes in by.
        gradients: for each parameter and float input the name of the output its gradient comes by.
        uses_seed: whether the program has an input `seed` that decides random numbers.
    """

    program: Program
    seeds: Mapping[str, str]
    gradients: Mapping[str, str]
    uses_seed: bool
    _lowered: dict[Engine, Any] = field(default_factory=dict)

    def seed_type(self, output: str) -> TensorType:
        """Return the type of the gradient of an output."""
        wanted = self.seeds[output]
        return next(port.type for port in self.program.inputs if port.name == wanted)

    def lowered_on(self, engine: Engine) -> Executable:
        """Return the program lowered by an engine, once."""
        if engine not in self._lowered:
            self._lowered[engine] = engine.lower(self.program)
        executable: Executable = self._lowered[engine]
        return executable
