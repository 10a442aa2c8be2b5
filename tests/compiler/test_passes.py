"""The passes and checks of the compiler: each has its effect, and adding one is one line."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mithril.compiler import (
    CHECKS,
    GRAPH_PASSES,
    PROGRAM_PASSES,
    PlanOptions,
    Request,
    Target,
    lay_out,
    make_plan,
    pipeline,
)
from mithril.compiler.pipeline import Asked
from mithril.engine.kernels import KERNELS
from mithril.errors import BackendError, PlanError
from mithril.ir import Builder, Graph, Tensor
from mithril.ir.rewrite import all_nodes
from mithril.mesh import Mesh, P, Sharding
from mithril.options import Precision
from mithril.partition.pipeline import Part, Placement
from mithril.plan import Plan, Program
from mithril.sharding import FREE, Layout
from mithril.transform import cotangent_name, gradient_of, mix, output_types
from mithril.types import DType, TensorType

from tests.graphs import MLP_PARAMETERS, mlp

MESH = Mesh(data=2)
TARGET = Target("numpy", MESH, frozenset(KERNELS))


def ops_of(plan: Plan) -> list[str]:
    return [n.op.name for stage in plan.stages for n in all_nodes(stage.program.graph)]


def request(graph: Graph, *, gradients: bool = True) -> Request:
    layouts = {name: Layout(FREE) for name in MLP_PARAMETERS}
    layouts["x"] = Layout(Sharding.of(MESH, P("data"), graph.input("x").type.rank))
    cotangents = tuple(graph.outputs) if gradients else None
    return Request(layouts, cotangents, MLP_PARAMETERS if gradients else (), MLP_PARAMETERS)


def planned(options: PlanOptions | None = None, target: Target = TARGET) -> Plan:
    graph = mlp()
    return make_plan(graph, request(graph), target, options)


# ------------------------------------------------------------------ the tuples


def test_a_pass_over_graphs_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def double(graph: Graph, asked: Request, target: Target, options: PlanOptions) -> Asked:
        seen.append(gradient_of(MLP_PARAMETERS[0]) in graph.outputs)
        builder = Builder.extending(graph)
        made = {n: Tensor(builder, v) * 2.0 for n, v in graph.outputs.items()}
        return builder.build(made), asked

    before = planned()
    monkeypatch.setattr(pipeline, "GRAPH_PASSES", (*GRAPH_PASSES, double))
    after = planned()
    assert seen == [True]  # what comes behind the gradients sees them
    assert ops_of(after).count("multiply") == ops_of(before).count("multiply") + len(after.outputs)


def test_a_pass_over_programs_sees_the_devices_of_its_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def look(program: Program, target: Target, options: PlanOptions) -> Program:
        seen.append((program.mesh, target.mesh, options.pads))
        return program

    monkeypatch.setattr(pipeline, "PROGRAM_PASSES", (*PROGRAM_PASSES, look))
    plan = planned(PlanOptions(pads=False))
    assert seen == [(stage.program.mesh, stage.program.mesh, False) for stage in plan.stages]


def test_a_check_refuses_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(plan: Plan, asked: Request, target: Target, options: PlanOptions) -> None:
        raise PlanError(f"plan has {len(plan.collectives())} collectives; take none")

    monkeypatch.setattr(pipeline, "CHECKS", (*CHECKS, refuse))
    with pytest.raises(PlanError, match="plan has 1 collectives"):
        planned()


# ------------------------------------------------------------------ what they do


def test_gradients_are_bucketed_and_leave_as_parameters_arrive() -> None:
    plan = planned()
    (row,) = plan.collectives()
    assert (row.kind, row.axes) == ("all_reduce", ("data",))
    assert len(row.cause.parts) == len(MLP_PARAMETERS)
    arriving = {port.name: port.sharding for port in plan.inputs}
    leaving = {port.name: port.sharding for port in plan.outputs}
    for name in MLP_PARAMETERS:
        assert leaving[gradient_of(name)] == arriving[name]


def test_without_cotangents_nothing_is_differentiated() -> None:
    graph = mlp()
    plan = make_plan(graph, request(graph, gradients=False), TARGET)
    assert [port.name for port in plan.outputs] == list(graph.outputs)
    assert cotangent_name("y") not in {port.name for port in plan.inputs}


def test_precision_is_a_pass_and_its_output_types_are_known_before() -> None:
    graph = mlp()
    precision = Precision(compute_dtype="bfloat16", activation_dtype="float32")
    plan = planned(PlanOptions(precision=precision))
    assert "cast" in ops_of(plan) and "cast" not in ops_of(planned())
    mixed = mix(graph, precision, MLP_PARAMETERS)
    types = {name: value.type for name, value in mixed.outputs.items()}
    assert output_types(graph, precision) == types
    assert {port.name: port.type for port in plan.outputs if port.name in types} == types


def test_a_rounded_scalar_has_the_type_it_had_before() -> None:
    builder = Builder()
    x = builder.input(TensorType((4,), DType.bfloat16), "x")
    wide = x.astype("float32")
    outputs = {"loss": wide.sum().astype("bfloat16"), "y": wide.astype("bfloat16")}
    graph = builder.build(outputs)
    precision = Precision(activation_dtype="bfloat16")
    mixed = mix(graph, precision, ())
    found = output_types(graph, precision)
    assert found == {name: value.type for name, value in mixed.outputs.items()}
    assert (found["loss"].dtype, found["y"].dtype) == (DType.float32, DType.bfloat16)


def test_what_the_target_lacks_is_refused() -> None:
    poor = replace(TARGET, capabilities=frozenset())
    with pytest.raises(BackendError, match="'numpy' has no all_reduce, and 4 gradients needs one"):
        planned(target=poor)
    lacking = replace(TARGET, kernels=TARGET.kernels - {"relu"})
    with pytest.raises(BackendError, match="op 'relu' at 'up' has no kernel in backend 'numpy'"):
        planned(target=lacking)


def test_a_hidden_move_is_refused_unless_it_was_asked_for() -> None:
    graph = mlp()
    rest = Sharding.of(MESH, P("data"), 2)
    asked = request(graph)
    stored = replace(asked, layouts={**asked.layouts, "up": Layout(rests=rest)})
    assert "up" in MLP_PARAMETERS
    plan = make_plan(graph, stored, TARGET, PlanOptions(max_reshard_bytes=0))
    assert "all_gather" in {row.kind for row in plan.collectives()}
    moved = replace(asked, layouts={**asked.layouts, "y": Layout(leaves=Sharding.of(MESH, P(), 3))})
    with pytest.raises(PlanError, match="more than max_reshard_bytes=0"):
        make_plan(graph, moved, TARGET, PlanOptions(max_reshard_bytes=0))


# ------------------------------------------------------------------ placed is the general case


def test_a_model_that_is_not_placed_is_one_part_that_runs_once() -> None:
    graph = mlp()
    plain = make_plan(graph, request(graph), TARGET)
    whole = replace(request(graph), placement=Placement.whole(MESH))
    assert str(make_plan(graph, whole, TARGET)) == str(plain)
    assert plain.only_stage is not None
    assert plain.timetable.runs_once
    assert plain.only_stage.program.inputs == plain.inputs


def test_one_part_of_a_mesh_is_a_stage_of_a_timetable() -> None:
    graph = mlp()
    first = MESH.part({"data": 0})
    placement = Placement((Part("device 0", first), Part("mesh", MESH)), {"": 0}, 0)
    asked = Request({}, None, (), MLP_PARAMETERS, placement)
    plan = make_plan(graph, asked, TARGET)
    assert plan.only_stage is None
    assert {stage.devices for stage in plan.stages} == {(0,)}


def test_a_layout_says_how_the_inputs_of_the_plan_lie() -> None:
    for with_gradients in (False, True):
        graph = mlp()
        asked = request(graph, gradients=with_gradients)
        laid, plan = lay_out(graph, asked, TARGET), make_plan(graph, asked, TARGET)
        assert laid.inputs == plan.inputs
        assert not ops_of(laid) and ops_of(plan)
        decided = {port.name: plan.specs[port.name].decided_by for port in plan.inputs}
        assert decided == {port.name: laid.specs[port.name].decided_by for port in laid.inputs}
