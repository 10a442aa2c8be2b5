"""The matrix of benchmarks: what its rows are, what it says of them, and its sides on NumPy."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from benchmarks.matrix import __main__ as matrix
from benchmarks.matrix import cases, contest, row, sides_numpy
from benchmarks.matrix.cases import BACKENDS, FAMILIES, LEAST, MOST, Row, list_rows, order_rows
from tests.matrix_rows import tiny

TIMES = {
    "mithril": [1.2] * 9, "by hand": [1.0] * 9,
    "first call of mithril": [3.0], "first call of by hand": [2.0],
    "peak bytes of mithril": [99.0], "peak bytes of by hand": [100.0],
}  # fmt: skip


def test_sizes_follow_from_the_seed_and_from_nothing_else():
    rows = list_rows(5)
    assert rows == list_rows(5)
    assert all(a.sizes != b.sizes for a, b in zip(rows, list_rows(6), strict=True))
    assert all(0.99 * LEAST <= row.cost <= 1.01 * MOST for row in rows)  # but for rounding
    assert len({row.title for row in rows}) == len(rows)
    assert {row.backend for row in rows} == {*BACKENDS}
    assert {row.model for row in rows if row.backend == "torch"} == {*FAMILIES}


def test_rows_come_from_each_backend_in_turn_in_an_order_of_the_seed():
    rows = list_rows(5)
    first = [*order_rows(rows, 5)]
    assert sorted(map(str, first)) == sorted(map(str, rows))
    assert [row.backend for row in first[:8]] == [*BACKENDS, *BACKENDS]
    assert first == [*order_rows(rows, 5)]
    assert first != [*order_rows(rows, 6)]


def test_sizes_and_devices_may_be_said():
    (one,) = [r for r in list_rows(5) if r.title == "jax llama data-tensor step"]
    said = one.alter({"width": 384, "layers": 6}, 8)
    assert said.mesh == {"data": 4, "tensor": 2}
    assert said.ranks == 8
    assert said.sizes == {**one.sizes, "width": 384, "layers": 6}
    assert str(said).startswith("jax llama data-tensor step on 8 devices: layers=6 width=384 ")
    assert Row.load(said.dump()) == said
    assert one.alter({}, 0) == one
    with pytest.raises(ValueError, match=r"^llama has no size 'depth'; it has layers, width, "):
        one.alter({"depth": 1}, 0)
    text = r"^data-tensor of 4 devices cannot be of 6; give a multiple$"
    with pytest.raises(ValueError, match=text):
        one.alter({}, 6)


def test_sizes_are_read_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    asked = ["matrix", "--seed", "5", "--backend", "torch", "--model", "llama", "--list"]
    monkeypatch.setattr("sys.argv", [*asked, "--devices", "8", "--sizes", "width=384"])
    assert matrix.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 3
    assert all(" width=384 " in line for line in lines)
    assert all((" one " in line) != (" on 8 devices" in line) for line in lines)
    monkeypatch.setattr("sys.argv", [*asked, "--sizes", "depth=3"])
    assert matrix.main() == 2
    assert "has no size 'depth'" in capsys.readouterr().err
    for text in ("width", "width=", "=3", "width=0", "width=3,"):
        with pytest.raises(argparse.ArgumentTypeError, match="is no list of sizes; write width="):
            matrix.read_sizes(text)


def test_a_row_travels_as_text():
    for one in list_rows(1)[:20]:
        assert Row.load(one.dump()) == one


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["forward", "step"])
@pytest.mark.parametrize("model", cases.AS_NUMPY)
def test_both_sides_on_numpy_agree(model: str, kind: str):
    sides = sides_numpy.contest(tiny(model, "numpy", kind=kind))
    assert [*sides] == ["mithril", "by hand"]
    assert all(side.peak and side.peak() > 0 and side.first > 0 for side in sides.values())


@pytest.mark.slow
def test_what_is_measured_of_a_row():
    times = row.run(tiny("mlp", "numpy"), seconds=0)
    assert {name: len(samples) for name, samples in times.items()} == {
        "mithril": contest.FEWEST, "by hand": contest.FEWEST,
        "first call of mithril": 1, "first call of by hand": 1,
        "peak bytes of mithril": 1, "peak bytes of by hand": 1,
    }  # fmt: skip


def test_sides_whose_gradients_or_losses_differ_are_refused(monkeypatch: pytest.MonkeyPatch):
    one = tiny("mlp", "numpy")
    params = contest.Ours(one, sides_numpy.ml.NumpyBackend(), lambda _: None)
    loss, slopes = params.differentiate()
    name = next(iter(slopes))
    with pytest.raises(AssertionError, match=name):
        contest.compare_gradients((loss, slopes), (loss, {**slopes, name: slopes[name] + 0.1}))
    monkeypatch.setattr(sides_numpy.AdamW, "update", lambda self, gradients: None)
    monkeypatch.setattr(contest, "RATE", 0.1)  # as nothing else sees a step of the usual rate
    with pytest.raises(AssertionError, match="by hand"):
        sides_numpy.contest(one)


def test_gradients_that_jump_within_rounding_may_be_as_far_apart_as_those_by_hand():
    start = {"w": np.full(3, 0.5, np.float32)}

    def differentiate(params: contest.Arrays, jumps: bool) -> contest.Gradients:
        kinked = np.where(params["w"] > 0.5, 1.0, 0.0) if jumps else np.zeros(3)
        return 1.0, {"w": kinked}

    by_hand = partial(differentiate, jumps=True)
    contest.check_gradients((1.0, {"w": np.ones(3)}), by_hand, start)
    with pytest.raises(AssertionError, match=r"w: 15\.58"):
        contest.check_gradients((1.0, {"w": np.full(3, 9.0)}), by_hand, start)
    with pytest.raises(AssertionError, match="loss"):
        contest.check_gradients((2.0, {"w": np.ones(3)}), by_hand, start)
    with pytest.raises(AssertionError, match="w"):  # those that differ on steady data are refused
        contest.check_gradients(
            (1.0, {"w": np.ones(3)}), partial(differentiate, jumps=False), start
        )


# ------------------------------------------------------------------ what is said


def test_a_row_is_slow_when_median_and_interval_are_above_their_limits():
    one = Row("mlp", "numpy")
    slow = matrix.judge(one, TIMES)
    assert (slow.peer, slow.peak, slow.first, slow.is_met) == (
        "by hand", 0.99, (3.0, 2.0), False,
    )  # fmt: skip
    assert slow.time.median == pytest.approx(1.2)
    assert "NOT MET" in str(slow)
    wide = matrix.judge(one, {**TIMES, "mithril": [1.0] * 4 + [1.2] * 5})
    assert wide.is_met
    assert "NOT MET" not in str(wide)
    large = matrix.judge(one, {**TIMES, "mithril": [0.5] * 9, "peak bytes of mithril": [106.0]})
    assert not large.is_met
    untold = {name: x for name, x in TIMES.items() if not name.startswith("peak")}
    assert matrix.judge(one, {**untold, "mithril": [0.5] * 9}).is_met


def test_the_table_has_the_worst_first_and_its_code_says_whether_limits_are_met(
    capsys: pytest.CaptureFixture[str],
):
    one = Row("mlp", "numpy")
    fast, close, slower = (
        matrix.judge(one, {**TIMES, "mithril": [x] * 9}) for x in (0.8, 0.99, 1.0)
    )
    assert matrix.worst_first([fast, matrix.Failure(one, "no"), slower])[1:] == [slower, fast]
    assert matrix.report([fast], 3) == 0
    assert matrix.report([slower], 3) == 1  # the median
    assert matrix.report([close], 3) == 1  # whose interval does not reach the limit
    assert matrix.report([close, close, fast], 3) == 0
    assert matrix.report([fast, fast, matrix.Failure(one, "no")], 3) == 1
    assert matrix.report([], 3) == 1
    said = capsys.readouterr().out
    assert "matrix, seed 3, 3 rows" in said
    assert "median of numpy: 1.000 [1.000, 1.000] x, limit 0.95 x: NOT MET" in said
    assert "FAILED  numpy mlp one step: : no" in said


@pytest.mark.slow
def test_a_row_that_crashes_says_why():
    found = matrix.run_row(replace(tiny("mlp", "numpy"), sizes={"batch": 1}), 0.01)
    assert isinstance(found, matrix.Failure)
    assert found.reason == "KeyError: 'features' (exit code 1)"


def test_the_first_error_is_the_reason():
    said = (
        "[rank0]: Traceback (most recent call last):\n[rank0]:   File x\n[rank0]: StopIteration\n"
    )
    assert matrix.read_reason(f"{said}[rank1]: RuntimeError: reset\n", 1) == (
        "[rank0]: StopIteration (exit code 1)"
    )
    differ = "AssertionError:\nNot equal to tolerance\n\nloss\nMismatched elements: 1\n"
    assert matrix.read_reason(differ, 2).startswith("AssertionError: Not equal to tolerance loss")
    assert matrix.read_reason("killed\n", 9) == "killed (exit code 9)"
    assert matrix.read_reason("", 9) == "it said nothing (exit code 9)"


@pytest.mark.slow
def test_a_row_runs_in_a_process_of_its_own():
    found = matrix.run_row(tiny("mlp", "numpy", kind="forward"), 0.01)
    assert isinstance(found, matrix.Found), found
    assert found.peer == "by hand"


def test_spans_of_time_are_read():
    assert [matrix.read_seconds(x) for x in ("90s", "10min", "1.5 h")] == [90, 600, 5400]
    with pytest.raises(argparse.ArgumentTypeError, match="'10' is no span of time; write 90s"):
        matrix.read_seconds("10")


def test_a_budget_that_is_used_up_begins_no_row(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(matrix, "run_row", lambda row, seconds: matrix.Failure(row, "no"))
    rows = list_rows(1)[:3]
    assert len(matrix.measure_rows(rows, 60, 1)) == 3
    assert len(matrix.measure_rows(rows, 0, 1)) == 1
