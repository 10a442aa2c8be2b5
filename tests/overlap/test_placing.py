"""Collectives that start early: the same numbers, bit for bit, in less predicted time and in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import mithril as ml
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import ops
from mithril.cli.gpt import Sizes, gpt, megatron, with_loss
from mithril.compiler import PlanOptions
from mithril.compiler.communication_options import read_communication
from mithril.cost import SIMULATED
from mithril.errors import PlanError
from mithril.ir import Builder, Graph, Node, Start, Tensor, Wait
from mithril.ir.verify import verify
from mithril.mesh import Mesh, P
from mithril.partition.overlap import Overlap
from mithril.partition.overlap.asked import AUTO, BUCKET, NONE
from mithril.plan import Execution, Plan
from mithril.plan.proof import prove_order
from mithril.runtime.planned import plan_backend
from mithril.types import DType, TensorType

from tests.graphs import Ran, run, values_for
from tests.profiles import scaled
from tests.tolerances import TOLERANCE

STRATEGIES = (AUTO, BUCKET, NONE)  # `tests/decompose` has the other one
BESIDE = replace(SIMULATED, execution=Execution(overlaps=True))
"""Devices on which collectives go on beside kernels."""
MESHES = [Mesh(data=2), Mesh(data=3), Mesh(data=2, tensor=2)]
F32 = DType.float32
Case = tuple[Graph, Mesh, dict[str, P], tuple[str, ...]]


# ------------------------------------------------------------------ numbers


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Layers of a few kinds, of which some lie at rest, and some weights are split."""
    mesh, builder = draw(st.sampled_from(MESHES)), Builder()
    width = 2 * mesh.size
    x = builder.input(TensorType((width, width), F32), "x")
    rests: dict[str, P] = {}
    names: list[str] = []
    for number in range(draw(st.integers(1, 5))):
        with builder.at(scope=f"layer_{number}"):
            name = f"w{number}"
            w = builder.input(TensorType((width, width), F32), name)
            names.append(name)
            if draw(st.booleans()):
                rests[name] = draw(st.sampled_from([P("data"), P(None, "data")]))
            kind = draw(st.sampled_from(["product", "residual", "norm", "shared"]))
            if kind == "product":
                x = ops.tanh(x @ w)
            elif kind == "residual":
                x = x + ops.tanh(x @ w)
            elif kind == "norm":
                x = x * ops.mean(w) / (1.0 + ops.mean(x * x))
            else:
                x = ops.tanh(x @ w) + ops.mean(w.astype(F32)) * x
    return builder.build({"y": x, "total": ops.sum(x)}), mesh, rests, tuple(names)


def planned(case: Case, strategy: str, is_asked: bool = True) -> Ran:
    """Return what a plan makes; unasked, it takes hardly more memory than without."""
    graph, mesh, rests, names = case
    overlap = Overlap(strategy, "communication_overlap_strategy" if is_asked else "")
    return run(
        graph, mesh, values_for(graph), {"x": P("data")}, at_rest=rests, differentiated=names,
        hardware=BESIDE, options=PlanOptions(overlap=overlap),
    )  # fmt: skip


def is_whole(plan: Plan) -> bool:
    """Return whether no product is computed in parts, whose sums have another order."""
    return all(row.cause.algorithm is None for row in plan.collectives())


def check_same(placed: Ran, apart: Ran) -> None:
    """Check that a plan whose collectives are placed is in order and makes what another makes."""
    for name, value in apart.outputs.items():
        if is_whole(placed.plan):
            np.testing.assert_array_equal(placed.outputs[name], value, name)
        else:
            atol = TOLERANCE["float32"][1] * max(1.0, float(np.abs(value).max()))
            np.testing.assert_allclose(
                placed.outputs[name], value, TOLERANCE["float32"][0], atol, err_msg=name
            )
    verify(placed.plan.stages[0].program.graph)
    prove_order(placed.plan)
    assert placed.executed == list(placed.plan.list_issued())


def sum_bytes(plan: Plan) -> Counter[tuple[str, tuple[str, ...]]]:
    """Return the bytes of collectives by kind and axes: which travel together is a matter of time."""
    total: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for kind, axes, nbytes in plan.list_issued():
        total[kind, axes] += nbytes
    return total


