"""Predicted memory against what PyTorch's allocator counts."""

from __future__ import annotations

from typing import Any

import mithril as ml
import pytest
import torch
from mithril import ops
from mithril.ir import Op
from mithril.ops.attention import Attention, AttentionGradient
from mithril.types import DType, TensorType
from mithril_torch import engine as engines
from mithril_torch.kernels.callable import kernels_on
from mithril_torch.kernels.workspaces import ORDERED, WORKSPACES
from torch.profiler import ProfilerActivity, profile

from benchmarks.prediction_cases import make_case
from benchmarks.prediction_memory import measure_torch

FLOAT, INT = DType.float32, DType.int32
LOGITS, TARGETS = TensorType((2048, 5000), FLOAT), TensorType((2048,), INT)
ROWS = TensorType((2048,), FLOAT)
IMAGES, FILTERS = TensorType((16, 32, 48, 48), FLOAT), TensorType((32, 32, 3, 3), FLOAT)
CASES: dict[str, tuple[Any, list[TensorType]]] = {
    "convolution_input_gradient": (
        ops.ConvolutionInputGradient((1, 1), ((1, 1), (1, 1)), (1, 1), 1, (48, 48)),
        [IMAGES, FILTERS],
    ),
    "cross_entropy": (ops.CrossEntropy(), [LOGITS, TARGETS]),
    "cross_entropy_gradient": (ops.CrossEntropyGradient(), [LOGITS, TARGETS, ROWS, ROWS]),
    "where": (ops.Where(), [TensorType(LOGITS.shape, DType.bool_), LOGITS, TensorType((), FLOAT)]),
}


def make(type: TensorType) -> torch.Tensor:
    dtype = getattr(torch, type.dtype.value)
    return torch.rand(type.shape).to(dtype) if type.dtype.is_float else torch.zeros(
        type.shape, dtype=dtype
    )  # fmt: skip


def count_peak(run: Any) -> tuple[int, int]:
    """Return the most bytes that are allocated while a function runs, and those of its results."""
    run()
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        made = run()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    results = made if isinstance(made, tuple | list) else [made]
    return most, sum(x.untyped_storage().nbytes() for x in results)


@pytest.mark.parametrize("name", CASES)
def test_kernels_take_what_their_table_says(name: str) -> None:
    op, types = CASES[name]
    run, operands = kernels_on("cpu")[name](op, types), [make(type) for type in types]
    most, results = count_peak(lambda: run(*operands))
    largest = max(type.nbytes for type in types)
    assert (most - results) / largest == pytest.approx(dict(WORKSPACES).get(name, 0), abs=0.05)


@pytest.mark.parametrize("op", [Attention, AttentionGradient])
@pytest.mark.parametrize("turned", ["rows", "heads"])
def test_attention_copies_operands_that_do_not_lie_in_order(op: type[Op], turned: str) -> None:
    """Each by itself, as the table says: rows, or all, of it have to."""
    heads, lines = TensorType((8, 16, 4, 32), FLOAT), TensorType((8, 4, 16), FLOAT)
    types = [heads, heads, heads] + ([heads, lines, heads] if op is AttentionGradient else [])
    run = kernels_on("cpu")[op.name](op(causal=True, scale=1.0), types)  # type: ignore[call-arg]
    operands = [make(type) for type in types]
    in_order = count_peak(lambda: run(*operands))[0]
    for at, part in enumerate(dict(ORDERED)[op.name]):
        if part:
            last = (2, 3) if turned == "rows" else (1, 2)
            other = operands[at].transpose(*last).contiguous().transpose(*last)
            given = [*operands[:at], other, *operands[at + 1 :]]
            more = heads.nbytes if turned == "rows" or part == "all" else 0
            found = count_peak(lambda given=given: run(*given))[0] - in_order
            assert found == pytest.approx(more, abs=heads.nbytes / 100)


@pytest.mark.parametrize("model", ["MLP", "GPT", "MoE"])
@pytest.mark.slow
def test_predictions_are_what_is_allocated(model: str) -> None:
    predicted, measured = measure_torch(make_case(model, "one device", 4))
    assert predicted == pytest.approx(measured, rel=0.02)


def test_a_small_mlp_is_predicted_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "is_onednn_faster", lambda: False)  # which has scratch of its own
    case = make_case("MLP", "one device", 16)
    predicted, measured = measure_torch(case)
    assert predicted == measured


def test_copies_for_onednn_are_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of factors whose rows do not lie in order; its own scratch, 1 % of such a model, is not."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("PyTorch is built without oneDNN")
    found = []
    for is_faster in (False, True):
        monkeypatch.setattr(engines, "is_onednn_faster", lambda is_faster=is_faster: is_faster)
        found.append(measure_torch(make_case("MLP", "one device", 16)))
    (plain, _), (predicted, measured) = found
    assert plain < predicted
    assert predicted == pytest.approx(measured, rel=0.01)


def test_execution_says_how_programs_free_memory() -> None:
    eager = ml.TorchBackend(device="cpu").engine.execution
    assert (eager.adds_in_product, eager.reduces_in_place, eager.lays_out) == (True, True, False)
    compiled = ml.TorchBackend(device="cpu", jit=True).engine.execution
    assert (compiled.fuses, compiled.reduces_in_place) == (True, False)
