"""What PyTorch's engine says of how devices share the processor."""

from __future__ import annotations

import os

import mithril as ml


def test_processes_share_the_cores_of_the_machine(monkeypatch):
    backend = ml.TorchBackend(ml.Mesh(data=2), device="cpu")
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    one_core = backend.engine.execution
    assert (one_core.devices_per_processor, one_core.largest_part) == (2, 2.0)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert backend.engine.execution.largest_part == 1.0


def test_devices_in_lockstep_do_not_share_but_take_turns():
    backend = ml.TorchBackend(ml.Mesh(data=2), device="cpu", executor="lockstep")
    execution = backend.engine.execution
    assert (execution.devices_per_processor, execution.in_turn) == (1, True)
