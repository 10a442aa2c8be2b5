"""Figures of devices that share a processor."""

from __future__ import annotations

from dataclasses import replace

from mithril.cost import SIMULATED, find_hardware
from mithril.engine.numpy_engine import NumpyEngine
from mithril.mesh import Mesh
from mithril.plan import Execution
from mithril.types import DType

WIDE = replace(SIMULATED, memory_bandwidth=1e10, kernel_seconds=1e-6, call_seconds=1e-4)


def test_devices_share_a_processor_evenly():
    half = WIDE.serving(2)
    assert half.rate(DType.float32) == 0.5e9
    assert (half.vector_rate, half.memory_bandwidth) == (0.5e9, 0.5e10)
    assert (half.kernel_seconds, half.call_seconds) == (2e-6, 1e-4)
    assert WIDE.serving(1) == WIDE


def test_what_was_measured_of_several_devices_counts():
    measured = replace(WIDE, name="two", vector_rate=0.9e9)
    both = replace(WIDE, shared=((2, measured),))
    assert both.serving(1).vector_rate == 1e9
    assert (both.serving(2).vector_rate, both.serving(2).name) == (0.9e9, "simulated")
    assert both.serving(3).vector_rate == 0.9e9 * 2 / 3


def test_an_engine_is_priced_with_the_part_that_a_device_has(monkeypatch):
    execution = Execution(devices_per_processor=4)
    monkeypatch.setattr(NumpyEngine, "execution", property(lambda self: execution))
    assert find_hardware(NumpyEngine(Mesh(data=4))).vector_rate == 0.25e9


def test_another_profile_has_a_processor_a_device():
    mine = replace(SIMULATED, execution=Execution(True, in_turn=True, devices_per_processor=4))
    assert WIDE.on(mine).execution == Execution(True)