@pytest.mark.slow
@settings(max_examples=scaled(60))
@given(cases(), st.sampled_from(STRATEGIES), st.booleans())
def test_random_plans_make_the_same_wherever_collectives_start(
    case: Case, strategy: str, is_asked: bool
) -> None:
    graph, mesh, rests, names = case
    placed, apart = planned(case, strategy, is_asked), run(
        graph, mesh, values_for(graph), {"x": P("data")}, at_rest=rests, differentiated=names
    )  # fmt: skip
    check_same(placed, apart)
    plan = planned(case, "none").plan
    if strategy != "bucket" and is_whole(placed.plan):
        assert sum_bytes(placed.plan) == sum_bytes(plan)
    waiting = plan.timeline(BESIDE).seconds
    assert placed.plan.timeline(BESIDE).seconds <= waiting * (1 + 1e-6) or strategy == "bucket"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_loops_make_the_same_wherever_collectives_start(strategy: str) -> None:
    mesh, builder, names = Mesh(data=2), Builder(), ("first", "up", "down")
    x = builder.input(TensorType((64, 64), F32), "x")
    stacked = [builder.input(TensorType((3, 64, 64), F32), name) for name in names]

    def layer(x: Tensor, first: Tensor, up: Tensor, down: Tensor) -> Tensor:
        with x.builder.at(scope="block0"):
            middle = ops.tanh(x @ first)
        with x.builder.at(scope="block1"):
            return ops.tanh(ops.tanh(middle @ up) @ down)

    graph = builder.build({"y": ops.repeat(layer, x, stacked=tuple(stacked))})
    case = graph, mesh, dict.fromkeys(names, P(None, "data")), names
    placed, apart = planned(case, strategy), run(
        graph, mesh, values_for(graph), {"x": P("data")}, at_rest=case[2], differentiated=names
    )  # fmt: skip
    check_same(placed, apart)
    counts = [sum(row.times for row in ran.plan.collectives()) for ran in (placed, apart)]
    assert (counts[0] < counts[1]) == (strategy == "bucket")


# ------------------------------------------------------------------ a GPT whose parameters are split

SIZES = Sizes(layers=3, width=256, heads=4, hidden=1024, context=64, batch=8)
VOCABULARY = 512
TOKENS = {"tokens", "target"}


@cache
def step_of(mesh: Mesh, batch: int = SIZES.batch, **options: object) -> ml.TrainStep:
    model = with_loss(gpt(VOCABULARY, SIZES))
    split = P("data") if "data" in mesh.names else P()
    if "tensor" in mesh.names:
        megatron(model)
    shapes = {name: ml.TensorSpec((batch, SIZES.context), "int32", split) for name in TOKENS}
    backend = plan_backend(mesh, "a100-80gb")
    return ml.train_step(model, backend, ml.optim.adamw(1e-3), shapes=shapes, **options)


def nodes_of(step: ml.TrainStep) -> Sequence[Node]:
    return step.plan.stages[0].program.graph.nodes


def block_of(scope: str) -> str:
    return ".".join(scope.split(".")[:2])


def list_timeline(step: ml.TrainStep) -> list[str]:
    """Return the order of starts, waits and blocks, neighbours that are alike as one line."""
    lines: list[str] = []
    for node in nodes_of(step):
        if node.phase == "update":
            break
        if isinstance(node.op, Start):
            assert node.cause is not None
            names = node.cause.parts or (node.cause.value,)
            blocks = dict.fromkeys(block_of(name.removeprefix("gradients.")) for name in names)
            line = f"  start {node.op.collective.name} of {', '.join(blocks)}"
        elif isinstance(node.op, Wait):
            line = f"  wait in {block_of(node.scope)}"
        elif node.op.is_collective:
            line = f"  {node.op.name} of {block_of(node.scope)}"
        elif not node.scope:
            continue
        else:
            line = f"{node.phase} {block_of(node.scope)}"
        if not lines or lines[-1] != line:
            lines.append(line)
    return lines


def test_gathers_start_one_block_ahead(golden: Callable[[str, str], None]) -> None:
    step = step_of(Mesh(data=2), zero=3, communication_overlap_strategy="bucket")
    golden("fsdp_prefetch.txt", "\n".join(list_timeline(step)) + "\n")


def test_a_gather_starts_as_the_block_before_begins() -> None:
    """Not earlier: of one block at most, besides that which computes, the parameters are there."""
    step = step_of(Mesh(data=2), zero=3)
    order = [node for node in nodes_of(step) if node.phase == "forward"]
    for number in (1, 2):
        starts = [
            order.index(node)
            for node in order
            if isinstance(node.op, Start) and f".block{number}.attn.q.weight" in str(node.inputs)
        ]
        before = [
            order.index(node)
            for node in order
            if not node.op.is_collective
            and not isinstance(node.op, Wait)
            and block_of(node.scope) == f"gpt.block{number - 1}"
        ]
        assert len(starts) == 1
        between = order[starts[0] : before[0]]
        assert all(isinstance(node.op, Start | Wait) for node in between), between
        assert starts[0] < before[0]


