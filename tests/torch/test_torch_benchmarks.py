"""Both sides of the benchmarks on PyTorch, tiny, and what is measured of them."""

from __future__ import annotations

import mithril as ml
import pytest
import torch
from mithril.cli.gpt import Sizes

from benchmarks import (
    adamw,
    decoding,
    overheads,
    recompute_llama,
    torch_by_hand,
    torch_gpt,
    torch_mlp,
    torch_moe,
    torch_pipeline,
    torch_pool,
    torch_sides,
    training_torch,
)
from benchmarks.moe import MoeSizes
from benchmarks.training_cases import Case

SIZES = Sizes(layers=2, width=8, heads=2, hidden=12, context=4, batch=4)
VOCABULARY = 7


def test_both_sides_of_the_gpt_agree():
    assert [*torch_gpt.alone(SIZES, VOCABULARY)] == ["mithril", "eager"]


def test_both_sides_of_tiny_layers_agree_and_eager_functions_run():
    backend = ml.open_backend("torch")
    assert len(overheads.contestants(backend)) == 2 * len(overheads.DEPTHS)
    for function in overheads.eager(backend).values():
        function()


@pytest.mark.slow
def test_sides_of_the_gpt_agree_on_two_ranks():
    times = torch_sides.in_job("tests.torch.tiny_job", 2, [])
    assert times.keys() == {"mithril, data", "DDP", "mithril, tensor", "DTensor"}
    assert [len(samples) for samples in times.values()] == [2, 2, 2, 2]
    said = [limit.what for limit in torch_gpt.limits(times, "64")]
    assert said == ["mithril, data to DDP", "mithril, tensor to DTensor"]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # what inductor imports
@pytest.mark.slow
def test_sides_of_the_mlp_agree_compiled_too():
    times = {name: [1.0] for name in torch_mlp.contestants((6, 8, 4, 3), 8)}
    assert times.keys() == {"mithril", "mithril, jit", "eager"}


def test_all_sides_of_adamw_agree():
    sides = adamw.contestants("torch", adamw.gpt(1, 8, 7, 5))
    assert [*sides] == ["mithril", "fused", "foreach"]


def test_both_sides_of_decoding_agree():
    sides = decoding.contestants(ml.TorchBackend(), context=8)
    assert [*sides] == ["write", "where", "by hand"]


@pytest.mark.parametrize("factor", [0.75, None])
@pytest.mark.parametrize("top_k", [1, 2])
def test_both_sides_of_the_mixture_agree(factor: float | None, top_k: int):
    sides = torch_moe.contestants(MoeSizes(4, 6, 8, top_k, factor, batch=2, context=8))
    assert [*sides] == ["mithril", "eager"]


@pytest.mark.slow
def test_sides_of_stages_agree_on_four_ranks():
    times = torch_sides.in_job("tests.torch.tiny_stages", 4, [])
    assert times.keys() == {"mithril, 1f1b", "Schedule1F1B", "mithril, placed", "by hand"}
    assert [len(samples) for samples in times.values()] == [2, 2, 2, 2]
    said = [(limit.what, limit.limit) for limit in torch_pipeline.limits(times)]
    assert said == [
        ("mithril, 1f1b to Schedule1F1B", 1.0), ("mithril, placed to by hand", 1.1),
    ]  # fmt: skip


@pytest.mark.slow
def test_budgets_are_what_is_held_by_hand_on_eight_ranks():
    found = torch_sides.in_job("tests.torch.tiny_recompute", 8, [])
    hands = [f"by hand, gradients {way}" for way in ("whole", "scattered")]
    budgets = [f"budget, gradients {way}" for way in ("whole", "scattered")]
    assert {*hands, *budgets} < found.keys()
    assert found[f"peak bytes of {hands[1]}"] < found[f"peak bytes of {hands[0]}"]
    said = [limit.what for limit in recompute_llama.limits(found) if "time" in limit.what]
    assert said == [f"time of {b} to {h}" for b, h in zip(budgets, hands, strict=True)]


def test_sides_that_differ_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        torch_by_hand.functional, "cross_entropy", lambda logits, target: logits.mean()
    )
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        torch_gpt.alone(SIZES, VOCABULARY)


def test_gradients_that_lie_differently_are_refused(monkeypatch: pytest.MonkeyPatch):
    data = torch_gpt.data_of(SIZES, VOCABULARY)
    mithril = torch_gpt.mithril_side(SIZES, VOCABULARY, ml.Mesh(), data)
    module = torch_gpt.module_of(SIZES, VOCABULARY, mithril.params)
    eager = torch_sides.Eager(module, tuple(torch.tensor(x).long() for x in data.values()))
    found = eager.found()
    found[1]["norm.bias"] = found[1]["norm.bias"][:4]
    monkeypatch.setattr(torch_sides.Eager, "found", lambda self: found)
    with pytest.raises(AssertionError, match=r"norm.bias: .*\[8\].* here, not .*\[4\]"):
        torch_sides.check_sides(mithril, eager, "gpt.")


def test_the_pool_gets_a_program_that_does_nothing():
    torch_pool.contestant(2)


def test_limits_name_what_is_compared():
    times = {"mithril": [1.0], "eager": [2.0], "mithril, jit": [1.0]}
    small, jit = torch_gpt.limits(times, "64")
    assert (small.what, small.limit, small.estimate.median) == ("mithril to eager", 0.7, 0.5)
    assert (jit.what, jit.limit) == ("mithril, jit to mithril", 1.0)
    assert small.is_met
    assert torch_gpt.limits(times, "256")[0].limit == 1.0


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # what inductor imports
@pytest.mark.slow
@pytest.mark.parametrize("key_heads", [0, 2])
def test_sides_of_training_agree(key_heads: int):
    sizes = Sizes(layers=2, width=16, heads=4, hidden=12, context=4, batch=8)
    case = Case(sizes, 7, key_heads)
    assert "mithril" in next(iter(training_torch.alone(case)))
