"""Plans whose collectives are carried out by algorithms: what they list, explain, price and refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import mithril as ml
import numpy as np
import pytest
from mithril import ops
from mithril.compiler import PlanOptions, Request, Target, make_plan
from mithril.cost import SIMULATED, Hardware, collective_seconds
from mithril.cost.levels import Level, Link
from mithril.ir import Builder, Repeat, Start
from mithril.ir.rewrite import all_nodes
from mithril.mesh import Mesh, P, Sharding
from mithril.ops.collective import AllGather, AllReduce, Permute, ReduceScatter
from mithril.partition.algorithms import Algorithms, carry_out
from mithril.partition.algorithms.cut import cut_axes, refine_for_near
from mithril.plan import Plan
from mithril.plan.printer import print_program
from mithril.plan.proof import prove_order
from mithril.plan.serialize import plan_from_json, plan_to_json
from mithril.report import explain
from mithril.runtime.planned import plan_backend
from mithril.sharding import Layout
from mithril.types import DType, TensorType

from tests.algorithms.cases import program_of
from tests.engine.programs import execute

F32 = DType.float32
WHOLE = P()
SLOW_BETWEEN = replace(
    SIMULATED, levels=(Level("node", 4, 1e-6, 1e10), Level("pod", None, 1e-4, 1e8))
)


def asked(algorithm: str, mesh: Mesh, *kinds: str) -> Algorithms:
    known = kinds or ("all_reduce", "all_gather", "reduce_scatter")
    names = dict.fromkeys(mesh.names, algorithm)
    return Algorithms(dict.fromkeys(known, names), f"collective_ops={algorithm!r}")


def sum_plan(
    mesh: Mesh,
    algorithms: Algorithms,
    hardware: Hardware = SIMULATED,
    leaves: P = WHOLE,
    **options: object,
) -> Plan:
    """Return the plan of a sum over rows that all devices have a part of."""
    builder = Builder()
    x = builder.input(TensorType((16, 24), F32), "x")
    with builder.at(scope="total"):
        graph = builder.build({"y": ops.sum(x, axis=0)})
    layouts = {
        "x": Layout(arrives=Sharding.of(mesh, P(mesh.names), 2)),
        "y": Layout(leaves=Sharding.of(mesh, leaves, 1)),
    }
    target = Target("any", mesh, frozenset({"sum"}), hardware=hardware)
    return make_plan(graph, Request(layouts), target, PlanOptions(algorithms=algorithms, **options))


def kinds_of(plan: Plan) -> list[str]:
    return [row.kind for row in plan.collectives()]


def test_golden_hierarchical_all_reduce(golden: Callable[[str, str], None]) -> None:
    mesh = Mesh(pod=2, data=4)
    plan = sum_plan(mesh, asked("hierarchical", mesh), SLOW_BETWEEN)
    program = plan.stages[0].program
    golden("hierarchical_all_reduce.txt", f"{plan}\n\n{print_program(program)}")
    rows = [(row.kind, row.axes, row.bytes) for row in plan.collectives()]
    assert rows == [
        ("reduce_scatter", ("data",), 96),
        ("all_reduce", ("pod",), 24),
        ("all_gather", ("data",), 96),
    ]
    for row in plan.collectives():
        priced = collective_seconds(row.kind, row.bytes, row.axes, mesh, SLOW_BETWEEN)
        assert row.cause.seconds == priced


def test_steps_have_the_cause_of_the_whole(golden: Callable[[str, str], None]) -> None:
    mesh = Mesh(data=4)
    (whole,) = sum_plan(mesh, Algorithms()).collectives()
    plan = sum_plan(mesh, asked("ring", mesh))
    rows = plan.collectives()
    assert [(row.kind, row.axes, row.bytes) for row in rows] == [("permute", ("data",), 24)] * 6
    for number, row in enumerate(rows, start=1):
        algorithm, cause = row.cause.algorithm, row.cause
        assert (row.scope, row.phase) == (whole.scope, whole.phase)
        assert replace(cause, seconds=whole.cause.seconds, algorithm=None) == whole.cause
        assert cause.seconds == collective_seconds("permute", 24, ("data",), mesh, SIMULATED)
        assert (algorithm.name, algorithm.kind, algorithm.bytes) == ("ring", "all_reduce", (96,))
        assert (algorithm.step, algorithm.steps) == (number, 6)
    text = explain(plan)
    assert "     algorithm ring, step 2 of 6 of all_reduce of 96 bytes" in text
    assert "for output 'y', by ring, step 2 of 6 of all_reduce" in str(plan)
    assert plan_from_json(plan_to_json(plan)).collectives() == rows


def test_buckets_travel_by_algorithms_and_name_what_they_carry() -> None:
    model = ml.Model()
    for n in range(3):
        model += ml.Linear(6, name=f"layer_{n}")(
            **({"input": "x"} if not n else {}), output=f"h{n}"
        )
    shapes = {"x": ml.TensorSpec((8, 6), "float32", P("data"))}
    rng = np.random.default_rng(0)
    given = {"x": rng.normal(size=(8, 6)).astype(np.float32)}
    found = []
    for option in (None, "ring", "hierarchical", {"all_reduce": {"data_parallel": "tree"}}):
        backend = ml.NumpyBackend(Mesh(data=4))
        compiled = ml.compile(model, backend, shapes=shapes, zero=3, collective_ops=option)
        params = compiled.randomize_params(seed=0)
        gradient = {"h2": np.ones((8, 6), np.float32)}
        outputs, gradients = compiled.evaluate(params, given, gradient)
        found.append({**{n: x.numpy() for n, x in gradients.items()}, "h2": outputs["h2"].numpy()})
        bucket = next(row for row in compiled.plan.collectives() if len(row.cause.parts) > 1)
        assert {"layer_0.weight"} & {
            part.rpartition("gradient of ")[2] for part in bucket.cause.parts
        }
    for other in found[1:]:
        for name, value in found[0].items():
            np.testing.assert_allclose(other[name], value, 1e-4, 5e-5)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "hierarchical"])
def test_loops_are_entered(algorithm: str) -> None:
    body = Builder()
    y = body.input(TensorType((6,), F32), "y")
    (total,) = body.apply(AllReduce(("a",), "sum"), y)
    builder = Builder()
    op = Repeat(body.build({"y": total * 0.25}), 3, 1, 0)
    (made,) = builder.apply(op, builder.input(y.type, "x0"))
    mesh = Mesh(a=4)
    program = program_of(builder.build({"y0": made}), mesh)
    rewritten = carry_out(program, SIMULATED, asked(algorithm, mesh))
    values = {"x0": [np.arange(6, dtype=np.float32) + n for n in range(4)]}
    wanted, found = execute(program, values)[0], execute(rewritten, values)
    np.testing.assert_allclose(found[0]["y0"], wanted["y0"], 1e-6)
    assert found[1] == list(rewritten.list_issued())
    assert len(found[1]) == 3 * {"ring": 6, "tree": 4, "hierarchical": 3}[algorithm]


def test_axes_of_one_collective_may_have_different_algorithms() -> None:
    mesh = Mesh(data=2, tensor=3)
    builder = Builder()
    x = builder.input(TensorType((5,), DType.int32), "x0")
    (y,) = builder.apply(AllReduce(mesh.names, "sum"), x)
    (z,) = builder.apply(AllGather(mesh.names, 0, 6), x)
    (w,) = builder.apply(ReduceScatter(mesh.names, "sum", 0, 6), z)
    program = program_of(builder.build({"y": y, "z": z, "w": w}), mesh)
    by_axis = {"data": "ring", "tensor": "direct"}
    algorithms = Algorithms(dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), by_axis))
    rewritten = carry_out(program, SIMULATED, algorithms)
    values = {"x0": [np.arange(5, dtype=np.int32) * n for n in range(6)]}
    wanted, (found, rows) = execute(program, values)[0], execute(rewritten, values)
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name])
    assert {kind for kind, *_ in rows} == {"permute"}
    assert {axes for _, axes, _ in rows} == {("data",), ("tensor",)}


def test_an_all_reduce_in_parts_takes_what_is_asked_for_these() -> None:
    mesh = Mesh(pod=2, data=4)
    names = {"all_reduce": "hierarchical", "reduce_scatter": "ring", "all_gather": "tree"}
    algorithms = Algorithms({k: dict.fromkeys(mesh.names, how) for k, how in names.items()})
    rows = [(row.kind, row.axes) for row in sum_plan(mesh, algorithms).collectives()]
    ring, tree = [("permute", ("data",))] * 3, [("permute", ("data",))] * 2
    assert rows == [*ring, ("all_reduce", ("pod",)), *tree]


# ------------------------------------------------------------------ what is near


def test_levels_say_what_is_near() -> None:
    mesh = Mesh(data=16)
    plan = sum_plan(mesh, asked("hierarchical", mesh), SLOW_BETWEEN)
    assert [row.bytes for row in plan.collectives()] == [96, 24, 96]  # four of a node
    assert plan.stages[0].program.mesh == refine_for_near(mesh, [(["data"], 4)])
    assert cut_axes(plan.stages[0].program.mesh, ("data.0", "data.1"), 4)[1] == ("data.1",)


def test_cuts_that_do_not_fit_are_left_out() -> None:
    cut = refine_for_near(Mesh(a=12), [(["a"], 4), (["a"], 3), (["a"], 2)])
    assert [axis.size for axis in cut.axes] == [3, 2, 2]


# ------------------------------------------------------------------ auto


def test_auto_takes_the_least_predicted_time() -> None:
    mesh = Mesh(pod=2, data=4)
    auto = asked("auto", mesh)
    between = sum_plan(mesh, auto, SLOW_BETWEEN)
    assert kinds_of(between) == ["reduce_scatter", "all_reduce", "all_gather"]
    assert kinds_of(sum_plan(Mesh(data=4), asked("auto", Mesh(data=4)))) == ["all_reduce"]

    links = {"all_reduce": Link(1e-2, 1e6), "permute": Link(1e-7, 1e10)}
    level = replace(SIMULATED.levels[0], collectives=links)
    measured = replace(SIMULATED, levels=(level,))
    plan = sum_plan(Mesh(data=4), asked("auto", Mesh(data=4)), measured)
    (name,) = {row.cause.algorithm.name for row in plan.collectives()}
    each = {
        how: sum(
            row.cause.seconds
            for row in sum_plan(Mesh(data=4), asked(how, Mesh(data=4)), measured).collectives()
        )
        for how in ("ring", "tree", "direct", "recursive_halving")
    }
    assert each[name] == min(each.values())


def test_rounds_inside_a_node_are_priced_by_its_links() -> None:
    mesh = Mesh(data=8)
    plan = sum_plan(mesh, asked("recursive_halving", mesh), SLOW_BETWEEN)
    slow = [row.cause.seconds > 1e-4 for row in plan.collectives()]
    assert slow == [True, False, False, False, False, True]  # at distances 4, 2, 1, 1, 2, 4


def test_a_plan_says_where_nothing_changes() -> None:
    mesh = Mesh(data=3)
    for algorithm, kinds, why in (
        ("hierarchical", (), "the backend's own collectives are predicted to take least time"),
        ("auto", (), "the backend's own collectives are predicted to take least time"),
        ("ring", ("all_gather",), "it exchanges nothing by such collectives"),
    ):
        plan = sum_plan(mesh, asked(algorithm, mesh, *kinds))
        assert kinds_of(plan) == ["all_reduce"]
        (note,) = plan.notes
        assert note.startswith(f"collective_ops='{algorithm}' changes nothing in this plan: {why}")
    assert not sum_plan(mesh, asked("ring", mesh)).notes


# ------------------------------------------------------------------ limits


def test_a_limit_on_moves_is_held_against_the_whole() -> None:
    mesh = Mesh(data=4)
    builder = Builder()
    graph = builder.build({"y": builder.input(TensorType((16, 8), F32), "x")})
    layouts = {
        "x": Layout(arrives=Sharding.of(mesh, P("data"), 2)),
        "y": Layout(leaves=Sharding.of(mesh, P(), 2)),
    }

    def plan(limit: int, algorithm: str) -> Plan:
        options = PlanOptions(max_reshard_bytes=limit, algorithms=asked(algorithm, mesh))
        return make_plan(graph, Request(layouts), Target("any", mesh, frozenset()), options)

    for algorithm in ("native", "ring"):
        with pytest.raises(ml.PlanError, match=r"moves 'x' by all_gather over data, .*; 512 bytes"):
            plan(511, algorithm)
        assert plan(512, algorithm)
    assert sum_plan(mesh, asked("ring", mesh), max_reshard_bytes=0), "a sum is no hidden move"


def test_empty_values_stay_with_the_engine() -> None:
    mesh, builder = Mesh(a=2), Builder()
    x = builder.input(TensorType((0, 3), F32), "x0")
    program = program_of(builder.build({"y": builder.apply(AllReduce(("a",), "sum"), x)[0]}), mesh)
    assert carry_out(program, SIMULATED, asked("ring", mesh)) is program
    assert not any(n.op.name == "permute" for n in all_nodes(program.graph))


# ------------------------------------------------------------------ with other passes


def test_steps_are_placed_beside_what_computes() -> None:
    shapes = {"x": ml.TensorSpec((8, 512), "float32", P("data"))}
    model = ml.Model()
    for n in range(3):
        model += ml.Linear(512, name=f"layer_{n}")(
            **({"input": "x"} if not n else {}), output=f"h{n}"
        )
    for strategy in ("auto", "bucket", "none"):
        compiled = ml.compile(
            model,
            plan_backend(Mesh(data=4), "a100-80gb"),
            zero=3,
            shapes=shapes,
            collective_ops={"all_gather": "direct", "reduce_scatter": "ring"},
            communication_overlap_strategy=strategy,
        )
        plan = compiled.plan
        prove_order(plan)
        nodes = list(all_nodes(plan.stages[0].program.graph))
        starts = [node for node in nodes if isinstance(node.op, Start)]
        assert any(isinstance(node.op.collective, Permute) for node in starts)
        assert {row.cause.hidden is None for row in plan.collectives()} == {False}
        assert (sum(row.cause.hidden for row in plan.collectives()) > 0) == (strategy != "none")
