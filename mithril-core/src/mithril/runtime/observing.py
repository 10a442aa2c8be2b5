"""Telling observers: of plans that were made ready to run, and of runs with the time they took.

Where no plugin listens, a run is not touched.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from mithril.plugins.events import Compiled, Evaluated
from mithril.plugins.observers import find_audience

if TYPE_CHECKING:
    from mithril.engine import Executable
    from mithril.runtime.call import Bound


Run = Callable[..., Any]
"""Takes handles and an observer of collectives, and returns handles."""


def tell_compiled(bound: Bound[Any], seconds: float) -> None:
    """Tell observers that a plan was made ready to run.

    Args:
        bound: the plan.
        seconds: what it took the engine to take it in.
    """
    audience = find_audience("mithril_compiled")
    if audience:
        planning = bound.planning_seconds
        audience.tell(Compiled(*_say(bound), bound.plan, planning, seconds))


def watch(bound: Bound[Any], run: Executable) -> Run:
    """Return an executable whose runs observers are told of; itself where nobody listens.

    Args:
        bound: what is run.
        run: the executable.
    """
    audience = find_audience("mithril_evaluated")
    if not audience:
        return run
    said = _say(bound)

    def watched(inputs: Any, observe: Any = None) -> Any:
        started = perf_counter()
        made = run(inputs, observe)
        audience.tell(Evaluated(*said, perf_counter() - started))
        return made

    return watched


def _say(bound: Bound[Any]) -> tuple[str, str, Any]:
    interface = bound.interface
    return interface.caller, interface.owner.name, bound.plan.mesh
