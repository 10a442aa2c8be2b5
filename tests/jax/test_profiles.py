"""Profiles on JAX: what XLA fused is attributed by scopes, and its profiler is one in a process."""

from __future__ import annotations

from typing import Any

import jax
import mithril as ml
import numpy as np
import pytest
from mithril.engine import Recorder
from mithril.ir import Builder, Phase
from mithril.mesh import Mesh
from mithril.ops.collective import AllReduce
from mithril.plan import Program
from mithril.types import DType, TensorType
from mithril_jax.measured import Pending, _fill, read_shares

from tests.conformance.engines import opened
from tests.runtime.profiled import check_bytes, compiled_on

FUSED = """HloModule jit_mithril_0

%fused (a: f32[8]) -> f32[2] {
  %e = f32[6]{0} exponential(%a), metadata={op_name="jit(f)/forward/up/exp"}
  ROOT %n = f32[2]{0} negate(%e), metadata={op_name="jit(f)/backward/down/neg"}
}

ENTRY %main (a: f32[8]) -> f32[2] {
  %fusion.1 = f32[2]{0} fusion(%a), kind=kLoop, calls=%fused, metadata={op_name="jit(f)/backward/down/neg"}
  %dot.2 = f32[4]{0} dot(%a, %a), metadata={op_name="jit(f)/forward/outer/while/body/forward/inner.up/dot"}
  %copy.3 = f32[4]{0} copy(%a)
  %all-reduce = (f32[4]{0}, f32[12]{0}) all-reduce(%a, %b), replica_groups={{0,1}}, to_apply=%add, metadata={op_name="jit(f)/(forward/end/0/psum:backward/~all_reduce/1/psum)"}
}
"""


def program() -> Program:
    """Return a program with two all_reduces of 16 and 48 bytes."""
    builder = Builder()
    x, y = (builder.input(TensorType((n,), DType.float32), f"x{n}") for n in (4, 12))
    (a,) = builder.apply(AllReduce(("a",), "sum"), x)
    (b,) = builder.apply(AllReduce(("a",), "sum"), y)
    return Program(Mesh(a=2), builder.build({"a": a, "b": b}), (), ())


def shares() -> dict[str, list[Any]]:
    return {
        name: [(s.name, s.scope, s.phase, share) for s, share in found]
        for name, found in read_shares(FUSED, program()).items()
    }


def test_the_time_of_a_fusion_is_shared_by_the_elements_that_layers_make() -> None:
    assert shares()["fusion.1"] == [
        ("up", "up", Phase.forward, 0.75), ("down", "down", Phase.backward, 0.25),
    ]  # fmt: skip


def test_an_op_in_a_loop_belongs_to_the_layer_inside() -> None:
    assert shares()["dot.2"] == [("inner.up", "inner.up", Phase.forward, 1.0)]


def test_what_xla_adds_is_outside_layers() -> None:
    assert shares()["copy.3"] == [("copy", "", None, 1.0)]


def event(op: str, start: float, length: float, device: int = 0) -> dict[str, Any]:
    arguments = {"hlo_op": op, "hlo_module": "jit_mine", "device_ordinal": device}
    return {
        "ph": "X",
        "pid": 1,
        "tid": device,
        "ts": start,
        "dur": length,
        "device": device,
        "args": arguments,
    }


def test_events_are_told_to_the_run_they_lie_in_without_what_is_inside_them() -> None:
    backend = opened("jax", data=2)
    found = read_shares(FUSED, program())
    recorders = [Recorder(), Recorder()]
    for number, recorder in enumerate(recorders):
        recorder.start, recorder.end = 100.0 * number, 100.0 * number + 99
        recorder.deferred.append(Pending("mine", found, backend.engine.opened))
    numbers = [device.local_hardware_id or device.id for device in backend.engine.opened.flat]
    events = [
        event("copy.3", 1e6, 40e6, numbers[0]),
        event("fusion.1", 2e6, 10e6, numbers[0]),  # inside the one before
        event("dot.2", 150e6, 8e6, numbers[1]),
    ]
    _fill(recorders, events, lambda ts: ts * 1e-6)
    told = [[(s.segment.name, s.devices, s.seconds) for s in r.spans] for r in recorders]
    assert sorted(told[0]) == [("copy", (0,), 30.0), ("down", (0,), 2.5), ("up", (0,), 7.5)]
    assert told[1] == [("inner.up", (1,), 8.0)]


def test_one_profiler_in_a_process(tmp_path: Any) -> None:
    backend = opened("jax", data=2)
    x = backend.ones(4)
    jax.profiler.start_trace(str(tmp_path))
    try:
        with (
            pytest.raises(ml.BackendError, match="JAX's profiler is in use: "),
            ml.profile(backend),
        ):
            pass
    finally:
        jax.profiler.stop_trace()
    assert backend.family.open_profile is None
    with (
        ml.profile(backend) as prof,
        pytest.raises(ml.BackendError, match="end that profile first"),
    ):
        ml.profile(opened("jax", data=4)).__enter__()
    with ml.profile(backend) as prof:
        x + x
    assert len(prof._known[0].runs) == 1


def test_gspmd_tells_its_own_collectives() -> None:
    backend = ml.JaxBackend(ml.Mesh(data=2, tensor=2), pjit_lowering_strategy="gspmd")
    compiled, inputs = compiled_on(backend)
    with ml.profile(backend) as prof:
        compiled.evaluate(compiled.randomize_params(), inputs, {"loss": 1.0})
    assert prof.communication_stats()["total_bytes"] > 0
    assert {"up", "down"} <= set(prof.layers())


def test_donated_arrays_are_gone_as_without_a_profile() -> None:
    backend = opened("jax", data=2)
    double = ml.jit(lambda x: x * 2.0, backend=backend, donate=0)
    x = backend.ones(4, sharding=ml.P("data"))
    with ml.profile(backend):
        y = double(x)
    np.testing.assert_array_equal(y.numpy(), [2, 2, 2, 2])
    with pytest.raises(ml.BackendError, match="donated"):
        x.numpy()


def test_memory_is_what_xla_plans() -> None:
    backend = opened("jax", data=2)
    compiled, inputs = compiled_on(backend)
    with ml.profile(backend) as prof:
        compiled.evaluate(compiled.randomize_params(), inputs, {"loss": 1.0})
    uses = prof._known[0].memory
    assert [use.how for use in uses] == ["memory_analysis of XLA"] * 2
    assert len({use.peak for use in uses}) == 1
    check_bytes(prof, compiled.plan, 1)
