"""The golden rows of the mixture of experts: tokens travel to their experts and back, twice a phase.

Every case also runs: outputs and gradients equal one device, and the collectives carried out are the
plan's list.
"""

from __future__ import annotations

from dataclasses import replace

import mithril as ml
import pytest
from mithril.ir import Graph
from mithril.mesh import Mesh, P
from mithril.models.trace import trace
from mithril.types import DType, TensorType

from tests.graphs import Ran
from tests.partition.test_golden import all_reduce, checked

B, S, D, H, E, K = 4, 8, 16, 32, 4, 2
CAPACITY = 5  # ceil(1.25 * K * S / E)
STACKS = ("experts.in.weight", "experts.in.bias", "experts.out.weight", "experts.out.bias")
ROUTER = 4 * E * D
"""Bytes of the router's gradient, which is summed over all who have tokens."""
STATISTICS = 4 * (3 * E + 2)
"""Bytes of all losses and statistics, in one sum."""
EXPERTS = 4 * (E * 2 * D * H + E * (D + H))
"""Bytes of the experts."""


def mixture(**options: object) -> Graph:
    """Return a mixture of experts with its losses."""
    layer = ml.MoE(E, H, K, **options)
    graph = trace(layer, {"input": TensorType((B, S, D), DType.float32)}).graph
    kept = ("output", "load_balancing_loss", "router_z_loss")
    return replace(graph, outputs={name: graph.outputs[name] for name in kept})


def planned(graph: Graph, mesh: Mesh, tokens: P, experts: P) -> Ran:
    """Run the mixture with tokens and experts laid out, differentiated for everything."""
    specs = dict.fromkeys(STACKS, experts)
    wanted = (*STACKS, "router.weight", "input")
    ran = checked(graph, mesh, {"input": tokens, **specs}, wanted, compute=STACKS)
    ports = {port.name: port.sharding for port in ran.plan.stages[0].program.outputs}
    for name in STACKS:
        assert ports[f"gradients.{name}"].spec == experts, "experts' gradients stay"
    return ran


def rows(ran: Ran, phase: str) -> list[tuple[str, tuple[str, ...], int]]:
    """Return the collectives of a phase; the order of those that do not wait is free."""
    return sorted(ran.rows(phase))


def travels(axis: str, devices: int, capacity: int = CAPACITY) -> tuple[str, tuple[str, ...], int]:
    return ("all_to_all", (axis,), 4 * B // devices * E * capacity * D)


@pytest.mark.parametrize("devices", [2, 4])
def test_tokens_travel_to_their_experts_and_back(devices: int) -> None:
    ran = planned(mixture(), Mesh(expert=devices), P("expert"), P("expert"))
    travel = travels("expert", devices)
    assert rows(ran, "forward") == sorted([all_reduce("expert", STATISTICS), travel, travel])
    assert rows(ran, "backward") == sorted([travel, travel, all_reduce("expert", ROUTER)])


def test_rerouted_tokens_travel_no_farther() -> None:
    graph = mixture(overflow="reroute", capacity_factor=1.25)
    ran = planned(graph, Mesh(expert=4), P("expert"), P("expert"))
    travel = travels("expert", 4)
    assert rows(ran, "forward") == sorted([all_reduce("expert", STATISTICS), travel, travel])
    assert rows(ran, "backward") == sorted([travel, travel, all_reduce("expert", ROUTER)])


def test_without_a_limit_the_counts_travel_too() -> None:
    graph = mixture(capacity_factor=None, expert_distribution="balanced")
    ran = planned(graph, Mesh(expert=4), P("expert"), P("expert"))
    travel, counts = travels("expert", 4, S), ("all_gather", ("expert",), 4 * B * E)
    assert rows(ran, "forward") == sorted(
        [counts, travel, travel, all_reduce("expert", STATISTICS)]
    )
    assert rows(ran, "backward") == sorted([travel, travel, all_reduce("expert", ROUTER)])


def test_experts_on_an_axis_of_their_own() -> None:
    """Gradients of the experts are summed over `data` alone, of their local bytes."""
    tokens = P(("data", "expert"))
    ran = planned(mixture(), Mesh(data=2, expert=2), tokens, P("expert"))
    travel, both = travels("expert", 4), ("data", "expert")
    assert rows(ran, "forward") == sorted([("all_reduce", both, STATISTICS), travel, travel])
    assert rows(ran, "backward") == sorted(
        [travel, travel, all_reduce("data", EXPERTS // 2), ("all_reduce", both, ROUTER)]
    )


def test_tokens_that_are_everywhere_do_not_travel() -> None:
    """Every device has the tokens of its experts already: what these made is gathered."""
    ran = planned(mixture(), Mesh(expert=4), P(), P("expert"))
    made = ("all_gather", ("expert",), 4 * B * E * CAPACITY * D)
    assert rows(ran, "forward") == sorted([made])
    kinds = {kind for kind, _, _ in ran.rows("backward")}
    assert kinds == {"all_gather"}


def test_experts_that_are_everywhere_leave_tokens_where_they_are() -> None:
    for options in ({}, {"capacity_factor": None}):
        ran = planned(mixture(**options), Mesh(data=4), P("data"), P())
        assert rows(ran, "forward") == sorted([all_reduce("data", STATISTICS)])
        assert rows(ran, "backward") == sorted([all_reduce("data", EXPERTS + ROUTER)])


def test_room_that_shares_a_divisor_with_the_axis_cuts_no_axis() -> None:
    """Six places behind each of four experts: a half of the axis could split neither better."""
    mesh = Mesh(expert=4)
    ran = planned(mixture(capacity_factor=1.5), mesh, P("expert"), P("expert"))
    assert ran.plan.stages[0].program.mesh == mesh
    assert rows(ran, "forward").count(travels("expert", 4, 6)) == 2
