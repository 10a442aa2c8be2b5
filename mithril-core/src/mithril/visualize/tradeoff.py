"""What less memory costs in time: the choices of what the backward computes again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mithril.errors import OptionError, kind_of
from mithril.plan import Plan
from mithril.plan.policy import MemoryPolicy, TradeOff
from mithril.tables import PALETTE, Table
from mithril.units import BYTES, SECONDS, choose_unit, format_bytes, format_seconds
from mithril.visualize.figures import (
    FONT,
    PathLike,
    make_figure,
    open_frame,
    save,
    write_title,
)
from mithril.visualize.terminal import print_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_memory_tradeoff(plan: Plan, *, path: PathLike | None = None) -> Figure:
    """Return how much longer a step takes the less memory it has, and where the plan lies.

    Args:
        plan: made with a memory budget, such as `ml.compile(…, checkpointing=0.6).plan`.
        path: where to save the figure; the ending says in which format.

    Raises:
        OptionError: the plan was made without a budget; matplotlib is not installed, or the path
            cannot be written.
    """
    policy = _check(plan)
    figure = make_figure(7.5, 4.2)
    axes = figure.add_subplot()
    write_title(figure, _title(plan))
    _draw(axes, policy, _find_own(plan))
    open_frame(axes)
    return save(figure, path)


def print_memory_tradeoff(plan: Plan) -> None:
    """Print how much longer a step takes the less memory it has, and where the plan lies.

    Args:
        plan: made with a memory budget, such as `ml.compile(…, checkpointing=0.6).plan`.

    Raises:
        OptionError: the plan was made without a budget.
    """
    policy, own = _check(plan), _find_own(plan)
    others = (point for point in policy.curve if point.peak != own.peak)
    points = sorted((*others, own), key=lambda point: -point.peak)
    rows = [
        (
            format_bytes(point.peak),
            f"{100 * point.peak / policy.keeping:.0f} %",
            format_seconds(point.seconds) if point.seconds else "0 s",
            "this plan" if point == own else "",
        )
        for point in points
    ]
    notes = () if policy.bound is None else (f"at least {format_seconds(policy.bound)} more",)
    columns = ("peak", "of keeping all", "more time", "")
    print_table(Table(_title(plan), columns, tuple(rows), notes=notes))


def _check(plan: object) -> MemoryPolicy:
    if not isinstance(plan, Plan):
        raise OptionError(
            f"a memory trade-off is drawn of a plan, not of {kind_of(plan)}; give compiled.plan"
        )
    if plan.policy is None or not plan.policy.curve:
        raise OptionError(
            "plan was made without a memory budget, so that no trade-off was looked for; compile "
            'with checkpointing=0.6, "2 GB" or "selective"'
        )
    return plan.policy


def _find_own(plan: Plan) -> TradeOff:
    assert plan.policy is not None, "it is asked for before"
    return TradeOff(plan.memory().peak, plan.policy.seconds)


def _title(plan: Plan) -> str:
    assert plan.policy is not None, "it is asked for before"
    profile = "" if plan.pricing is None else f", predicted with profile '{plan.pricing.profile}'"
    return f"memory against time, {plan.policy.asked}{profile}"


def _draw(axes: Axes, policy: MemoryPolicy, own: TradeOff) -> None:
    points = sorted(policy.curve, key=lambda point: point.peak)
    size, unit = choose_unit(max(point.peak for point in points), BYTES)
    most = max(point.seconds for point in (*points, own))
    second, name = choose_unit(most, SECONDS)
    peaks = [point.peak / size for point in points]
    times = [point.seconds / second for point in points]
    axes.plot(peaks, times, "o-", color=PALETTE[0], markersize=3, linewidth=1, label="choices")
    axes.plot(
        [own.peak / size],
        [own.seconds / second],
        "D",
        color="black",
        markersize=6,
        label="this plan",
    )
    if policy.budget is not None:
        label = f"budget {format_bytes(policy.budget)}"
        axes.axvline(
            policy.budget / size, color="#d62728", linestyle="--", linewidth=1, label=label
        )
    if policy.bound is not None:
        label = f"no choice within the budget takes less than {format_seconds(policy.bound)}"
        axes.axhline(policy.bound / second, color="grey", linestyle=":", linewidth=1, label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"{unit} on a device at the peak", fontsize=FONT)
    axes.set_ylabel(f"{name} that a step takes more", fontsize=FONT)
    axes.legend(fontsize=FONT, frameon=False)


__all__ = ["plot_memory_tradeoff", "print_memory_tradeoff"]
