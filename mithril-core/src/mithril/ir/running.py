"""Which trace is running: the builder that the user's function, called right now, records to.

Traces nest: a gradient inside a function, the body of a loop inside that. What happens inside may
use tensors of every trace around it, so new pieces are built inside the innermost one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from mithril.ir.tensor import Builder, Tensor

_running: ContextVar[Builder | None] = ContextVar("mithril_trace", default=None)


def running_trace() -> Builder | None:
    """Return the builder of the function that is being traced, None outside of any."""
    return _running.get()


@contextmanager
def tracing(builder: Builder) -> Iterator[None]:
    """Make a builder that of the function being traced."""
    token = _running.set(builder)
    try:
        yield
    finally:
        _running.reset(token)


def trace_around(operands: Iterable[object]) -> Builder | None:
    """Return the innermost trace around those operands that are traced, None when none is."""
    builders = (x.builder for x in operands if isinstance(x, Tensor))
    deepest = max(builders, key=lambda builder: builder.depth, default=None)
    running = _running.get()
    is_around = running is not None and deepest is not None and is_within(running, deepest)
    return running if is_around else deepest


def trace_of_call(operands: Iterable[object]) -> Builder | None:
    """Return the trace that the call of a function becomes a part of, None when it runs at once.

    With nothing traced among its operands that is the innermost one: what the function uses from
    around it may be traced.
    """
    return trace_around(operands) or running_trace()


def is_within(builder: Builder, outer: Builder) -> bool:
    """Return whether a trace is another one, or inside it."""
    around: Builder | None = builder
    while around is not None and around is not outer:
        around = around.inside
    return around is outer
