"""Figures of devices that share a processor."""

from __future__ import annotations

from dataclasses import replace

import mithril as ml
import pytest
from mithril.cost import SIMULATED, find_hardware, predict_timeline
from mithril.cost.levels import Level, Link
from mithril.cost.simulate_plan import find_speeds
from mithril.engine.numpy_engine import NumpyEngine
from mithril.mesh import Mesh
from mithril.plan import Execution, Plan
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


def test_links_that_somebody_replaced_stay():
    """What was measured of several devices at work is how they compute."""
    (level,) = WIDE.levels
    measured = replace(WIDE, shared=((2, replace(WIDE, vector_rate=0.9e9)),))
    slow = replace(measured, levels=(replace(level, bandwidth=1e3),))
    assert slow.serving(2).levels == slow.levels
    assert slow.serving(2).vector_rate == 0.9e9


def test_an_engine_is_priced_with_the_part_that_a_device_has(monkeypatch):
    execution = Execution(devices_per_processor=4)
    monkeypatch.setattr(NumpyEngine, "execution", property(lambda self: execution))
    assert find_hardware(NumpyEngine(Mesh(data=4))).vector_rate == 0.25e9


def test_another_profile_has_a_processor_a_device():
    mine = replace(SIMULATED, execution=Execution(True, in_turn=True, devices_per_processor=4))
    assert WIDE.on(mine).execution == Execution(True)


def two_stages() -> Plan:
    """Return two stages of equal work, one after the other on two devices."""
    model = ml.Model()
    for number in range(2):
        model += ml.Linear(16, device_id=number, name=f"part{number}")
    backend = ml.NumpyBackend(Mesh(stage=2))
    return ml.compile(model, backend, shapes={"input": (4, 16)}, inference=True).plan


def test_a_device_uses_what_others_leave_of_the_processor():
    """Stages that never run at the same time each have all of it."""
    alone = replace(SIMULATED, execution=Execution())
    half = replace(SIMULATED.serving(2), execution=Execution(devices_per_processor=2))
    spare = Execution(devices_per_processor=2, largest_part=2.0)
    sent = predict_timeline(two_stages(), alone).communication["send"]
    whole, shared = (predict_timeline(two_stages(), h).seconds - sent for h in (alone, half))
    assert shared == pytest.approx(2 * whole)
    found = predict_timeline(two_stages(), replace(half, execution=spare))
    assert found.seconds - sent == pytest.approx(whole, rel=0.01)
    assert sum(found.layers.values()) == pytest.approx(whole, rel=0.01)
    assert sum(seconds for _, seconds in found.critical_path) == pytest.approx(found.seconds)
    last = max(event.end for row in found.rows for event in row.events)
    assert last == pytest.approx(found.seconds)
    # Two thirds of the processor rather than half of it.
    part = replace(spare, largest_part=4 / 3)
    found = predict_timeline(two_stages(), replace(half, execution=part))
    assert found.seconds - sent == pytest.approx(1.5 * whole, rel=0.01)


def test_alone_a_device_is_as_fast_as_was_measured_of_one():
    """Here two at once are as fast as one alone, which leaves the rest of the processor idle."""
    spare = Execution(devices_per_processor=2, largest_part=2.0)
    measured = replace(SIMULATED, execution=spare, shared=((1, SIMULATED), (2, SIMULATED)))
    shared = replace(measured.serving(2), shared=((2, SIMULATED),))
    alone = predict_timeline(two_stages(), replace(SIMULATED, execution=Execution()))
    sent = alone.communication["send"]
    whole = alone.seconds - sent
    found = predict_timeline(two_stages(), measured.serving(2))
    assert found.seconds - sent == pytest.approx(whole, rel=0.01)
    found = predict_timeline(two_stages(), shared)
    assert found.seconds - sent == pytest.approx(whole / 2, rel=0.01)


def test_what_runs_beside_something_shorter_has_the_rest_afterwards():
    """4 seconds of work beside 2: 2 seconds each at half of it, then 2 in one second."""
    assert find_speeds([(0.0, 2.0, 1), (0.0, 3.0, 1)], [2.0, 1.0]) == [1.0, pytest.approx(4 / 3)]


def test_messages_wait_for_turns_on_a_shared_core():
    """Four devices on two cores, and on four; a profile of as many devices knows it already."""
    level = Level("machine", None, 1e-4, 1e9, turn_seconds=1e-3)
    level = replace(level, collectives={"all_reduce": Link(2e-4, 1e9)})
    crowded = Execution(devices_per_processor=4, largest_part=2.0)
    apart = replace(crowded, largest_part=1.0)
    threads = replace(crowded, shares_threads=True)
    found = [
        replace(SIMULATED, levels=(level,), execution=how).serving(4).levels[0]
        for how in (crowded, apart, threads)
    ]
    assert [x.latency for x in found] == pytest.approx([1.1e-3, 1e-4, 1e-4])
    assert found[0].link_of("all_reduce").latency == pytest.approx(1.2e-3)
    again = replace(SIMULATED, levels=(found[0],), execution=crowded).serving(4).levels
    assert again == (found[0],)
