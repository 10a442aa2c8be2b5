"""The sides of a row on NumPy: one device, and by hand."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable
from functools import partial

import mithril as ml
import numpy as np

from benchmarks.matrix.by_hand_numpy import AdamW, Arrays, make_forward, make_step
from benchmarks.matrix.cases import STEP, Row
from benchmarks.matrix.contest import (
    MITHRIL,
    Gradients,
    Ours,
    Side,
    check_gradients,
    check_losses,
    take_time,
)
from benchmarks.matrix.models import by_hand_name, make_data

BY_HAND = "by hand"


def contest(row: Row) -> dict[str, Side]:
    """Return the sides of a row, after a check that they give the same numbers."""
    ours = Ours(row, ml.NumpyBackend(), lambda _: None)
    check_gradients(ours.differentiate(), partial(differentiate, row), ours.start)
    first = ours.planning + take_time(ours.run)
    peak = count_peak(ours.run, lambda: (x for held in ours.list_held() for x in held))
    sides = {MITHRIL: Side(ours.run, ours.loss, peak, first), BY_HAND: by_hand(row, ours.start)}
    check_losses(sides)
    return sides


def differentiate(row: Row, params: Arrays) -> Gradients:
    """Return the loss by hand, and gradients by Mithril's names."""
    named = {by_hand_name(name): x for name, x in params.items()}
    loss, slopes = make_step(row)(named, *make_data(row).values())
    return float(loss), {name: slopes[by_hand_name(name)] for name in params}


def by_hand(row: Row, start: Arrays) -> Side:
    """Return the side by hand, called once."""
    inputs = make_data(row).values()
    params = {by_hand_name(name): x.copy() for name, x in start.items()}
    held = [*params.values(), *inputs]
    if row.kind == STEP:
        differentiated, optimizer = make_step(row), AdamW(params)
        held += [*optimizer.means.values(), *optimizer.squares.values()]

        def run() -> np.ndarray:
            loss, gradients = differentiated(params, *inputs)
            optimizer.update(gradients)
            return loss

    else:
        forward = make_forward(row)

        def run() -> np.ndarray:
            return forward(params, *inputs)

    first = take_time(run)
    return Side(run, lambda: float(run()), count_peak(run, lambda: held), first)


def count_peak(
    run: Callable[[], object], held: Callable[[], Iterable[np.ndarray]]
) -> Callable[[], int]:
    """Return what counts the most bytes alive in a call: those held, and what it takes besides."""

    def count() -> int:
        run()
        own = sum(x.nbytes for x in held())
        tracemalloc.start()
        run()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return own + most

    return count