def test_overlap_hides_what_is_exposed_without_it() -> None:
    found = {
        strategy: step_of(Mesh(data=2), zero=3, communication_overlap_strategy=strategy)
        for strategy in STRATEGIES
    }
    timelines = {name: step.plan.timeline() for name, step in found.items()}
    waiting = timelines["none"]
    assert waiting.exposed["data"] == pytest.approx(waiting.communication["data"])
    assert timelines["auto"].seconds < waiting.seconds
    assert timelines["auto"].exposed["data"] < 0.5 * waiting.exposed["data"]
    assert len(found["bucket"].plan.collectives()) < len(found["auto"].plan.collectives())
    moved = {name: step.plan.bytes_by_axis() for name, step in found.items()}
    assert moved["auto"] == moved["none"] == moved["bucket"]
    assert found["auto"].memory().peak > found["none"].memory().peak  # of the block ahead


def test_the_gradient_of_a_weight_is_computed_while_activations_are_summed() -> None:
    step = step_of(Mesh(tensor=2))
    nodes = nodes_of(step)
    place = next(
        n for n, node in enumerate(nodes)
        if node.op.name == "all_reduce" and node.phase == "backward" and "attn" in node.scope
    )  # fmt: skip
    uses = step.plan.stages[0].program.graph.uses()[nodes[place].outputs[0]]
    between = nodes[place + 1 : nodes.index(uses[0][0])]
    assert any(node.op.name == "einsum" for node in between)
    waiting = step_of(Mesh(tensor=2), overlap_communication=False)
    exposed = waiting.plan.timeline().exposed["tensor"]
    assert step.plan.timeline().exposed["tensor"] < 0.7 * exposed


def test_nothing_is_on_its_way_without_overlap() -> None:
    nodes = nodes_of(step_of(Mesh(data=2), zero=3, overlap_communication=False))
    starts = [number for number, node in enumerate(nodes) if isinstance(node.op, Start)]
    assert starts
    assert all(nodes[number + 1].inputs == nodes[number].outputs for number in starts)
    assert not [n for n in nodes if n.op.is_collective and not isinstance(n.op, Start)]


def test_what_is_scattered_is_waited_for_two_blocks_later() -> None:
    """Otherwise whole gradients would be in memory until the update."""
    nodes = nodes_of(step_of(Mesh(data=2), zero=3))
    (start,) = [
        n for n, node in enumerate(nodes)
        if isinstance(node.op, Start)
        and node.cause is not None and node.cause.value == "gradients.gpt.block2.mlp.up.weight"
    ]  # fmt: skip
    wait = next(n for n, node in enumerate(nodes) if node.inputs == nodes[start].outputs)
    blocks = [block_of(node.scope) for node in nodes[start:wait] if "mlp" in node.scope]
    assert "gpt.block1" in blocks
    assert nodes[wait].phase == "backward"


# ------------------------------------------------------------------ memory


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:plan needs")
def test_a_plan_keeps_to_what_a_device_holds() -> None:
    mesh = Mesh(data=2)
    shapes = {n: ml.TensorSpec((SIZES.batch, SIZES.context), "int32", P("data")) for n in TOKENS}

    def peak(limit: int | None, strategy: str) -> tuple[int, float]:
        profile = replace(SIMULATED, execution=Execution(overlaps=True), memory_bytes=limit)
        step = ml.train_step(
            with_loss(gpt(VOCABULARY, SIZES)), plan_backend(mesh, profile), ml.optim.adamw(1e-3),
            shapes=shapes, zero=3, communication_overlap_strategy=strategy,
        )  # fmt: skip
        plan = step.plan
        return step.memory().peak, plan.timeline(profile).seconds

    (least, slow), (most, fast) = peak(None, "none"), peak(None, "auto")
    assert least < most
    assert fast < slow
    for part in (0.0, 0.8):
        limit = int(least + part * (most - least))
        held, seconds = peak(limit, "auto")
        assert held <= limit
        assert seconds <= slow
    assert seconds < slow


