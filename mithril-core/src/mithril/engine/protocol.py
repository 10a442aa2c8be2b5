"""What passes between the core and an engine: handles, host data, lowered programs, abilities.

`Handle` is an engine's own handle of a distributed array and is opaque to everybody else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mithril.mesh import Box
from mithril.plan.issued import Issued

Handle = Any
Produce = Callable[[Box], np.ndarray]
Observer = Callable[[Issued], None]
"""Called with every collective, and every message between stages, that is carried out."""


@dataclass(frozen=True, slots=True)
class KernelNames:
    """The ops that a backend runs itself, by name; `in` asks for one.

    Args:
        backend: the backend's name, for messages.
        names: names of the ops.
    """

    backend: str
    names: frozenset[str]

    def __contains__(self, name: object) -> bool:
        return name in self.names


class Executable(Protocol):
    """A lowered program.

    It may have an attribute `positional`: a function that takes the handles of the inputs one by
    one, and returns those of the outputs, as a call without an observer does; or None. An
    evaluation that is repeated calls that, with next to nothing around it.
    """

    def __call__(self, inputs: Sequence[Handle], observe: Observer | None = None) -> list[Handle]:
        """Run the program once.

        Args:
            inputs: one handle per program input, in order.
            observe: told of every collective.
        """
        ...
