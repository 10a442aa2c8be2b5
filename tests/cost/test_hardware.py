"""Every price asks the profile for the link that the data goes over, and for the rate of the op."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from mithril.cost import (
    SIMULATED,
    Hardware,
    Level,
    Target,
    collective_seconds,
    find_hardware,
    op_seconds,
    transfer_seconds,
)
from mithril.engine.numpy_engine import NumpyEngine
from mithril.engine.transport import Transport
from mithril.errors import OptionError
from mithril.ir import Cause
from mithril.mesh import Axis, Mesh, Sharding
from mithril.ops.arithmetic import Add
from mithril.ops.linalg import Einsum
from mithril.ops.shape import Reshape
from mithril.plan import Execution, Pricing, Transfer
from mithril.types import DType, TensorType

MESH = Mesh(node=2, core=2)
CORES, NODES = Level("node", 2, 1e-7, 1e9), Level("pod", None, 1e-5, 1e8)
CLUSTER = replace(SIMULATED, name="cluster", levels=(CORES, NODES))
NBYTES = 1 << 20


def only(level: Level) -> Hardware:
    return replace(SIMULATED, levels=(level,))


SHARED = replace(NODES, bandwidth=2 * NODES.bandwidth)
"""What leaves a node of two devices goes over the links of both."""


@pytest.mark.parametrize(
    ("axes", "level"), [(["core"], CORES), (["node"], NODES), (["node", "core"], SHARED)]
)
def test_a_collective_costs_what_the_level_costs_that_its_axes_cross(
    axes: list[str], level: Level
) -> None:
    expected = collective_seconds("all_reduce", NBYTES, axes, MESH, only(level))
    assert collective_seconds("all_reduce", NBYTES, axes, MESH, CLUSTER) == expected


@pytest.mark.parametrize(
    ("kind", "shared"),
    [("all_reduce", 4), ("all_gather", 4), ("reduce_scatter", 4), ("all_to_all", 1), ("permute", 1)],
)  # fmt: skip
def test_devices_of_a_node_share_its_links_where_data_is_passed_on(kind: str, shared: int) -> None:
    """Rings cross the border of a node once each, over the links of another device."""
    levels = Level("node", 8, 1e-6, 1e9), Level("network", None, 1e-6, 1e8)
    mine = replace(SIMULATED, levels=levels)
    mesh = Mesh(data=4, half=2, quarter=4)
    whole, part, far = (
        mine.link(mesh, axes, kind).bandwidth
        for axes in (["data", "half", "quarter"], ["data", "quarter"], ["data"])
    )
    assert (part, far) == (shared * 1e8, 1e8)
    assert whole == (8e8 if shared > 1 else 1e8)
    fast = replace(mine, levels=(levels[0], replace(levels[1], bandwidth=9e8)))
    assert fast.link(mesh, ["data", "half", "quarter"], "all_reduce").bandwidth == 1e9
    assert mine.link(mesh).bandwidth == 1e8  # what may go anywhere
    torus = replace(levels[1], topology="torus", devices=32)
    neighbours = replace(mine, levels=(levels[0], torus))
    assert neighbours.link(mesh, ["data", "half", "quarter"], kind).bandwidth == 1e8


def test_a_node_counts_as_many_links_as_it_has_members_at_least() -> None:
    """One group has two devices in a node and one in the next: the border there has one link."""
    levels = Level("node", 2, 1e-6, 1e9), Level("network", None, 1e-6, 1e8)
    mine = replace(SIMULATED, levels=levels)
    part = Mesh.of_axes([Axis("a", 3)], (0, 1, 2))
    assert mine.link(part, ["a"], "all_reduce").bandwidth == 1e8


def test_what_all_devices_issue_for_a_few_goes_over_every_link() -> None:
    """A ring has an all_gather of all only, which the axis inside a node pays for, too."""
    ring = replace(CLUSTER, transport=Transport("ring", MESH.size))
    near, far = (
        collective_seconds("all_gather", NBYTES, [axis], MESH, ring) for axis in ("core", "node")
    )
    assert near == far > collective_seconds("all_gather", NBYTES, ["core"], MESH, CLUSTER)


@pytest.mark.parametrize(("receiver", "level"), [(1, CORES), (2, NODES)])
def test_what_is_sent_between_stages_goes_from_device_to_device(
    receiver: int, level: Level
) -> None:
    source, target = (Sharding(Mesh.of_axes([Axis("core", 1)], (i,)), ((),)) for i in (0, receiver))
    sent = Transfer(TensorType((8,), DType.float32), source, target, Cause("x", "", "", ""))
    assert transfer_seconds(sent, CLUSTER) == level.latency + 32 / level.bandwidth


def test_groups_that_straddle_nodes_cross_them() -> None:
    three = replace(CLUSTER, levels=(replace(CORES, devices=4), NODES))
    assert three.link(Mesh(a=4, b=3), ["b"]) == NODES.link  # devices 3, 4, 5 are of two nodes
    assert three.link(Mesh(a=4, b=4), ["b"]) == CORES.link
    part = Mesh.of_axes([Axis("b", 2)], (3, 4))
    assert three.link(part, ["b"]) == NODES.link


def test_half_duplex_takes_twice_as_long() -> None:
    half = only(replace(NODES, latency=0.0, full_duplex=False))
    whole = only(replace(NODES, latency=0.0))
    slow, fast = (collective_seconds("all_gather", 64, ["core"], MESH, h) for h in (half, whole))
    assert slow == 2 * fast


@pytest.mark.parametrize(
    ("kind", "messages", "bytes"),
    [
        ("all_reduce", 14, 2 * 7 / 8), ("all_gather", 7, 7 / 8), ("reduce_scatter", 7, 7 / 8),
        ("all_to_all", 7, 7 / 8 * 2), ("permute", 1, 1),
    ],
)  # fmt: skip
def test_a_torus_passes_data_from_neighbour_to_neighbour(
    kind: str, messages: int, bytes: float
) -> None:
    torus = only(Level("torus", 8, 1e-6, 1e9, topology="torus"))
    found = collective_seconds(kind, 8000, ["a"], Mesh(a=8), torus)
    assert found == pytest.approx(messages * 1e-6 + bytes * 8000 / 1e9)


def test_the_rate_of_a_product_grows_with_its_size() -> None:
    mine = replace(SIMULATED, rates={DType.float32: ((1e3, 1e9), (1e5, 3e9))})
    assert [mine.rate(DType.float32, n) for n in (1, 1e3, 1e4, 1e5, 1e9)] == [
        1e9, 1e9, 2e9, 3e9, 3e9,
    ]  # fmt: skip
    assert mine.rate(DType.bfloat16) == 3e9  # no figure: as float32


def test_the_peak_is_what_the_device_is_made_for() -> None:
    rates = {DType.float32: ((1e3, 1e9), (1e5, 3e9)), DType.bfloat16: ((1.0, 5e9),)}
    mine = replace(SIMULATED, rates=rates)
    assert (mine.peak(DType.float32), mine.peak(DType.bfloat16)) == (3e9, 5e9)
    told = replace(mine, peaks={DType.bfloat16: 8e9})
    assert (told.peak(DType.bfloat16), told.rate(DType.bfloat16)) == (8e9, 5e9)
    assert told.peak(DType.float16) == 3e9  # no figure: as float32
    assert told.serving(2).peak(DType.bfloat16) == 4e9
    with pytest.raises(OptionError, match=r"^peak of bfloat16 has operations a second 0"):
        replace(mine, peaks={DType.bfloat16: 0.0})
    with pytest.raises(
        OptionError, match=r"^peak of bfloat16 is 4e\+09 .*, and rates reach 5e\+09;"
    ):
        replace(mine, peaks={DType.bfloat16: 4e9})
    with pytest.raises(OptionError, match=r"^peak of float16 is given without a rate of float16;"):
        replace(mine, peaks={DType.float16: 8e9})


def test_an_op_is_bound_by_arithmetic_or_by_memory() -> None:
    x, y = TensorType((100, 100), DType.float32), TensorType((100, 100), DType.float32)
    product = Einsum("ij,jk->ik")
    fast = replace(SIMULATED, memory_bandwidth=1e15, kernel_seconds=1.0)
    slow = replace(SIMULATED, memory_bandwidth=1e6, vector_rate=1e12)
    assert op_seconds(product, [x, y], [x], fast) == pytest.approx(1 + 2e6 / 1e9)
    assert op_seconds(product, [x, y], [x], slow) == pytest.approx(3 * 40_000 / 1e6)
    assert op_seconds(Add(), [x, y], [x], slow) == pytest.approx(3 * 40_000 / 1e6)


def test_what_is_fused_or_a_view_moves_no_bytes() -> None:
    x = TensorType((100,), DType.float32)
    fused = replace(SIMULATED, memory_bandwidth=1e6, execution=Execution(fuses=True))
    assert op_seconds(Add(), [x, x], [x], fused) == 100 / 1e9
    view = Reshape((10, 10))
    assert op_seconds(view, [x], [x.with_shape((10, 10))], fused) == 0.0
    copies = replace(fused, execution=Execution(has_views=False))
    assert op_seconds(view, [x], [x.with_shape((10, 10))], copies) > 0.0


class Unknown(NumpyEngine):
    """An engine of devices that no profile describes."""

    __slots__ = ()

    @property
    def platform(self) -> str:
        return "npu"


def test_a_platform_without_a_profile_is_planned_with_that_of_simulated_devices() -> None:
    engine = NumpyEngine(MESH)
    simulated = replace(SIMULATED, execution=engine.execution)
    assert find_hardware(engine) == simulated
    assert find_hardware(Unknown(MESH)) == replace(simulated, unknown_platform="npu")
    target = Target.of(engine)
    assert target.hardware.pricing == Pricing("simulated", "", Execution(in_turn=True))
    assert target.within(Mesh.of_axes([Axis("core", 2)], (2, 3))).hardware.name == "simulated"
    assert target.hardware.memory_bandwidth == math.inf
