"""Strategies as text: what one says, what it was predicted to cost, and what others would."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mithril.mesh import PartitionSpec
from mithril.runtime.strategy.data import StrategyData
from mithril.units import format_bytes, format_seconds

SHOWN = 8
"""How many parameters of a kind are named."""


def describe(strategy: StrategyData) -> str:
    """Return a text of a strategy."""
    return "\n".join(
        [f"strategy for {strategy.make_mesh()!r}", *_said(strategy), *_describe_findings(strategy)]
    )


def format_cost(objective: str, cost: float) -> str:
    """Return a cost in the unit of its objective."""
    seconds = objective in ("throughput", "latency")
    return format_seconds(cost) if seconds else format_bytes(int(cost))


def _said(strategy: StrategyData) -> Iterator[str]:
    yield from _specs("inputs", strategy.in_shardings)
    yield from _specs("parameters", strategy.shardings)
    yield from _specs("values", strategy.value_shardings)
    if strategy.auto_partition:
        yield _line("tensors", f"searched when compiled, for {strategy.auto_partition}")
    if strategy.axis:
        cut = f", micro-batches of {strategy.microbatch_size}" if strategy.microbatch_size else ""
        order = strategy.schedule or "the default schedule"
        yield _line("stages", f"{_count(strategy)} over '{strategy.axis}', {order}{cut}")
        yield from (_line("", row) for row in _stages(strategy))
    if strategy.accumulate > 1:
        yield _line("batch", f"in {strategy.accumulate} micro-batches, one after another")
    if strategy.zero:
        yield _line("zero", f"stage {strategy.zero} over {'+'.join(strategy.zero_axes)}")
    if strategy.context_parallel:
        yield _line("attention", f"context_parallel='{strategy.context_parallel}'")
    if strategy.checkpointing != "none":
        yield _line("backward", f"checkpointing={strategy.checkpointing!r}")


def _specs(label: str, specs: Mapping[str, PartitionSpec]) -> Iterator[str]:
    groups: dict[str, list[str]] = {}
    for name, spec in specs.items():
        groups.setdefault(repr(spec), []).append(name)
    for said, names in groups.items():
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        yield _line(label, f"{said}: {', '.join(names[:SHOWN])}{more}")
        label = ""


def _count(strategy: StrategyData) -> int:
    stages = (s if isinstance(s, tuple) else (s,) for s in strategy.stages.values())
    return 1 + max((number for several in stages for number in several), default=0)


def _stages(strategy: StrategyData) -> Iterator[str]:
    of: dict[int, list[str]] = {}
    for path, stage in strategy.stages.items():
        for number in stage if isinstance(stage, tuple) else (stage,):
            of.setdefault(number, []).append(path if stage == number else f"a part of {path}")
    for number, paths in sorted(of.items())[:SHOWN]:
        yield f"stage {number}: {', '.join(paths[:SHOWN])}{' …' if len(paths) > SHOWN else ''}"
    if len(of) > SHOWN:
        yield f"and {len(of) - SHOWN} more stages"


def _describe_findings(strategy: StrategyData) -> Iterator[str]:
    found = strategy.findings
    if not found.profile:
        return
    step = f"{format_seconds(found.seconds)} a step, {format_bytes(found.memory)} on a device"
    yield _line("predicted", f"{step}, with profile '{found.profile}'")
    if found.measured is not None:
        yield _line("measured", f"{format_seconds(found.measured)} a step")
    counts = f"{found.considered} configurations, {found.pruned} left out by their bound"
    yield _line("searched", f"{counts}, {found.planned} planned, for {found.objective}")
    bound = format_cost(found.objective, found.bound)
    yield _line("bound", f"no strategy of the space is below {bound}")
    label = "instead"
    for row in found.alternatives:
        cost = format_cost(found.objective, row.cost)
        rest = ("" if row.is_planned else ", estimated") + ("" if row.fits else ", does not fit")
        yield _line(label, f"{row.kind}: {cost}, {100 * row.more:+.1f} %{rest}")
        label = ""


def _line(label: str, text: str) -> str:
    return f"  {label:<10} {text}".rstrip()


__all__ = ["describe", "format_cost"]
