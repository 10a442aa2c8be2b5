"""What observers are told: plain data about plans that were made and programs that ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mithril.mesh import Mesh
    from mithril.plan import Plan


@dataclass(frozen=True, slots=True)
class Compiled:
    """A plan was made, and turned into something that runs.

    Args:
        caller: what users call, such as `evaluate` or `function 'f'`.
        backend: the backend's name.
        mesh: the devices.
        plan: what runs; it must not be changed.
        planning_seconds: what it took to make the plan.
        lowering_seconds: what it took the backend to take it in. A framework that compiles at the
            first call does so in that call.
    """

    caller: str
    backend: str
    mesh: Mesh
    plan: Plan
    planning_seconds: float
    lowering_seconds: float


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A program ran.

    Args:
        caller: what users called.
        backend: the backend's name.
        mesh: the devices.
        seconds: from the call until the backend handed results on. A framework that computes while
            Python goes on may not have computed them by then.
    """

    caller: str
    backend: str
    mesh: Mesh
    seconds: float
