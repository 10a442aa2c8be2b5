"""Telling observers: of plans that were made ready to run, and of runs with the time they took.

Where no plugin listens, a run is not touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from mithril.engine import Executable
from mithril.mesh import Mesh
from mithril.plan import Plan
from mithril.plugins.events import Compiled, Evaluated
from mithril.plugins.observers import find_audience

Run = Callable[..., list[Any]]
"""Takes handles and an observer of collectives, and returns handles."""


@dataclass(frozen=True, slots=True)
class Occasion:
    """What all events of a plan have in common.

    Args:
        caller: what users call.
        backend: the backend's name.
        mesh: the devices.
    """

    caller: str
    backend: str
    mesh: Mesh


def tell_compiled(occasion: Occasion, plan: Plan, planning: float, lowering: float) -> None:
    """Tell observers that a plan was made ready to run.

    Args:
        occasion: who calls what runs.
        plan: the plan.
        planning: seconds that it took to make.
        lowering: seconds that it took the engine to take in.
    """
    audience = find_audience("mithril_compiled")
    if audience:
        said = occasion.caller, occasion.backend, occasion.mesh
        audience.tell(Compiled(*said, plan, planning, lowering))


def watch(occasion: Occasion, run: Executable) -> Run:
    """Return an executable whose runs observers are told of; itself where nobody listens.

    Args:
        occasion: who calls what runs.
        run: the executable.
    """
    audience = find_audience("mithril_evaluated")
    if not audience:
        return run
    said = occasion.caller, occasion.backend, occasion.mesh

    def run_and_tell(inputs: Any, observe: Any = None) -> Any:
        started = perf_counter()
        made = run(inputs, observe)
        audience.tell(Evaluated(*said, perf_counter() - started))
        return made

    return run_and_tell
