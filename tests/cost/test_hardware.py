"""Every price asks the profile for the link that the data goes over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from mithril.cost import (
    SIMULATED,
    Hardware,
    Link,
    Target,
    collective_seconds,
    hardware_of,
    transfer_seconds,
)
from mithril.engine.numpy_engine import NumpyEngine
from mithril.engine.transport import Transport
from mithril.ir import Cause
from mithril.mesh import Axis, Mesh, Sharding
from mithril.plan import Pricing, Transfer
from mithril.types import DType, TensorType

MESH = Mesh(node=2, core=2)
FAST, SLOW, BETWEEN = Link(1e-7, 1e9), Link(1e-5, 1e8), Link(1e-3, 1e6)
NBYTES = 1 << 20


class Cluster(Hardware):
    """Devices of a node are near each other, others are far."""

    __slots__ = ()

    def link(self, mesh: Mesh, axes: Sequence[str] = ()) -> Link:
        if not axes:
            return BETWEEN
        return SLOW if "node" in axes else FAST


CLUSTER = Cluster("cluster", 0.0, 1.0, 1e9)


@pytest.mark.parametrize(
    ("axes", "link"), [(["core"], FAST), (["node"], SLOW), (["node", "core"], SLOW)]
)
def test_a_collective_costs_what_the_link_over_its_axes_costs(axes: list[str], link: Link) -> None:
    uniform = replace(SIMULATED, latency=link.latency, bandwidth=link.bandwidth)
    expected = collective_seconds("all_reduce", NBYTES, axes, MESH, uniform)
    assert collective_seconds("all_reduce", NBYTES, axes, MESH, CLUSTER) == expected


def test_what_all_devices_issue_for_a_few_goes_over_every_link() -> None:
    """A ring has an all_gather of all only, which the axis inside a node pays for, too."""
    ring = replace(CLUSTER, transport=Transport("ring", MESH.size))
    near, far = (
        collective_seconds("all_gather", NBYTES, [axis], MESH, ring) for axis in ("core", "node")
    )
    assert near == far > collective_seconds("all_gather", NBYTES, ["core"], MESH, CLUSTER)


def test_what_is_sent_between_stages_goes_over_no_axis() -> None:
    source, target = (Sharding(Mesh.of_axes([Axis("core", 1)], (i,)), ((),)) for i in (0, 2))
    sent = Transfer(TensorType((8,), DType.float32), source, target, Cause("x", "", "", ""))
    assert transfer_seconds(sent, CLUSTER) == BETWEEN.latency + 32 / BETWEEN.bandwidth


def test_a_platform_without_a_profile_is_planned_with_that_of_simulated_devices() -> None:
    assert hardware_of("simulated") is SIMULATED
    assert hardware_of("tpu") == replace(SIMULATED, unknown_platform="tpu")
    target = Target.of(NumpyEngine(MESH))
    assert target.hardware.pricing == Pricing("simulated")
    assert target.within(Mesh.of_axes([Axis("core", 2)], (2, 3))).hardware.name == "simulated"
