"""What devices hold while they run is what plans with a budget predict: NumPy, and PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril.compiler import PlanOptions, Target
from mithril.cost import predict_memory
from mithril.engine import Engine
from mithril.engine.numpy_engine import NumpyEngine
from mithril.engine.recording import Recorder
from mithril.errors import PlanError
from mithril.mesh import Mesh
from mithril.partition.recompute import Recompute
from mithril.plan import Plan
from mithril_torch.engine import TorchEngine

from tests.graphs import run, values_for
from tests.profiles import scaled
from tests.recompute.graphs import Case, cases
from tests.torch.test_memory import count_peak

SCALARS = 256
"""Bytes of numbers by themselves, which are counted less exactly."""
budgets = st.sampled_from([0.6, 0.75, 0.9, 0.97, "selective", "all"])


def plan_case(case: Case, engine: Engine, budget: float | str) -> tuple[Plan, Any] | None:
    """Return the plan of a case within a budget, and its inputs; None if nothing keeps to it."""
    values = values_for(case.graph)
    wanted = tuple(v.name for v in case.graph.inputs if v.type.dtype.is_float)
    options = PlanOptions(recompute=Recompute(budget))
    try:
        ran = run(
            case.graph, case.mesh, values, case.inputs, differentiated=wanted, options=options,
            opened=lambda mesh: engine, hardware=Target.of(engine).hardware,
        )  # fmt: skip
    except PlanError:
        return None
    (stage,) = ran.plan.stages
    handles = [
        engine.put(port.type, port.sharding, lambda box, name=port.name: values[name][box])
        for port in stage.program.inputs
    ]
    return ran.plan, handles


@settings(max_examples=scaled(100), deadline=None)
@given(cases(), budgets)
def test_numpy_holds_no_more_than_is_predicted(case: Case, budget: float | str) -> None:
    engine = NumpyEngine(case.mesh)
    planned = plan_case(case, engine, budget)
    if planned is None:
        return
    plan, handles = planned
    predicted = predict_memory(plan, Target.of(engine).hardware)
    recorder = Recorder(counts_memory=True)
    engine.measuring().lower(plan.stages[0].program)(handles, recorder)
    recorder.finish()
    peaks = {device: row.peak for row in predicted.rows for device in row.devices}
    assert recorder.memory
    for use in recorder.memory:
        (device,) = use.devices
        assert use.peak <= 1.1 * peaks[device] + SCALARS


@pytest.mark.slow
@settings(max_examples=scaled(40), deadline=None)
@given(cases(), budgets)
def test_pytorch_holds_no_more_than_is_predicted(case: Case, budget: float | str) -> None:
    alone = Case(case.graph, Mesh(), {})
    engine = TorchEngine(alone.mesh)
    planned = plan_case(alone, engine, budget)
    if planned is None:
        return
    plan, handles = planned
    execute = engine.lower(plan.stages[0].program)
    most, _ = count_peak(lambda: [x for made in execute(handles, None) for x in made])
    before = sum(port.type.nbytes for port in plan.stages[0].program.inputs)
    predicted = predict_memory(plan, Target.of(engine).hardware).peak
    assert before + most <= 1.1 * predicted + 64 * SCALARS
