"""Programs that compute forward values again: the same numbers, with nothing dropped kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import mithril as ml
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import ops
from mithril.engine.numpy_engine import NumpyEngine
from mithril.ir import Builder, Graph, Repeat, Value
from mithril.ir.rewrite import all_nodes
from mithril.mesh import Mesh, P
from mithril.ops.control import After
from mithril.partition.recompute import find_residuals, recompute, split_phases
from mithril.plan import Program
from mithril.types import DType, TensorType

from tests.graphs import execute, run, values_for
from tests.profiles import scaled
from tests.recompute.graphs import COUNT, Case, build, cases, droppable


def planned(case: Case) -> tuple[Program, dict[str, np.ndarray]]:
    """Return the program of a graph and its gradients, and values for its inputs."""
    values = values_for(case.graph)
    wanted = tuple(v.name for v in case.graph.inputs if v.type.dtype.is_float)
    ran = run(case.graph, case.mesh, values, case.inputs, differentiated=wanted)
    return ran.plan.stages[0].program, values


def compare(case: Case, choose: Callable[[list[Value]], list[Value]]) -> Program:
    """Return the program without some values, which computes the same bits as the one with them."""
    program, values = planned(case)
    engine = NumpyEngine(case.mesh)
    dropped = choose(droppable(program.graph))
    found = recompute(program, dropped)
    expected, _ = execute(engine, program, values)
    outputs, executed = execute(engine, found, values)
    for name, value in expected.items():
        np.testing.assert_array_equal(outputs[name], value, err_msg=name)
    assert executed == list(found.list_issued())
    check_nothing_is_kept(found.graph, set(dropped) - set(program.graph.outputs.values()))
    return found


def check_nothing_is_kept(graph: Graph, dropped: set[Value]) -> None:
    """No node of the backward reads a dropped value, and no loop stacks one for it."""
    assert not {residual.value for residual in find_residuals(graph)} & dropped
    _, late = split_phases(graph)
    assert not {value for node in late for value in node.inputs} & dropped


@pytest.mark.slow
@settings(max_examples=scaled(100))
@given(cases(), st.randoms(use_true_random=False))
def test_what_is_dropped_at_random_is_computed_again(case: Case, random: object) -> None:
    compare(case, lambda values: [v for v in values if random.random() < 0.5])  # type: ignore[attr-defined]


@settings(max_examples=scaled(40))
@given(cases())
def test_everything_may_be_dropped(case: Case) -> None:
    found = compare(case, lambda values: values)
    kept = [residual.value for residual in find_residuals(found.graph)]
    inside = {v for n in all_nodes(found.graph) if isinstance(n.op, Repeat) for v in n.op.carries}
    assert set(kept) <= inside | set(found.graph.outputs.values())


def one_device(*steps: str) -> Case:
    return Case(build(list(steps), 4), Mesh(), {})


def test_nothing_dropped_is_the_same_program() -> None:
    program, _ = planned(one_device("linear", "tanh"))
    assert recompute(program, []) is program


def test_values_that_no_backward_needs_change_nothing() -> None:
    graph = build(["linear", "tanh"], 4)
    program = run(graph, Mesh(), values_for(graph)).plan.stages[0].program
    assert recompute(program, droppable(program.graph)) is program


def test_a_clone_stands_before_what_needs_it_and_after_what_is_further_back() -> None:
    found = compare(one_device("linear", "tanh", "linear", "tanh"), lambda values: values)
    nodes = found.graph.nodes
    made = {value: position for position, node in enumerate(nodes) for value in node.outputs}
    gates = [node for node in nodes if isinstance(node.op, After)]
    assert gates and all(node.phase == "backward" for node in gates)
    early, _ = split_phases(found.graph)
    assert all(made[node.inputs[1]] >= len(early) - 1 for node in gates)


def test_a_norm_that_runs_again_waits_with_what_it_normalises() -> None:
    """A compiler would make what it makes of that alone at the start of the backward."""
    builder = Builder()
    x = builder.input(TensorType((4, 4, 8), DType.float64), "x")
    w = builder.input(TensorType((8, 8), DType.float64), "w")
    gain = builder.input(TensorType((8,), DType.float64), "gain")
    normed = builder.apply(ops.RmsNorm(1e-5), ops.tanh(x @ w), gain)[0]
    case = Case(builder.build({"y": ops.tanh(normed @ w)}), Mesh(), {})

    program, _ = planned(case)
    made = [v for n in program.graph.nodes if isinstance(n.op, ops.RmsNorm) for v in n.outputs]
    nodes = recompute(program, made).graph.nodes
    held = {node.outputs[0] for node in nodes if isinstance(node.op, After)}
    norms = [n for n in nodes if isinstance(n.op, ops.RmsNorm) and n.phase == "backward"]
    assert [[value in held for value in norm.inputs] for norm in norms] == [[True, False]]


def test_what_a_clone_needs_is_kept_unless_it_is_dropped() -> None:
    program, _ = planned(one_device("linear", "tanh", "linear"))
    tanh = next(node for node in program.graph.nodes if isinstance(node.op, ops.Tanh))
    found = recompute(program, tanh.outputs)
    again = [n for n in found.graph.nodes if isinstance(n.op, ops.Tanh)]
    assert [node.phase for node in again] == ["forward", "backward"]
    assert tanh.inputs[0] in {residual.value for residual in find_residuals(found.graph)}


def test_a_loop_stacks_only_what_its_iterations_start_from() -> None:
    found = compare(one_device("loop"), lambda values: [v for v in values if v.type.rank < 4])
    forward, backward = [n for n in found.graph.nodes if isinstance(n.op, Repeat)]
    assert [value.type.shape for value in forward.op.made] == [(4, 4, 8)]
    assert forward.op.made == forward.op.carries
    (residual,) = [r for r in find_residuals(found.graph) if r.node is None]
    assert residual.bytes == COUNT * residual.value.type.nbytes
    assert any(isinstance(node.op, ops.Tanh) for node in backward.op.body.nodes)


def test_a_parameter_at_rest_is_gathered_once_for_the_backward() -> None:
    model = ml.Model()
    model |= ml.Linear(64, bias=False, name="a")(input="x", output="b")
    for number in range(3):
        model += ml.Gelu()
        model += ml.Linear(64, bias=False, name=f"l{number}")
    shapes = {"x": ml.TensorSpec((8, 64), sharding=P("data"))}
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    plan = ml.compile(model, backend, shapes=shapes, zero=3, checkpointing="all").plan
    gathers = [row.cause for row in plan.collectives() if row.kind == "all_gather"]
    names = Counter(part for cause in gathers for part in (cause.parts or (cause.value,)))
    assert names == {f"{name}.weight": 2 for name in ("a", "l0", "l1", "l2")}


def test_what_is_exchanged_again_says_so() -> None:
    graph = build(["linear", "tanh"], 4)
    ran = run(graph, Mesh(a=2), values_for(graph), {"x": P(None, None, "a"), "w0": P(None, "a")},
              differentiated=("x", "w0"))  # fmt: skip
    program = ran.plan.stages[0].program
    found = recompute(program, droppable(program.graph))
    again = [row for row in found.collectives() if row.cause.is_again]
    assert [(row.kind, row.phase) for row in again] == [("all_reduce", "backward")]
