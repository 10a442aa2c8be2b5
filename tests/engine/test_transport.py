"""What is issued instead of a collective that a transport lacks, and how it is priced and told."""

from __future__ import annotations

from dataclasses import replace

import mithril as ml
import numpy as np
import pytest
from mithril.cost import (
    SIMULATED,
    collective_seconds,
    describe_emulation,
    describe_relay,
    transfer_seconds,
)
from mithril.cost.calibrate.links import list_kinds
from mithril.engine.numpy_engine import NumpyEngine
from mithril.engine.transport import Call, Transport
from mithril.ir import Cause
from mithril.mesh import Axis, Mesh, Sharding
from mithril.ops.collective import collectives
from mithril.plan.timetable import Transfer
from mithril.types import DType, TensorType

KINDS = sorted(collectives())
RING, MPI = Transport("ring", 8), Transport("mpi", 8, groups=True)
GLOO = Transport("gloo", 8, groups=True, more=frozenset({"all_to_all", "permute"}))
JACCL = Transport("jaccl", 8, more=frozenset({"reduce_scatter"}))
PART = RING.within((0, 2, 4, 6))


@pytest.mark.parametrize(
    ("transport", "kind", "group", "expected"),
    [
        (RING, "all_reduce", 8, Call("all_reduce", 64, 8)),
        (RING, "all_reduce", 2, Call("all_gather", 512, 8)),
        (RING, "all_reduce", 4, Call("all_reduce", 128, 8)),
        (RING, "all_gather", 8, Call("all_gather", 64, 8)),
        (RING, "all_gather", 4, Call("all_gather", 128, 8)),
        (RING, "reduce_scatter", 8, Call("all_reduce", 64, 8)),
        (RING, "reduce_scatter", 2, Call("all_gather", 512, 8)),
        (RING, "all_to_all", 2, Call("all_gather", 512, 8)),
        (RING, "permute", 4, Call("all_gather", 512, 8)),
        (MPI, "all_reduce", 2, Call("all_reduce", 64, 2)),
        (MPI, "all_gather", 4, Call("all_gather", 64, 4)),
        (MPI, "reduce_scatter", 4, Call("all_reduce", 64, 4)),
        (MPI, "all_to_all", 4, Call("all_gather", 256, 4)),
        (JACCL, "reduce_scatter", 8, Call("reduce_scatter", 64, 8)),
        (JACCL, "reduce_scatter", 4, Call("all_reduce", 128, 8)),
        (GLOO, "reduce_scatter", 4, Call("all_to_all", 64, 4)),
        (GLOO, "all_to_all", 4, Call("all_to_all", 64, 4)),
        (GLOO, "permute", 4, Call("permute", 64, 4)),
        (RING.within(tuple(range(8))), "all_reduce", 8, Call("all_reduce", 64, 8)),
        (MPI.within((0, 2, 4, 6)), "all_reduce", 4, Call("all_reduce", 64, 4)),
    ],
)
def test_what_is_issued(transport: Transport, kind: str, group: int, expected: Call) -> None:
    assert transport.calls(kind, 64, group) == (expected,)
    itself = expected == Call(kind, 64, group)
    assert transport.describe_emulation(kind, 64, group) == ("" if itself else str(expected))


@pytest.mark.parametrize(("kind", "nbytes"), [("all_reduce", 64), ("all_gather", 16)])
def test_a_part_of_a_ring_sends_messages(kind: str, nbytes: int) -> None:
    """To all others of the group, over the devices in between: four on the longest way."""
    assert PART.calls(kind, 64, 4) == (Call("send", nbytes, 2),) * (3 * 4)
    assert PART.describe_emulation(kind, 64, 4) == f"12 times send among 2 devices, {nbytes} bytes"


@pytest.mark.parametrize(
    ("transport", "sender", "receiver", "expected"),
    [
        (RING, 3, 4, ((3, 4),)),
        (RING, 0, 7, ((0, 7),)),
        (RING, 1, 6, ((1, 0), (0, 7), (7, 6))),
        (RING, 6, 0, ((6, 7), (7, 0))),
        (RING, 0, 4, ((0, 1), (1, 2), (2, 3), (3, 4))),
        (Transport("mpi", 8, groups=True, reaches_all=True), 0, 4, ((0, 4),)),
    ],
)
def test_the_way_of_a_message(
    transport: Transport, sender: int, receiver: int, expected: tuple
) -> None:
    """A ring passes it on, the shorter way round."""
    assert transport.route(sender, receiver) == expected


def test_what_is_sent_is_priced_by_its_ways() -> None:
    """Device 0 gets two pieces, one of them over two devices in between."""
    source = Sharding(Mesh.of_axes([Axis("data", 2)], (1, 3)), (("data",),))
    target = Sharding.replicated(Mesh.of_axes([Axis("data", 1)], (0,)), 1)
    cause = Cause("x", "", "", "")
    sent = Transfer(TensorType((8,), DType.float32), source, target, cause)
    once = SIMULATED.levels[0].latency + 16 / SIMULATED.levels[0].bandwidth
    assert transfer_seconds(sent, SIMULATED) == pytest.approx(2 * once)
    assert describe_relay(sent, SIMULATED) == ""
    ring = replace(SIMULATED, transport=RING)
    assert transfer_seconds(sent, ring) == pytest.approx(4 * once)
    assert describe_relay(sent, ring) == "3 sends one after another, 16 bytes each"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [2, 4, 8])
def test_the_price_is_that_of_what_is_issued(kind: str, group: int) -> None:
    ring, mesh = replace(SIMULATED, transport=RING), Mesh({f"a{n}": n for n in (2, 4, 8)})
    nbytes, axes = 1 << 20, [f"a{group}"]
    (call,) = RING.calls(kind, nbytes, group)
    issued = collective_seconds(call.kind, call.bytes, [f"a{call.group}"], mesh, SIMULATED)
    assert collective_seconds(kind, nbytes, axes, mesh, ring) == issued
    assert issued >= collective_seconds(kind, nbytes, axes, mesh, SIMULATED)
    assert describe_emulation(kind, nbytes, axes, mesh, SIMULATED) == ""


class OnRing(NumpyEngine):
    """Simulated devices that claim to be processes of a ring."""

    __slots__ = ()

    @property
    def transport(self) -> Transport:
        return Transport("ring", self.mesh.size)


def test_a_plan_says_what_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    def explained(backend: ml.Backend) -> str:
        model = ml.Linear(4, bias=False, sharding={"weight": ml.P(None, "tensor")})
        compiled = ml.compile(model, backend, shapes={"input": (4, 8)})
        x = np.ones((4, 8), np.float32)
        compiled.evaluate(compiled.randomize_params(), {"input": x})
        return compiled.explain()

    mesh = ml.Mesh(data=2, tensor=2)
    assert "emulated" not in explained(ml.NumpyBackend(mesh))
    monkeypatch.setattr("mithril.engine.numpy_engine.NumpyEngine", OnRing)
    assert "emulated: all_gather among 4 devices, " in explained(ml.NumpyBackend(mesh))


def test_what_is_made_of_others_is_not_measured() -> None:
    """Its price is that of what is issued."""
    assert list_kinds(OnRing(ml.Mesh(data=2))) == ("all_reduce", "all_gather")
    assert "reduce_scatter" in list_kinds(NumpyEngine(ml.Mesh(data=2)))
