"""A compiled model as a backend plugin sees it: a bound plan by the names of what goes in and out.

A plugin that hands compiled models to its framework (as a pure function, a module) runs the program
itself, inside whatever the framework does around it. It sees this as an `interop.ProgramView`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from mithril.engine import Executable
from mithril.plan import Plan
from mithril.runtime.array import Array
from mithril.runtime.asked import Evaluation
from mithril.runtime.call import Bound
from mithril.transform import cotangent_name, gradient_of
from mithril.types import TensorType


@dataclass(frozen=True, eq=False)
class BoundModel:
    """A bound plan and its names.

    Args:
        bound: what runs.
    """

    bound: Bound[Evaluation]

    @property
    def plan(self) -> Plan:
        """What runs."""
        return self.bound.plan

    @property
    def executable(self) -> Executable:
        """The plan lowered as an evaluation lowers it, when this is first read."""
        return self.bound.executable

    @cached_property
    def cotangents(self) -> Mapping[str, str]:
        """For each output that may be given a gradient the name of the input it goes in by."""
        return {name: cotangent_name(name) for name in self.bound.interface.source.seeded}

    @cached_property
    def gradients(self) -> Mapping[str, str]:
        """For each parameter and float input the name of the output its gradient comes by."""
        return {name: gradient_of(name) for name in self.bound.interface.source.differentiated}

    @property
    def captured(self) -> Mapping[str, Array]:
        """Arrays that layers use from around them, by the names of the inputs they go in by.

        They lie as this program takes them until another one is run that takes them otherwise.
        """
        captured = self.bound.interface.source.captured
        arrays = captured.collect(self.bound.ports)
        return {item.name: x for item, x in zip(captured.arrays, arrays, strict=True)}

    @property
    def uses_seed(self) -> bool:
        """Whether the plan has an input `seed` that decides random numbers."""
        return self.bound.interface.source.traced.uses_seed

    def cotangent_type(self, output: str) -> TensorType:
        """Return the type of the gradient of an output."""
        return self.bound.ports[self.cotangents[output]].type
