"""What JAX's engine says of how devices share the processor."""

from __future__ import annotations

import mithril as ml


def test_cpu_devices_share_the_threads_of_the_process():
    two = ml.JaxBackend(ml.Mesh(data=2)).engine.execution
    assert (two.devices_per_processor, two.largest_part, two.overlaps) == (2, 2.0, False)
    one = ml.JaxBackend().engine.execution
    assert (one.devices_per_processor, one.largest_part) == (1, 1.0)