@pytest.mark.filterwarnings("ignore:plan needs")
def test_nothing_is_on_its_way_without_overlap_where_memory_is_short() -> None:
    """What the plan held before, with waits at first uses, may be as much."""
    profile = replace(SIMULATED, execution=Execution(overlaps=True), memory_bytes=1)
    backend = plan_backend(Mesh(data=2), profile)
    backend.communication = read_communication(overlap_communication=False)
    function = ml.jit(lambda x: x * 2.0, backend=backend, out_shardings=P())
    plan = function.plan(ml.TensorSpec((64, 64), "float32", P("data")))
    kinds = [node.op.name for node in plan.stages[0].program.graph.nodes]
    assert kinds[-2:] == ["start", "wait"], kinds


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.9, 0.7])
def test_a_budget_of_activations_is_kept_to(part: float) -> None:
    step = step_of(Mesh(data=2), 128, zero=3, checkpointing=part)
    assert step.plan.policy is not None
    assert step.plan.policy.budget is not None
    assert step.memory().peak <= step.plan.policy.budget
    assert any(isinstance(node.op, Start) for node in nodes_of(step))


# ------------------------------------------------------------------ order


def with_nodes(plan: Plan, nodes: Sequence[Node]) -> Plan:
    (stage,) = plan.stages
    graph = Graph(stage.program.graph.inputs, tuple(nodes), stage.program.graph.outputs)
    return replace(plan, stages=(replace(stage, program=replace(stage.program, graph=graph)),))


def test_an_order_that_is_broken_by_hand_is_refused() -> None:
    plan = step_of(Mesh(data=2), zero=3).plan
    prove_order(plan)
    nodes = list(plan.stages[0].program.graph.nodes)
    wait = next(node for node in nodes if isinstance(node.op, Wait))
    others = [node for node in nodes if node is not wait]
    with pytest.raises(PlanError, match=r"comes before what it needs; this is a fault of Mithril"):
        prove_order(with_nodes(plan, [*others, wait]))
    with pytest.raises(PlanError, match=r"comes before what it needs"):
        prove_order(with_nodes(plan, [wait, *others]))
    scattered = next(
        n for n in nodes if isinstance(n.op, Start) and n.op.collective.name == "reduce_scatter"
    )
    rest = [node for node in nodes if node is not scattered]
    with pytest.raises(PlanError, match=r"start at .* comes before what it needs"):
        prove_order(with_nodes(plan, [scattered, *rest]))


def test_a_start_that_nobody_waits_for_is_refused() -> None:
    builder = Builder()
    x = builder.input(TensorType((4,), F32), "x")
    builder.apply(Start(ops.collective.AllReduce(("data",), "sum")), x)
    graph = builder.build({"y": x * 2.0})
    product = one_product()
    plan = run(product, Mesh(data=2), values_for(product)).plan
    (stage,) = plan.stages
    lone = replace(plan, stages=(replace(stage, program=replace(stage.program, graph=graph)),))
    with pytest.raises(PlanError, match="has 0 waits; it needs one; this is a fault of Mithril"):
        prove_order(lone)


def one_product() -> Graph:
    builder = Builder()
    return builder.build({"y": builder.input(TensorType((4,), F32), "x") * 2.0})


# ------------------------------------------------------------------ words


def test_explain_says_what_hides_a_collective() -> None:
    lines = step_of(Mesh(data=2), zero=3).explain().splitlines()
    hidden = [line.strip() for line in lines if "   hidden  " in line]
    assert len(hidden) == len(step_of(Mesh(data=2), zero=3).plan.collectives())
    assert any(" us of it, behind gpt.block0" in line for line in hidden)
    apart = step_of(Mesh(data=2), zero=3, overlap_communication=False).explain()
    assert "hidden    nothing: it is waited for while nothing is computed" in apart
    assert "of it, behind" not in apart


def test_loops_start_within_an_iteration() -> None:
    """What the first layer of the next iteration needs is gathered there, as before."""
    model = ml.Model()
    block = ml.Model(name="block")
    block |= ml.FeedForward(8192, name="first")(input="x", output="middle")
    block += ml.FeedForward(8192, name="second")(input="middle", output="y")
    model |= ml.Repeat(block, 4, name="blocks")(input="x", output="y")
    backend = plan_backend(Mesh(data=2), "a100-80gb")
    shapes = {"x": ml.TensorSpec((64, 2048), "float32", P("data"))}
    gathers = {}
    for strategy in ("auto", "bucket"):
        compiled = ml.compile(
            model, backend, zero=3, inference=True, shapes=shapes,
            communication_overlap_strategy=strategy,
        )  # fmt: skip
        (loop,) = [n for n in compiled.plan.stages[0].program.graph.nodes if n.op.bodies]
        (body,) = loop.op.bodies
        kinds = [node.op.name for node in body.nodes]
        last = len(kinds) - kinds[::-1].index("wait") - 1
        assert kinds.index("start") < kinds.index("einsum") < last
        gathers[strategy] = sum(node.op.is_collective for node in body.nodes)
    assert gathers["bucket"] < gathers["auto"]
