"""Offload: values that a local program does not need for a while go to the host arena and back.

*Activations*: what the backward needs of the forward is copied to the host after its last use in
the forward, and back before its first use in the backward; of a loop slice by slice. *Spills*:
what is alive at the moment of the peak, and not used then, is on the host meanwhile. The *state* of
an optimiser lies there between steps, and each part of it is on the device while it is updated.

What is brought back names a value that exists just before it is needed, so that no compiler brings
it back earlier. Where an engine computes beside copies it is brought back one use ahead.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from mithril.partition.offload.loops import offload_loops
from mithril.partition.offload.state import offload_state
from mithril.partition.offload.values import find_activations, move, spill
from mithril.plan import Program


@dataclass(frozen=True, slots=True)
class Offload:
    """What goes to the host.

    Args:
        threshold: activations of more elements; None for none.
        spill: whatever is alive across the peak of at least so many bytes; None for nothing.
        arena: where the host arena lies; see `mithril.ops.host`.
    """

    threshold: int | None = None
    spill: int | None = None
    arena: str = "memory"


NO_OFFLOAD = Offload()


def offload(
    program: Program, wanted: Offload, state: Collection[str] = (), *, overlaps: bool = False
) -> Program:
    """Return a program whose values are on the host while nobody needs them.

    Args:
        program: a local one: forward, and backward and update where there are such.
        wanted: which values.
        state: names of inputs that lie on the host between runs, as what is made of them does.
        overlaps: whether the engine computes while something is copied.
    """
    graph = program.graph
    if wanted.threshold is not None:
        graph = offload_loops(graph, wanted.threshold, wanted.arena)
        graph = move(graph, find_activations(graph, wanted.threshold), wanted.arena, overlaps)
    if wanted.spill is not None:
        graph = spill(graph, wanted.spill, wanted.arena, overlaps)
    if state:
        graph = offload_state(graph, frozenset(state), wanted.arena)
    return program if graph is program.graph else replace(program, graph=graph)


__all__ = ["NO_OFFLOAD", "Offload", "offload"]
