"""Execution: how an engine runs a program, as far as time and memory depend on it."""

from __future__ import annotations

from dataclasses import dataclass

from mithril.ops.collective import NARROW_FLOATS, AllReduce, ReduceScatter
from mithril.types import DType

ALL = ("*",)
"""As `in_arena`: the results of all ops."""


@dataclass(frozen=True, slots=True)
class Execution:
    """How an engine runs the ops of a program.

    Args:
        fuses: whether chains of elementwise ops are one kernel, and values inside them are never in
            memory; otherwise each op is a kernel, whose result is.
        has_views: whether what only moves elements (`Op.is_view`) shares the memory of its operand
            where strides can say it.
        overlaps: whether a collective goes on beside other work until its result is needed.
        schedules: whether the engine orders a program by itself, as compilers and lazy evaluation
            do, and so decides where collectives start and end.
        copies_beside: whether what goes to the host arena, or comes from it, is copied beside other
            work, as accelerators do.
        sends_beside: whether devices run by themselves, and what one sends another goes beside its
            other work; it stays in memory until an answer shows that it has arrived.
        receives_early: whether what a device needs after a stage is received while that runs.
        in_turn: whether the devices of a process compute one after the other on one processor, as
            simulated ones do; a step then takes the time of all of them together.
        lays_out: whether the memory of a program is laid out before it runs, so that its inputs and
            outputs are there from start to end; otherwise a result gets memory when it is made, and
            what nobody needs any more is let go of at once.
        adds_in_product: whether a product of matrices and the vector added to it are one kernel.
        reduces_in_place: whether an all_reduce takes place in one buffer, in which its operands are
            made where nobody else reads them.
        adds_in_place: whether a sum that nobody in the program reads grows in the memory of an
            input that nobody else needs, and an update of a parameter is made where that lies.
        reused_operands: which operands results are made in the memory of where nobody reads them
            afterwards, by op name (`mithril.engine.operand_reuse`).
        joins_parts: whether what is exchanged along another dimension than the first is copied
            before or after, so that the parts of devices lie behind one another.
        copies_parts: whether what is gathered is copied in any case, and of what is scattered the
            parts of all devices come first, as over Gloo.
        adds_narrow: whether what carries data between devices adds 16-bit floats up in 16 bits;
            plans then have such sums in float32.
        compares_wide: whether it compares 16-bit floats as 32 bits in an all_reduce; plans then
            have such maxima and minima in float32.
        workspaces: what kernels take while they run besides operands and results, as multiples of
            the largest of these, by op name.
        orders_products: from so many multiplications on, a product of float32 copies its first
            factor if its rows do not lie in order, or is made turned around if that copies less;
            0 for never.
        ordered: what of each operand has to lie in order, by op name: its `rows`, its elements
            (`all`), or nothing (an empty text); an operand that does not is copied.
        scores_at_once: about so many scores of attention are computed at a time, some queries after
            others (`mithril.ops.query_rows.count_rows_at_once`); 0 for all.
        in_arena: names of the ops whose results lie in one arena at offsets that are chosen before
            a program runs (`ALL` for those of all ops); without any, memory is taken when a result
            is made and given back when nobody needs it any more.
        devices_per_processor: how many devices are at work on one processor at the same time, as
            processes on the cores of a machine are.
        largest_part: how many times its even part of the processor a device uses where the others
            are idle: as many times as there are devices where they share threads.
        shares_threads: whether devices are threads of one process, which go on when a message is
            there; a process waits for a turn on its core.
    """

    fuses: bool = False
    has_views: bool = True
    overlaps: bool = False
    schedules: bool = False
    copies_beside: bool = False
    sends_beside: bool = False
    receives_early: bool = False
    in_turn: bool = False
    lays_out: bool = False
    adds_in_product: bool = False
    reduces_in_place: bool = False
    adds_in_place: bool = False
    reused_operands: tuple[tuple[str, tuple[int, ...]], ...] = ()
    joins_parts: bool = False
    copies_parts: bool = False
    adds_narrow: bool = False
    compares_wide: bool = False
    workspaces: tuple[tuple[str, float], ...] = ()
    orders_products: int = 0
    ordered: tuple[tuple[str, tuple[str, ...]], ...] = ()
    scores_at_once: int = 0
    in_arena: tuple[str, ...] = ()
    devices_per_processor: int = 1
    largest_part: float = 1.0
    shares_threads: bool = False

    def widens(self, kind: str, reduction: str, dtype: DType) -> bool:
        """Return whether plans have a reduction over devices of 16-bit floats in float32.

        Args:
            kind: of the collective.
            reduction: `sum`, `max` or `min`.
            dtype: of the elements.

        >>> Execution(compares_wide=True).widens("all_reduce", "max", DType.bfloat16)
        True
        """
        if dtype not in NARROW_FLOATS:
            return False
        if reduction == "sum":
            return self.adds_narrow and kind in (AllReduce.name, ReduceScatter.name)
        return self.compares_wide and kind == AllReduce.name

    @property
    def hides_collectives(self) -> bool:
        """Whether a device computes while one of its collectives is on its way.

        One processor that computes for all devices in turn has nothing to hide them behind.
        """
        return self.overlaps and not self.in_turn
