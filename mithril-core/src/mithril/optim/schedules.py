"""Schedules: the learning rate as a function of the step, with optax's names and values.

A schedule takes the number of the step, 0 at the first one, as an int32 scalar of a backend or of a
trace, and returns a float32 scalar. Given a number of Python or an array of NumPy it returns values
of NumPy, to look at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mithril import ops
from mithril.errors import OptionError, kind_of
from mithril.ir import Operand
from mithril.keywords import checked_keywords
from mithril.optim.basics import Schedule
from mithril.optim.checks import check_count, check_number
from mithril.types import DType

Value = Any
"""A float32 scalar of a backend or of a trace, or of NumPy."""


@checked_keywords()
def constant_schedule(value: float) -> Schedule:
    """Return the same learning rate for each step.

    Args:
        value: of at least 0.

    Raises:
        OptionError: the value is negative, or no finite number.

    >>> constant_schedule(0.25)(7)
    np.float32(0.25)
    """
    number = check_number("constant_schedule()", "value", value)
    return _compute(lambda xp, step: step * 0.0 + number)


@checked_keywords()
def linear_schedule(
    init_value: float, end_value: float, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """Go from one value to another in a straight line, and stay there.

    Args:
        init_value: at the begin and before.
        end_value: at the end and after.
        transition_steps: how many steps it takes, at least 1.
        transition_begin: the step it begins with.

    Raises:
        OptionError: a value is negative or no finite number, or a number of steps is none.

    >>> linear_schedule(1.0, 0.0, 4)([0, 1, 4, 9])
    array([1.  , 0.75, 0.  , 0.  ], dtype=float32)
    """
    name = "linear_schedule()"
    start = check_number(name, "init_value", init_value)
    end = check_number(name, "end_value", end_value)
    count = check_count(name, "transition_steps", transition_steps, least=1)
    begin = check_count(name, "transition_begin", transition_begin)

    def formula(xp: Any, step: Value) -> Value:
        return start + (end - start) * _hold(xp, step - float(begin), count) / count

    return _compute(formula)


@checked_keywords()
def cosine_decay_schedule(init_value: float, decay_steps: int, alpha: float = 0.0) -> Schedule:
    """Go down along half a cosine, and stay at the end.

    Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts", 2017.

    Args:
        init_value: at step 0.
        decay_steps: how many steps it takes, at least 1.
        alpha: what is left at the end, as a part of the first value.

    Raises:
        OptionError: a value is negative or no finite number, or a number of steps is none.

    >>> cosine_decay_schedule(1.0, 4)([0, 2, 4, 9]).round(4)
    array([1. , 0.5, 0. , 0. ], dtype=float32)
    """
    name = "cosine_decay_schedule()"
    start = check_number(name, "init_value", init_value)
    count = check_count(name, "decay_steps", decay_steps, least=1)
    end = start * check_number(name, "alpha", alpha)
    return _compute(lambda xp, step: _cosine(xp, step, start, end, count))


@checked_keywords()
def warmup_cosine_decay_schedule(
    init_value: float,
    peak_value: float,
    warmup_steps: int,
    decay_steps: int,
    end_value: float = 0.0,
) -> Schedule:
    """Go up in a straight line, then down along half a cosine, and stay at the end.

    Args:
        init_value: at step 0, if there is a warm-up.
        peak_value: at the end of the warm-up, which the cosine begins with.
        warmup_steps: how many steps the warm-up takes.
        decay_steps: at which step the end is reached, warm-up included.
        end_value: at the end.

    Raises:
        OptionError: a value is negative or no finite number, a number of steps is none, or nothing
            is left after the warm-up.

    >>> warmup_cosine_decay_schedule(0.0, 1.0, 2, 6)([0, 1, 2, 4, 6]).round(4)
    array([0. , 0.5, 1. , 0.5, 0. ], dtype=float32)
    """
    name = "warmup_cosine_decay_schedule()"
    start = check_number(name, "init_value", init_value)
    peak = check_number(name, "peak_value", peak_value)
    end = check_number(name, "end_value", end_value)
    warmup = check_count(name, "warmup_steps", warmup_steps)
    total = check_count(name, "decay_steps", decay_steps, least=1)
    if total <= warmup:
        raise OptionError(
            f"warmup_cosine_decay_schedule() has decay_steps={total}, the warm-up's {warmup} "
            f"included; give more than warmup_steps"
        )

    def formula(xp: Any, step: Value) -> Value:
        up = start + (peak - start) * _hold(xp, step, warmup) / max(warmup, 1)
        down = _cosine(xp, step - float(warmup), peak, end, total - warmup)
        return xp.where(step < float(warmup), up, down)

    return _compute(formula)


@checked_keywords()
def warmup_stable_decay_schedule(
    peak_value: float,
    warmup_steps: int,
    stable_steps: int,
    decay_steps: int,
    init_value: float = 0.0,
    end_value: float = 0.0,
) -> Schedule:
    """Go up in a straight line, stay, and go down in a straight line.

    Hu et al., "MiniCPM", 2024. What is stable may be trained on: only the decay depends on the end.

    Args:
        peak_value: after the warm-up.
        warmup_steps: how many steps the warm-up takes.
        stable_steps: how many steps it stays.
        decay_steps: how many steps it goes down, at least 1.
        init_value: at step 0, if there is a warm-up.
        end_value: at the end and after.

    Raises:
        OptionError: a value is negative or no finite number, or a number of steps is none.

    >>> warmup_stable_decay_schedule(1.0, 2, 2, 2)([0, 1, 2, 4, 5, 6])
    array([0. , 0.5, 1. , 1. , 0.5, 0. ], dtype=float32)
    """
    name = "warmup_stable_decay_schedule()"
    peak = check_number(name, "peak_value", peak_value)
    start = check_number(name, "init_value", init_value)
    end = check_number(name, "end_value", end_value)
    warmup = check_count(name, "warmup_steps", warmup_steps)
    stable = check_count(name, "stable_steps", stable_steps)
    decay = check_count(name, "decay_steps", decay_steps, least=1)

    def formula(xp: Any, step: Value) -> Value:
        up = start + (peak - start) * _hold(xp, step, warmup) / max(warmup, 1)
        gone = _hold(xp, step - float(warmup + stable), decay)
        return xp.where(step < float(warmup), up, peak + (end - peak) * gone / decay)

    return _compute(formula)


@checked_keywords()
def piecewise_constant_schedule(
    init_value: float, boundaries_and_scales: Mapping[int, float]
) -> Schedule:
    """Multiply the learning rate by a factor at each of several steps.

    Args:
        init_value: at step 0.
        boundaries_and_scales: factors by the number of the step that they hold from, as in optax.

    Raises:
        OptionError: a value is negative or no finite number, or a boundary is no step.

    >>> piecewise_constant_schedule(1.0, {2: 0.5, 4: 0.1})([1, 2, 3, 4])
    array([1.  , 0.5 , 0.5 , 0.05], dtype=float32)
    """
    name = "piecewise_constant_schedule()"
    start = check_number(name, "init_value", init_value)
    if not isinstance(boundaries_and_scales, Mapping):
        raise OptionError(
            f"{name} is given {kind_of(boundaries_and_scales)} as boundaries_and_scales; give a "
            f"dict from steps to factors, such as {{1000: 0.1}}"
        )
    pieces = [
        (check_count(name, "boundary", at), check_number(name, f"the factor of {at}", factor))
        for at, factor in sorted(boundaries_and_scales.items())
    ]

    def formula(xp: Any, step: Value) -> Value:
        value, reached = step * 0.0 + start, start
        for boundary, factor in pieces:
            reached *= factor
            value = xp.where(step >= float(boundary), reached, value)
        return value

    return _compute(formula)


@checked_keywords()
def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """Put schedules one after the other; each counts its steps from where it begins.

    Args:
        schedules: at least one.
        boundaries: the steps that all but the first begin at, rising.

    Raises:
        OptionError: there is no schedule, or boundaries are not one fewer, or do not rise.

    >>> join_schedules([linear_schedule(0.0, 1.0, 2), constant_schedule(0.5)], [2])([0, 1, 2, 3])
    array([0. , 0.5, 0.5, 0.5], dtype=float32)
    """
    name = "join_schedules()"
    each, at = _list(schedules), [check_count(name, "boundary", x) for x in _list(boundaries)]
    if not each or not all(map(callable, each)):
        raise OptionError(f"{name} is given {schedules!r}; give schedules, one at least")
    if len(at) != len(each) - 1 or sorted(set(at)) != at:
        raise OptionError(
            f"{name} is given {len(each)} schedules and the boundaries {at}; give rising steps, "
            f"one fewer than schedules"
        )

    def schedule(step: Any) -> Value:
        xp, step = _namespace(step)
        value = each[0](step)
        for boundary, following in zip(at, each[1:], strict=True):
            value = xp.where(step < boundary, value, following(step - boundary))
        return value

    return schedule


def _compute(formula: Callable[[Any, Value], Value]) -> Schedule:
    """Return the schedule of a formula, which takes a namespace and the step as float32."""

    def schedule(step: Any) -> Value:
        xp, step = _namespace(step)
        if xp is np:
            return np.float32(formula(np, step.astype(np.float32)))
        return formula(ops, ops.cast(step, DType.float32))

    return schedule


def _namespace(step: Any) -> tuple[Any, Any]:
    """Return what a step is computed with: NumPy for numbers, the ops for arrays and tensors."""
    return (ops, step) if isinstance(step, Operand) else (np, np.asarray(step))


def _hold(xp: Any, step: Value, most: int) -> Value:
    return xp.minimum(xp.maximum(step, 0.0), float(most))


def _cosine(xp: Any, step: Value, start: float, end: float, count: int) -> Value:
    along = _hold(xp, step, count) / count
    return end + (start - end) * 0.5 * (1.0 + xp.cos(math.pi * along))


def _list(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else []
