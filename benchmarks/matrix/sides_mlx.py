"""The sides of a row on MLX: one device, with and without `mx.compile`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import mithril as ml
import mlx.core as mx
import numpy as np
from mlx import optimizers
from mlx.utils import tree_flatten

from benchmarks.matrix.by_hand_mlx import LAST, Params, from_mlx, make_loss, to_mlx
from benchmarks.matrix.cases import STEP, Row
from benchmarks.matrix.contest import (
    MITHRIL,
    Arrays,
    Gradients,
    Ours,
    Side,
    check_gradients,
    check_losses,
    take_time,
)
from benchmarks.matrix.models import by_hand_name, make_data
from benchmarks.training_cases import DECAY, RATE


def contest(row: Row) -> dict[str, Side]:
    """Return the sides of a row, after a check that they give the same numbers."""
    layout = "channels_last" if row.model == "resnet-channels-last" else "channels_first"
    ours = Ours(row, ml.MLXBackend(device="cpu", memory_format=layout), mx.eval)
    check_gradients(ours.differentiate(), partial(differentiate, row), ours.start)
    first = ours.planning + take_time(ours.run)
    peak = count_peak(ours.run, ours.list_held)
    sides = {MITHRIL: Side(ours.run, ours.loss, peak, first)}
    for name, is_compiled in {"mx.compile": True, "not compiled": False}.items():
        sides[name] = by_hand(row, read_params(ours.start), is_compiled)
    check_losses(sides)
    return sides


def read_params(params: Arrays) -> Params:
    """Return parameters by the names by hand, as MLX's arrays."""
    return {by_hand_name(name): to_mlx(name, x) for name, x in params.items()}


def read_inputs(row: Row) -> list[mx.array]:
    """Return inputs and targets; images have their channels last."""
    arrays = make_data(row).values()
    return [mx.array(np.ascontiguousarray(x.transpose(LAST)) if x.ndim == 4 else x) for x in arrays]


def differentiate(row: Row, params: Arrays) -> Gradients:
    """Return the loss by hand, and gradients by Mithril's names."""
    run = mx.value_and_grad(make_loss(replace(row, kind=STEP)))
    loss, slopes = run(read_params(params), *read_inputs(row))
    return float(loss.item()), {n: from_mlx(n, slopes[by_hand_name(n)]) for n in params}


def by_hand(row: Row, params: Params, is_compiled: bool) -> Side:
    """Return a side by hand, called once."""
    inputs, loss_of = read_inputs(row), make_loss(row)
    kept: list[Any] = [params]
    if row.kind == STEP:
        optimizer = optimizers.AdamW(RATE, weight_decay=DECAY, bias_correction=True)
        optimizer.init(params)
        kept.append(optimizer.state)
        gradients_of = mx.value_and_grad(loss_of)

        def update(params: Params, *inputs: mx.array) -> tuple[mx.array, Any]:
            loss, gradients = gradients_of(params, *inputs)
            return loss, optimizer.apply_gradients(gradients, params)

        state = [optimizer.state]
        call = mx.compile(update, inputs=state, outputs=state) if is_compiled else update

        def run() -> mx.array:
            loss, kept[0] = call(kept[0], *inputs)
            mx.eval(loss, kept[0], optimizer.state)
            return loss

    else:
        forward = mx.compile(loss_of) if is_compiled else loss_of

        def run() -> mx.array:
            loss = forward(kept[0], *inputs)
            mx.eval(loss)
            return loss

    first = take_time(run)
    peak = count_peak(run, lambda: [kept, inputs])
    return Side(run, lambda: float(run().item()), peak, first)


def count_peak(run: Callable[[], object], held: Callable[[], list[Any]]) -> Callable[[], int]:
    """Return what counts the most bytes alive in a call: those held, and what it takes besides.

    Args:
        run: makes the call.
        held: returns trees of all arrays that are held between calls.
    """

    def count() -> int:
        run()
        arrays = [x for _, x in tree_flatten(held()) if isinstance(x, mx.array)]
        before, own = mx.get_active_memory(), sum(x.nbytes for x in arrays)
        mx.reset_peak_memory()
        run()
        return own + mx.get_peak_memory() - before

    return count
