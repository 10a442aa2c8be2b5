"""What a device holds while it runs is what plans with a budget predict: NumPy, and PyTorch.

On a mesh NumPy computes for all devices in one process, where parts of one array belong to several
of them; what they hold together is then compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mithril as ml
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mithril.compiler import PlanOptions, Target
from mithril.cost import predict_memory
from mithril.engine import Engine
from mithril.engine.numpy_engine import NumpyEngine
from mithril.engine.recording import ArrayTally, Recorder
from mithril.errors import PlanError
from mithril.mesh import Mesh
from mithril.ops.attention import Attention
from mithril.partition.recompute import Recompute
from mithril.plan import Plan

from tests.graphs import run, values_for
from tests.profiles import scaled
from tests.recompute.graphs import Case, cases
from tests.torch.test_memory import count_peak

ROWS = (32, 64)
"""Results are so large that numbers by themselves, which are counted less exactly, do not matter."""
BUDGETS = st.sampled_from([0.6, 0.75, 0.9, 0.97, "selective", "all"])


def plan_case(case: Case, engine: Engine, budget: float | str) -> tuple[Plan, list[Any]] | None:
    """Return the plan of a case within a budget, and its inputs; None if nothing keeps to it."""
    values = values_for(case.graph)
    wanted = tuple(v.name for v in case.graph.inputs if v.type.dtype.is_float)
    try:
        ran = run(
            case.graph, case.mesh, values, case.inputs, differentiated=wanted,
            options=PlanOptions(recompute=Recompute(budget)), opened=lambda mesh: engine,
            hardware=Target.of(engine).hardware,
        )  # fmt: skip
    except PlanError:
        return None
    (stage,) = ran.plan.stages
    handles = [
        engine.put(port.type, port.sharding, lambda box, name=port.name: values[name][box])
        for port in stage.program.inputs
    ]
    return ran.plan, handles


def compare_numpy(case: Case, budget: float | str) -> list[tuple[int, int]]:
    """Return for each device what it holds at most, and what is predicted."""
    engine = NumpyEngine(case.mesh)
    planned = plan_case(case, engine, budget)
    if planned is None:
        return []
    plan, handles = planned
    recorder = Recorder(counts_memory=True)
    engine.measuring().lower(plan.stages[0].program)(handles, recorder)
    recorder.finish()
    rows = predict_memory(plan, Target.of(engine).hardware).rows
    predicted = {device: row.peak for row in rows for device in row.devices}
    return [(use.peak, predicted[device]) for use in recorder.memory for device in use.devices]


@settings(max_examples=scaled(60), deadline=None)
@given(cases(ROWS), BUDGETS)
def test_numpy_holds_no_more_than_is_predicted(case: Case, budget: float | str) -> None:
    for peak, predicted in compare_numpy(Case(case.graph, Mesh(), {}), budget):
        assert peak <= 1.1 * predicted


class OneTally(ArrayTally):
    """Counts what all devices of a process hold together: what they share counts once."""

    def hold(self, devices: Sequence[int], *arrays: Any) -> None:
        super().hold((0,), *arrays)


@pytest.mark.slow
@settings(max_examples=scaled(60), deadline=None)
@given(cases(ROWS), BUDGETS)
def test_all_devices_hold_no_more_than_is_predicted(case: Case, budget: float | str) -> None:
    engine = NumpyEngine(case.mesh)
    planned = plan_case(case, engine, budget)
    if planned is None:
        return
    plan, handles = planned
    recorder = Recorder(counts_memory=True)
    recorder.tally = tally = OneTally()
    engine.measuring().lower(plan.stages[0].program)(handles, recorder)
    rows = predict_memory(plan, Target.of(engine).hardware).rows
    assert tally.find_peaks()[0] <= 1.1 * sum(row.peak * len(row.devices) for row in rows)


@pytest.mark.slow
@settings(max_examples=scaled(40), deadline=None)
@given(cases(ROWS), BUDGETS)
def test_pytorch_holds_no_more_than_is_predicted(case: Case, budget: float | str) -> None:
    # The scores that a thread works on, which are not counted, are more than heads of 2 numbers.
    attended = [n.inputs[0].type.shape[1] for n in case.graph.nodes if isinstance(n.op, Attention)]
    assume(max(attended, default=0) <= 8)
    engine = ml.TorchBackend(device="cpu").engine
    planned = plan_case(Case(case.graph, Mesh(), {}), engine, budget)
    if planned is None:
        return
    plan, handles = planned
    execute = engine.lower(plan.stages[0].program)
    most, _ = count_peak(lambda: list(execute(handles, None)))
    before = sum(port.type.nbytes for port in plan.stages[0].program.inputs)
    predicted = predict_memory(plan, Target.of(engine).hardware).peak
    assert before + most <= 1.1 * predicted
