"""Marks of programs in lockstep: where segments begin, how long they took, what arrays take."""

from __future__ import annotations

import gc
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mithril import ops
from mithril.engine.lockstep import LockstepExecutable
from mithril.engine.marks import Marks
from mithril.engine.measured import MeasuredLockstep
from mithril.engine.numpy_engine import NUMPY_KERNELS
from mithril.engine.recording import ArrayTally, EngineProfiler, Recorder, Segment, Span
from mithril.ir import Tensor
from mithril.mesh import Mesh, Sharding
from mithril.ops.collective import AllReduce
from mithril.plan import Program

from tests.engine.programs import apply_op, everywhere, f32, graph_of, program_of


def reduced(x: Tensor, y: Tensor) -> Tensor:
    return apply_op(AllReduce(("a",), "sum"), ops.exp(x) * y)[0]


def measured(program: Program) -> MeasuredLockstep:
    lower = partial(LockstepExecutable, program, NUMPY_KERNELS, np)
    return MeasuredLockstep(lower, program.mesh.flat)


MESH = Mesh(a=2)
GIVEN = {"x": Sharding(MESH, ((), ("a",)))}


def test_the_source_has_marks_where_segments_begin() -> None:
    program = program_of(MESH, graph_of(reduced, x=f32(2, 2), y=f32(2, 2)), GIVEN)
    source = LockstepExecutable(program, NUMPY_KERNELS, np, Marks(counts_memory=True)).source
    lines = [line.strip() for line in source.splitlines()]
    assert [line for line in lines if line.startswith("observe.mark")] == [
        "observe.mark(run_s0)", "observe.mark(run_s1)", "observe.mark(None)",
    ]  # fmt: skip
    assert lines.index("observe.mark(run_s1)") == lines.index("if observe: observe(f2_issued)") - 1
    assert "observe.hold(run_on_a0, v0_0)" in lines
    assert "observe.hold(run_on_, v1)" in lines


def test_without_marks_nothing_is_written() -> None:
    program = program_of(MESH, graph_of(reduced, x=f32(2, 2), y=f32(2, 2)), GIVEN)
    source = LockstepExecutable(program, NUMPY_KERNELS, np).source
    assert "mark" not in source
    assert "hold" not in source


def test_a_namespace_that_computes_later_computes_before_each_mark() -> None:
    settled: list[int] = []
    xp = SimpleNamespace(**vars(np), settle=lambda values: settled.append(len(values)))
    program = program_of(MESH, graph_of(reduced, x=f32(2, 2), y=f32(2, 2)), GIVEN)
    execute = LockstepExecutable(program, NUMPY_KERNELS, xp, Marks(settles=True))
    parts = [np.ones((2, 2), np.float32)] * 2
    execute([parts, [np.ones((2, 2), np.float32)] * 2][:2], Recorder())
    assert settled == [2, 1], "two products, whose exponentials are gone, and their sum"


def test_a_device_works_in_its_share_of_the_kernels() -> None:
    """One that varies over two devices takes two kernels, one that does not takes one."""
    recorder = Recorder()
    given = {"x": Sharding(MESH, ((), ("a",)))}
    graph = graph_of(lambda x, y: (ops.exp(x), ops.exp(y)), x=f32(2, 2), y=f32(2, 2))
    execute = measured(program_of(MESH, graph, given))
    execute([[np.ones((2, 2), np.float32)] * 2, [np.ones((2, 2), np.float32)] * 2], recorder)
    recorder.finish()
    (span,) = recorder.spans
    assert span.devices == (0, 1)
    assert span.segment.share == pytest.approx(2 / 3)
    assert span.seconds == pytest.approx((span.end - span.start) * 2 / 3)


def test_a_loop_has_the_segments_of_its_body_in_every_round() -> None:
    import mithril as ml

    model = ml.Model()
    model |= ml.Repeat(ml.Linear(4, name="block"), 3, name="loop")(input="x", output="y")
    backend = ml.NumpyBackend()
    compiled = ml.compile(model, backend)
    with ml.profile(backend) as prof:
        compiled.evaluate(compiled.randomize_params(), {"x": np.ones((2, 4), np.float32)})
    (run,) = prof._known[0].runs
    inside = [span for span in run.spans if span.segment.scope.startswith("loop.")]
    assert len({id(span.segment) for span in inside}) * 3 == len(inside)


def test_an_exchange_is_exposed_while_its_device_waits() -> None:
    issued = SimpleNamespace(axes=("a",))
    span = Span(Segment("all_reduce", issued=issued), (0,), 1.0, 4.0, waited=0.5)  # type: ignore[arg-type]
    assert (span.seconds, span.exposed) == (3.0, 0.5)
    assert Span(Segment("up"), (0,), 1.0, 4.0).exposed == 3.0


# ------------------------------------------------------------------ memory


@pytest.mark.slow
def test_a_view_takes_no_memory_and_keeps_that_of_its_array() -> None:
    tally = ArrayTally()
    x = np.ones(100, np.float32)
    tally.hold([0], x)
    view = x[10:20].reshape(2, 5)
    tally.hold([0], view)
    assert tally.find_peaks() == {0: 400}
    del x
    y = np.ones(50, np.float32)
    tally.hold([0], y)
    assert tally.find_peaks() == {0: 600}, "the view still has all of the array"
    del view, y
    gc.collect()
    z = np.ones(25, np.float32)
    tally.hold([0], z)
    assert tally.find_peaks() == {0: 600}
    assert sum(size for _, size in tally.events) == 100


def test_what_devices_share_counts_on_each() -> None:
    tally = ArrayTally()
    x = np.ones(100, np.float32)
    tally.hold([0, 1], x)
    tally.hold([1, 2], x)
    tally.hold([0], np.float32(3))  # a scalar has no memory of its own to speak of
    assert {d: tally.find_peaks()[d] for d in (0, 1, 2)} == pytest.approx(
        {0: 400, 1: 400, 2: 400}, abs=4
    )


def test_a_mark_costs_less_than_microseconds() -> None:
    assert 0 < EngineProfiler().measure_mark() < 1e-4


def test_pauses_belong_to_no_run() -> None:
    recorder = Recorder()
    with recorder.pause():
        sum(range(1000))
    assert recorder.paused > 0


def test_peaks_of_a_program_are_those_of_its_arrays() -> None:
    def function(x: Tensor) -> Any:
        return ops.exp(ops.exp(ops.exp(x)))

    mesh = Mesh(a=2)
    program = program_of(mesh, graph_of(function, x=f32(1000)), {"x": everywhere(mesh, 1)})
    recorder = Recorder(counts_memory=True)
    parts = [np.ones(1000, np.float32) for _ in range(2)]
    measured(program)([parts], recorder)
    recorder.finish()
    assert [(use.devices, use.peak) for use in recorder.memory] == [((0,), 12000), ((1,), 12000)]
