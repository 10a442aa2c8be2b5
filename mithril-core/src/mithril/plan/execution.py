"""Execution: how an engine runs a program, as far as time and memory depend on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Execution:
    """How an engine runs the ops of a program.

    Args:
        fuses: whether chains of elementwise ops are one kernel, and values inside them are never in
            memory; otherwise each op is a kernel, whose result is.
        has_views: whether what only moves elements (`Op.is_view`) shares the memory of its operand
            where strides can say it.
        overlaps: whether a collective goes on beside other work until its result is needed.
        in_turn: whether the devices of a process compute one after the other on one processor, as
            simulated ones do; a step then takes the time of all of them together.
        devices_per_processor: how many devices are at work on one processor at the same time, as
            processes on the cores of a machine are.
        fuses_bias: whether a vector that is added to a product is a part of its kernel.
    """

    fuses: bool = False
    has_views: bool = True
    overlaps: bool = False
    in_turn: bool = False
    devices_per_processor: int = 1
    fuses_bias: bool = False
