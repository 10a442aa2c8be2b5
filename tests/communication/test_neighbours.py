"""Exchanges of one kind and group that are neighbours travel together, where that is faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import ops
from mithril.cost import SIMULATED, Hardware
from mithril.cost.kernels import OpCosts
from mithril.cost.streams import Pricing, simulate_program
from mithril.ir import Builder, Cause, Graph, Phase, Tensor
from mithril.mesh import Mesh
from mithril.ops.collective import AllGather, AllToAll, Collective, Permute, collective_of
from mithril.partition.buckets import bucket_collectives
from mithril.partition.fusion import Fusion
from mithril.plan import Execution, Plan, Program
from mithril.plan.proof import prove_order
from mithril.types import DType, TensorType

from tests.algorithms.cases import program_of
from tests.engine.programs import execute
from tests.profiles import scaled

NEVER = replace(SIMULATED, memory_bandwidth=1.0)
"""Copying takes so long that nothing is put into a buffer."""
FAR = replace(SIMULATED, levels=[replace(level, latency=1e-5) for level in SIMULATED.levels])
"""A collective takes long to start."""
BESIDE = replace(FAR, execution=Execution(overlaps=True))
"""Devices that compute while data is on its way."""
AROUND, BACK = ((0, 1), (1, 0)), ((1, 0),)
KINDS: tuple[Collective, ...] = (
    Permute(("a",), AROUND), Permute(("a",), BACK), AllToAll(("a",), 0, 1, 2),
    AllToAll(("a",), 1, 0, 2), AllGather(("a",), 0, 2), AllGather(("a",), 1, 2),
)  # fmt: skip


def x_of(builder: Builder, name: str = "x", *shape: int) -> Tensor:
    return builder.input(TensorType(shape or (4, 4), DType.float32), name)


def issue(op: Collective, x: Tensor, name: str = "", phase: Phase = Phase.forward) -> Tensor:
    cause = Cause(name, "there", "here", "who asks")
    with x.builder.at(phase=phase, cause=cause):
        return x.builder.apply(op, x)[0]


def joined(graph: Graph, hardware: Hardware = FAR, asked: Fusion | None = None) -> Program:
    """Return a program of two devices after buckets are filled; its order is proved."""
    program = program_of(graph, Mesh(a=2))
    made = bucket_collectives(program, hardware, asked or Fusion())
    prove_order(Plan.of_program(made.mesh, made))
    return made


def list_members(program: Program) -> list[tuple[str, int]]:
    """Return the kind of each collective and how many operands it has, in order."""
    return [
        (node.op.name, len(node.inputs))
        for node in program.graph.nodes
        if collective_of(node.op) is not None
    ]


def count_seconds(program: Program, hardware: Hardware) -> float:
    pricing = Pricing(program.mesh, hardware, OpCosts())
    return simulate_program(pricing.price(program.graph)).seconds


def test_neighbours_may_stand_between_others_of_the_same_op() -> None:
    """What is exchanged again is apart from what is not, though it stands between."""
    builder = Builder()
    again = Cause("y", "there", "here", "who asks", is_again=True)
    found = {}
    for name in ("x0", "y0", "x1", "y1"):
        if name.startswith("x"):
            made = issue(KINDS[0], x_of(builder, name))
        else:
            with builder.at(cause=again):
                made = builder.apply(KINDS[0], x_of(builder, name))[0]
        found[name] = ops.exp(made)
    program = joined(builder.build(found))
    assert list_members(program) == [("permute", 2), ("permute", 2)]


# ------------------------------------------------------------------ numbers


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draw a graph of exchanges and of ops between them, each of something that is there."""
    builder = Builder()
    known = [ops.tanh(x_of(builder, name)) for name in "xy"]
    for _ in range(draw(st.integers(2, 10))):
        x, other = (draw(st.sampled_from(known)) for _ in "ab")
        which = draw(st.integers(0, len(KINDS) + 1))
        if which < len(KINDS):
            made = issue(KINDS[which], x)
            known.append(made.reshape(-1)[:16].reshape(4, 4))
        else:
            known.append(ops.tanh(x) + other)
    return builder.build({f"y{n}": value for n, value in enumerate(known[2:])})


