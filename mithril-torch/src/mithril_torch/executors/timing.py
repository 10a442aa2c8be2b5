"""What timed programs tell: from the times at their marks to spans and exchanges for a recorder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from mithril.spi import BackendError, Issued, Recorder, Span

from mithril_torch.executors.pool.allocations import is_profiled
from mithril_torch.program.module_scope import TextSegment

Stamps = Sequence[float]
"""Numbers of segments, each followed by the time at which it began."""

HOW = "allocations of PyTorch, counted"
"""How memory is measured."""


def check_counting(device: str, recorder: Recorder) -> None:
    """Raise unless memory can be counted, if it is to be.

    Raises:
        BackendError: PyTorch's own profiler runs already.
    """
    if recorder.counts_memory and not device.startswith("cuda") and is_profiled():
        raise BackendError(
            "memory cannot be counted while torch.profiler runs; pass profile_memory=False, or end "
            "that profile first"
        )


def record(
    recorder: Recorder,
    segments: Sequence[TextSegment],
    stamps: Sequence[tuple[int, Stamps]],
    untimed: Callable[[], Iterable[Issued]],
) -> None:
    """Have a recorder told what was timed, once the run is over.

    Args:
        recorder: of the run.
        segments: those of the program.
        stamps: ranks, and what each of them noted, until its program returned.
        untimed: returns what is exchanged, for a program that has no marks.
    """
    recorder.later.append(partial(_tell, recorder, segments, stamps, untimed))


def _tell(
    recorder: Recorder,
    segments: Sequence[TextSegment],
    stamps: Sequence[tuple[int, Stamps]],
    untimed: Callable[[], Iterable[Issued]],
) -> None:
    alone = len(stamps) == 1
    recorder.marks += max((len(noted) // 2 for _, noted in stamps), default=0)
    for rank, noted in stamps:
        found = list(_spans(rank, segments, noted))
        recorder.spans += (span for span, _ in found)
        for span, text in found:
            issued = span.segment.issued
            # Of all that take part one tells; a process alone tells what it takes part in.
            if issued is not None and (alone or rank == text.devices[0]):
                recorder(replace(issued, seconds=span.seconds))
    if not segments:
        for issued in untimed():
            recorder(issued)


def _spans(
    rank: int, segments: Sequence[TextSegment], stamps: Stamps
) -> Iterable[tuple[Span, TextSegment]]:
    """Return what a rank did; an exchange lasts from its start to the end of the last wait."""
    found: list[tuple[Span, TextSegment]] = []
    begun: dict[int, int] = {}  # by the identity of what is exchanged, where its span stands
    moments = list(zip(stamps[::2], stamps[1::2], strict=True))
    for (number, start), (_, end) in pairwise(moments):
        text = segments[int(number)]
        if not text.segment.name:
            continue
        issued = text.segment.issued
        if issued is None:
            found.append((Span(text.segment, (rank,), start, end), text))
            continue
        if text.is_wait:
            at = begun[id(issued.origin)]
            span = found[at][0]
            waited = (span.waited or 0.0) + end - start
            found[at] = replace(span, end=end, waited=waited), found[at][1]
            continue
        begun[id(issued.origin)] = len(found)
        found.append((Span(text.segment, (rank,), start, end, end - start), text))
    return found
