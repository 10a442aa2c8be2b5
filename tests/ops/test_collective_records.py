"""What a class of collectives says of itself is all that plans, prices and transports know of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from mithril.cost import SIMULATED, collective_seconds, describe_emulation
from mithril.engine.transport import Call, Transport
from mithril.errors import PlanError
from mithril.ir import Builder, Cause, op
from mithril.mesh import Mesh
from mithril.ops.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    Permute,
    ReduceScatter,
    Traffic,
    class_of,
    collectives,
)
from mithril.partition.limits import HIDDEN
from mithril.plan import Plan
from mithril.plan.proof import prove_order
from mithril.types import TensorType

from tests.engine.programs import f32, program_of

BYTES = {
    AllReduce(("a",), "sum"): 96,
    AllGather(("a",), 0, 2): 192,
    ReduceScatter(("a",), "sum", 0, 2): 96,
    AllToAll(("a",), 0, 1, 2): 96,
    Permute(("a",), ((0, 1),)): 96,
}


@pytest.mark.parametrize(("collective", "expected"), BYTES.items(), ids=str)
def test_bytes_are_counted_by_the_operand_or_the_result(
    collective: Collective, expected: int
) -> None:
    assert collective.count_bytes([f32(4, 6)]) == expected
    held = collective.to_held_bytes(expected, 2)
    assert held == 96
    assert collective.to_counted_bytes(held, 2) == expected


(LINK,) = (level.link for level in SIMULATED.levels)


def test_a_bucket_counts_all_of_its_operands() -> None:
    assert AllReduce(("a",), "sum").count_bytes([f32(4), f32(2, 3)]) == 40


@pytest.mark.parametrize("group", [2, 3, 8])
def test_traffic_is_that_of_the_formulas(group: int) -> None:
    """Thakur, Rabenseifner and Gropp: messages, and bytes that each device sends."""
    rounds, share = math.ceil(math.log2(group)), (group - 1) / group * 1024
    assert AllReduce.traffic(1024, group) == Traffic(2 * rounds, 2 * share)
    assert AllGather.traffic(1024, group) == Traffic(rounds, share)
    assert ReduceScatter.traffic(1024, group) == Traffic(rounds, share)
    assert AllToAll.traffic(1024, group) == Traffic(group - 1, share)
    assert Permute.traffic(1024, group) == Traffic(1, 1024)


def test_prices_are_those_of_the_axes() -> None:
    mesh = Mesh(a=2, b=3)
    for axes in (["a"], ["b"], ["b", "a"]):
        traffic = AllToAll.traffic(1024, mesh.product(axes))
        expected = traffic.messages * LINK.latency + traffic.bytes / LINK.bandwidth
        assert collective_seconds("all_to_all", 1024, axes, mesh, SIMULATED) == expected


def test_what_reduces_is_no_hidden_move() -> None:
    assert {"all_gather", "all_to_all", "permute"} == HIDDEN


@dataclass(frozen=True)
class Broadcast(Collective):
    """Every device gets the value of one: a collective of which nothing else in Mithril knows."""

    name: ClassVar[str] = "broadcast_from"
    fallbacks: ClassVar[tuple[type[Collective], ...]] = (AllGather,)
    root: int

    def infer(self, inputs: Sequence[TensorType]) -> list[TensorType]:
        return list(inputs)

    @classmethod
    def traffic(cls, nbytes: float, group: int) -> Traffic:
        return Traffic(group, nbytes)

    def check(self, group: int) -> str:
        return "" if self.root < group else f"has root {self.root} in a group of {group}"


def plan_of(collective: Collective) -> Plan:
    builder = Builder()
    x = builder.input(f32(4), "x")
    with builder.at(cause=Cause("x", "P()", "P()", "y")):
        (y,) = builder.apply(collective, x)
    program = program_of(Mesh(a=4), builder.build({"y": y}))
    return Plan.of_program(program.mesh, program)


def test_a_new_collective_is_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans list it, the proof checks it, it is priced, and made of others where it is missing."""
    monkeypatch.setitem(op._REGISTRY, Broadcast.name, Broadcast)
    assert collectives()[Broadcast.name] is class_of(Broadcast.name) is Broadcast
    plan = plan_of(Broadcast(("a",), 3))
    prove_order(plan)
    (row,) = plan.collectives()
    assert (row.kind, row.bytes) == ("broadcast_from", 16)
    with pytest.raises(PlanError, match=r"broadcast_from .* has root 4 in a group of 4; this is"):
        prove_order(plan_of(Broadcast(("a",), 4)))
    priced = Broadcast.name, 16, ("a",), plan.mesh
    expected = 4 * LINK.latency + 16 / LINK.bandwidth
    assert collective_seconds(*priced, SIMULATED) == expected
    ring = Transport("ring", 4)
    assert ring.calls(Broadcast.name, 16, 4) == (Call("all_gather", 64, 4),)
    lacking = replace(SIMULATED, transport=ring)
    assert describe_emulation(*priced, lacking) == "all_gather among 4 devices, 64 bytes"
    having = replace(ring, more=frozenset({Broadcast.name}))
    assert having.describe_emulation(Broadcast.name, 16, 4) == ""
