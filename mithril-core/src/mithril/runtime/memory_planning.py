"""Memory planning: whether programs take memory as they run, or have a place for every result."""

from __future__ import annotations

from mithril.cost.liveness import arrange
from mithril.engine import Engine
from mithril.option_checks import check_choice

GREEDY, DYNAMIC = "greedy", "dynamic"


def choose_engine(engine: Engine, memory_planning: str, *, ranges: bool) -> Engine:
    """Return an engine whose programs run as options want it.

    Args:
        engine: of the backend.
        memory_planning: `greedy` for results at fixed offsets in one block a device, which is made
            once and used again at every call; `dynamic` for memory that is taken when a result is
            made, and given back when nobody needs it any more.
        ranges: whether layers stand in ranges of the framework's profiler.

    Raises:
        OptionError: the engine's programs cannot run so.
    """
    found = engine.with_ranges() if ranges else engine
    return found.in_arena(arrange) if memory_planning == GREEDY else found


def read_memory_planning(given: object) -> str:
    """Return what `memory_planning=` means; `dynamic` if it is left out.

    Raises:
        OptionError: it is neither `greedy` nor `dynamic`.
    """
    if given is None:
        return DYNAMIC
    check_choice("memory_planning", given, (GREEDY, DYNAMIC))
    return str(given)
