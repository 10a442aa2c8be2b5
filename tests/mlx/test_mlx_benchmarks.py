"""Both sides of the benchmarks on MLX, tiny, and what is measured of them."""

from __future__ import annotations

import ctypes.util
import shutil
import sys
from pathlib import Path

import mithril as ml
import mlx.core as mx
import pytest
from mithril.cli.gpt import Sizes

from benchmarks import adamw, mlx_by_hand, mlx_gpt, mlx_mlp, mlx_sides, overheads, training_mlx
from benchmarks.training_cases import Case

SIZES = Sizes(layers=2, width=8, heads=2, hidden=12, context=4, batch=4)
VOCABULARY = 7


def test_both_sides_of_the_gpt_agree() -> None:
    assert [*mlx_gpt.alone(SIZES, VOCABULARY)] == ["mithril", "by hand"]


def test_both_sides_of_tiny_layers_agree_and_eager_functions_run() -> None:
    backend = ml.open_backend("mlx")
    assert len(overheads.contestants(backend)) == 2 * len(overheads.DEPTHS)
    for function in overheads.eager(backend).values():
        function()


def test_both_sides_of_the_mlp_agree() -> None:
    assert [*mlx_mlp.contestants((6, 8, 4, 3), 8)] == ["mithril", "by hand"]


@pytest.mark.skipif(shutil.which("g++") is None, reason="MLX compiles with a C++ compiler")
def test_all_sides_of_adamw_agree() -> None:
    sides = adamw.contestants("mlx", adamw.gpt(1, 8, 7, 5))
    assert [*sides] == ["mithril", "mlx, compiled", "mlx"]


@pytest.mark.slow
def test_both_sides_of_the_gpt_agree_on_two_ranks() -> None:
    times = mlx_sides.in_job(Path(__file__).with_name("tiny_job.py"), 2, [])
    assert times.keys() == {"mithril, data", "average_gradients"}
    assert [len(samples) for samples in times.values()] == [2, 2]


def test_sides_that_differ_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = mlx_by_hand.nn.losses
    monkeypatch.setattr(losses, "cross_entropy", lambda logits, target, reduction: logits.mean())
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        mlx_gpt.alone(SIZES, VOCABULARY)


def test_all_that_a_side_returns_is_computed() -> None:
    """What is left to compute is a graph, which export_to_dot shows."""
    for step in mlx_mlp.contestants((6, 8, 3), 8).values():
        found = step()
        arrays = [x for part in found for x in _arrays(part)]
        assert len(arrays) == 1 + 4
        assert not any(_is_waiting(x) for x in arrays)
    assert _is_waiting(mx.zeros(3) + 1)


def _arrays(part: object) -> list[mx.array]:
    values = part.values() if isinstance(part, dict) or hasattr(part, "values") else [part]
    return [x if isinstance(x, mx.array) else x.mlx() for x in values]


def _is_waiting(x: mx.array) -> bool:
    lines: list[str] = []

    class File:
        write = staticmethod(lines.append)

    mx.export_to_dot(File(), x)
    return any("label" in line for line in lines)


def test_openblas_is_preloaded_where_it_is_and_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {}
    monkeypatch.setattr(mlx_sides, "settle", lambda module, further: found.update(further))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes.util, "find_library", {"openblas": "libopenblas.so.0"}.get)
    mlx_sides.settle_mlx("benchmarks.mlx_mlp")
    assert found.pop("LD_PRELOAD") == "libopenblas.so.0"
    monkeypatch.setattr(sys, "platform", "darwin")
    mlx_sides.settle_mlx("benchmarks.mlx_mlp")
    assert "LD_PRELOAD" not in found


@pytest.mark.slow
@pytest.mark.parametrize("key_heads", [0, 2])
def test_sides_of_training_agree(key_heads: int):
    sizes = Sizes(layers=2, width=16, heads=4, hidden=12, context=4, batch=8)
    assert "mithril" in training_mlx.contestants(Case(sizes, 7, key_heads))
