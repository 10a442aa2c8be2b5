"""Devices that are only planned for: models compile to plans there, and nothing runs."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril.runtime.planned import plan_backend


def test_nothing_runs_on_devices_that_are_planned_for() -> None:
    backend = plan_backend(ml.Mesh(data=2, tensor=2), "h100-sxm")
    compiled = ml.compile(ml.Linear(4), backend, shapes={"input": (8, 6)})
    assert compiled.plan.memory().capacity == ml.Hardware.load("h100-sxm").memory_bytes
    params = compiled.randomize_params()
    with pytest.raises(
        ml.BackendError,
        match=r"devices of Mesh\(data=2, tensor=2\) are planned for and not opened; nothing runs",
    ):
        compiled.evaluate(params, {"input": np.ones((8, 6), np.float32)})
