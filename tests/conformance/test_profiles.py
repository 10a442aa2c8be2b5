"""Profiles on every backend: the figures are the plan's, and times and memory are measured."""

from __future__ import annotations

import mithril as ml
import pytest

from tests.conformance.engines import BACKENDS, LOCKSTEP, opened
from tests.profiles import quick
from tests.runtime.profiled import check_bytes, check_figures

MESHES = {
    "one device": {}, "data": {"data": 2}, "both": {"data": 2, "tensor": 2}, "stages": {"pipeline": 2},
}  # fmt: skip


@quick(lambda backend, case: case in ("one device", "data") or backend in ("jax", LOCKSTEP))
@pytest.mark.parametrize("case", MESHES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_figures_are_those_of_the_plan(backend: str, case: str) -> None:
    prof = check_figures(opened(backend, **MESHES[case]))
    figures = prof._known[0]
    first, second = figures.runs
    size = figures.mesh.size
    assert {device for use in first.memory for device in use.devices} == set(range(size))
    assert not second.memory, "the same plan takes the same"
    parameters = 4 * (16 * 32 + 32 + 32 * 16 + 16)
    assert sum(use.peak for use in first.memory) > parameters
    for run in figures.runs:
        for span in run.spans:
            assert run.start <= span.start <= span.end <= run.end + 1e-3
        if case == "data":
            moved = [span for span in run.spans if span.segment.stream == "communication"]
            assert {device for span in moved for device in span.devices} == {0, 1}
            assert all(issued.seconds > 0 for issued in run.issued)
            assert all(issued.cause and issued.phase for issued in run.issued)


@pytest.mark.parametrize("backend", BACKENDS)
def test_functions_and_eager_ops_are_runs(backend: str) -> None:
    there = opened(backend, data=2)
    x = there.ones(8, 4, sharding=ml.P("data"))
    total = ml.jit(lambda a: (a * 2.0).sum(), backend=there)
    with ml.profile(there) as prof:
        result = total(x)
        y = x + x
    assert (result.item(), y.numpy()[0, 0]) == (64.0, 2.0)
    callers = [run.caller for run in prof._known[0].runs]
    assert callers == ["function 'lambda'", "op 'add'"]
    assert prof.communication_stats()["by_kind"] == {"all_reduce": 4}
    assert prof.layers()["lambda"]["forward"] > 0


def test_check_bytes_can_fail() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    compiled = ml.compile(
        ml.Linear(4), backend, shapes={"input": ml.TensorSpec((2, 2), sharding=ml.P("data"))}
    )
    with ml.profile(backend) as prof:
        backend.reshard(backend.ones(2, 2, sharding=ml.P("data")), ml.P())
    with pytest.raises(AssertionError):
        check_bytes(prof, compiled.plan, 1)