@settings(max_examples=scaled(80))
@given(graphs(), st.sampled_from([FAR, BESIDE]))
def test_numbers_and_bytes_stay(graph: Graph, hardware: Hardware) -> None:
    together, apart = joined(graph, hardware), joined(graph, NEVER)
    rng = np.random.default_rng(0)
    values = {
        value.name: [rng.normal(size=(4, 4)).astype(np.float32) for _ in range(2)]
        for value in graph.inputs
    }
    (found, rows), (expected, others) = (execute(p, values) for p in (together, apart))
    for name, parts in expected.items():
        for mine, wanted in zip(found[name], parts, strict=True):
            np.testing.assert_array_equal(mine, wanted, name)
    assert rows == list(together.list_issued())
    assert sum(row[2] for row in rows) == sum(row[2] for row in others)
    assert len(rows) <= len(others)
    assert count_seconds(together, hardware) <= count_seconds(apart, hardware)


# ------------------------------------------------------------------ which travel together


@pytest.mark.parametrize("op", KINDS, ids=str)
def test_neighbours_travel_together(op: Collective) -> None:
    """Whatever is computed between them, if nothing that is exchanged needs it."""
    builder = Builder()
    x, y = (x_of(builder, name) for name in "xy")
    first = ops.exp(issue(op, x * y))
    second = issue(op, y * y)
    graph = builder.build({"first": first, "second": second})
    assert list_members(joined(graph)) == [(op.name, 2)]
    assert list_members(joined(graph, NEVER)) == [(op.name, 1)] * 2
    assert list_members(joined(graph, asked=Fusion(others=False))) == [(op.name, 1)] * 2
    assert list_members(joined(graph, asked=Fusion(nbytes=100))) == [(op.name, 1)] * 2


def chained(op: Collective, others: Sequence[Collective] = ()) -> Graph:
    """Return a graph in which what is exchanged second needs what was exchanged first."""
    builder = Builder()
    x = ops.tanh(x_of(builder))
    for one in (op, *others):
        x = ops.tanh(issue(one, x))
    return builder.build({"y": x})


def test_what_waits_for_another_travels_later() -> None:
    around = Permute(("a",), AROUND)
    assert list_members(joined(chained(around, [around]))) == [("permute", 1)] * 2


def test_others_travel_apart() -> None:
    """Another group, way, dtype or phase."""
    builder = Builder()
    x, y = (ops.tanh(x_of(builder, name)) for name in "xy")
    made = [issue(op, ops.exp(x)) for op in (KINDS[0], KINDS[1], KINDS[2], KINDS[3])]
    made.append(issue(KINDS[0], (y * y).astype(DType.float64)))
    made.append(issue(KINDS[0], ops.exp(y), phase=Phase.backward))
    graph = builder.build({f"y{n}": value for n, value in enumerate(made)})
    assert [count for _, count in list_members(joined(graph))] == [1] * 6


def test_what_is_hidden_does_not_wait() -> None:
    """Beside what is computed for long, the first exchange takes no time by itself."""
    builder = Builder()
    around = Permute(("a",), AROUND)
    x, w = ops.tanh(x_of(builder)), x_of(builder, "w", 64, 64)
    sent = issue(around, x)
    long = w
    for _ in range(3):
        long = long @ w
    second = issue(around, long[:4, :4])
    graph = builder.build({"first": sent, "second": second})
    assert list_members(joined(graph)) == [("permute", 2)], "in turn a start-up is saved"
    busy = ops.exp(sent)
    for _ in range(3):
        busy = ops.exp(busy)
    graph = builder.build({"first": busy, "second": second})
    slow = replace(BESIDE, vector_rate=1e3)  # what needs the first takes longer than a start-up
    assert list_members(joined(graph, slow)) == [("permute", 1)] * 2


def test_the_cause_names_all() -> None:
    builder = Builder()
    x, y = (ops.tanh(x_of(builder, name)) for name in "xy")
    around = Permute(("a",), AROUND)
    made = {name: issue(around, z, name) for name, z in (("keys", x), ("values", y))}
    program = joined(builder.build(made))
    (node,) = (node for node in program.graph.nodes if isinstance(node.op, Permute))
    assert node.cause is not None
    assert (node.cause.value, node.cause.parts) == ("2 values", ("keys", "values"))
    (level,) = FAR.levels
    assert node.cause.seconds == pytest.approx(level.latency + 128 / level.bandwidth)
