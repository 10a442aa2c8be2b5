"""What a search finds: the strategy that is known to be best for a model, each with the reason.

Prices are those of h100 devices, eight of them behind fast links; nothing is run here.
"""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.cli.gpt import Sizes, transformer_block
from mithril.compiler import faster_plan
from mithril.cost import Level
from mithril.engine.planned import PlannedEngine
from mithril.plan import Execution, Plan
from mithril.runtime.backend import Backend
from mithril.runtime.planned import plan_backend

from tests.tolerances import TOLERANCE

HARDWARE = "h100-sxm"
BY_TIMELINE = "of what nobody waits for taken to be hidden"


def search(model: object, mesh: ml.Mesh, shapes: dict[str, object], **options: object) -> Plan:
    backend = plan_backend(mesh, HARDWARE)
    plan = ml.compile(model, backend, auto_partition=True, shapes=shapes, **options).plan
    assert plan.search.is_exact or any(BY_TIMELINE in note for note in plan.notes)
    return plan


def lies(plan: Plan, name: str) -> P:
    return next(port for port in plan.inputs if port.name == name).sharding.spec


def kinds(plan: Plan, phase: str) -> set[str]:
    return {row.kind for row in plan.collectives() if row.phase == phase}


def list_moved(plan: Plan) -> set[str]:
    """Return the names of what is exchanged, of a gradient that of its parameter."""
    return {row.cause.value.removeprefix("gradients.") for row in plan.collectives()}


def feed_forward(width: int, hidden: int, layers: int = 1) -> ml.Model:
    model = ml.Model()
    for i in range(layers):
        model |= ml.Linear(hidden, bias=False, name=f"up{i}")(input=f"x{i}", output=f"a{i}")
        model |= ml.Gelu()(input=f"a{i}", output=f"b{i}")
        model |= ml.Linear(width, bias=False, name=f"down{i}")(input=f"b{i}", output=f"c{i}")
        model |= ml.Add()(inputs=[f"x{i}", f"c{i}"], output=f"x{i + 1}")
    return model


def test_a_convolutional_network_is_split_by_its_batch() -> None:
    """Activations are large and weights small: sums of gradients cost least."""
    model = ml.Model()
    model |= ml.Conv2d(64, 3, padding=1, name="first")(input="x", output="a")
    model += ml.Relu()(input="a", output="b")
    model |= ml.Conv2d(64, 3, padding=1, name="second")(input="b", output="c")
    model += ml.Relu()(input="c", output="d")
    model += ml.Flatten()(input="d", output="e")
    model |= ml.Linear(10, name="head")(input="e", output="y")
    plan = search(model, ml.Mesh(data=8), {"x": (256, 3, 32, 32)})
    assert lies(plan, "x").axes(0) == ("data",)
    assert not any(
        lies(plan, f"{name}.weight").axes(d) for name in ("first", "second") for d in range(4)
    )
    assert "all_reduce" in kinds(plan, "backward")


def test_wide_layers_on_few_tokens_are_split_as_megatron_does() -> None:
    """Weights are larger than activations: the first by its outputs, the second by its inputs."""
    plan = search(feed_forward(8192, 32768), ml.Mesh(tensor=8), {"x0": (512, 8192)})
    assert lies(plan, "up0.weight") == P("tensor", None)
    assert lies(plan, "down0.weight") == P(None, "tensor")
    rows = [row for row in plan.collectives() if row.phase == "forward"]
    assert len(rows) == 1  # the sum of the second product
    assert rows[0].bytes == 4 * 512 * 8192


def test_many_tokens_are_split_instead() -> None:
    """Activations are larger than weights: none of them is moved, and gradients are summed."""
    plan = search(feed_forward(4096, 16384, 3), ml.Mesh(data=8, tensor=8), {"x0": (131072, 4096)})
    assert set(lies(plan, "x0").axes(0)) == {"data", "tensor"}
    assert "all_reduce" in kinds(plan, "backward")
    assert list_moved(plan) <= set(plan.parameters)


@pytest.mark.slow
def test_batches_are_split_where_sums_of_gradients_hide() -> None:
    """Activations that are moved have somebody waiting; sums travel while others are computed."""
    model, shapes = feed_forward(1024, 1024, 3), {"x0": (4096, 1024)}
    backend = plan_backend(ml.Mesh(a=2, b=2, c=2), HARDWARE)
    plan = ml.compile(model, backend, auto_partition=True, shapes=shapes).plan
    assert any(BY_TIMELINE in note for note in plan.notes)
    assert list_moved(plan) <= set(plan.parameters)
    assert plan.search.bound < plan.search.cost
    assert plan.search.cost == pytest.approx(plan.search.seconds * 1e12)
    with patch.object(faster_plan, "_is_timed", return_value=False):
        one_after_another = ml.compile(model, backend, auto_partition=True, shapes=shapes).plan
    assert one_after_another.search.is_exact
    assert one_after_another.search.cost == plan.search.bound
    assert plan.timeline().seconds < 0.98 * one_after_another.timeline().seconds
    assert not plan.search.is_exact


@pytest.mark.slow
def test_tokens_and_weights_of_one_size_are_split_over_an_axis_each() -> None:
    """Either alone would exchange all of the other; each over one axis exchanges an eighth.

    That is so between layers; the first and the last may be split over all devices, since what
    enters and leaves the model may lie anywhere.
    """
    mesh, shapes = ml.Mesh(data=8, tensor=8), {"x0": (16384, 4096)}
    plan = search(feed_forward(4096, 16384, 3), mesh, shapes)
    split = {axis for d in range(2) for axis in lies(plan, "down1.weight").axes(d)}
    assert len(split) == 1  # the other axis splits tokens
    pure = [
        ml.compile(
            feed_forward(4096, 16384, 3), plan_backend(mesh, HARDWARE), auto_partition=True,
            partition_search_space=space, shapes=shapes,
        ).plan.search.cost
        for space in ("data", "tensor")
    ]  # fmt: skip
    assert plan.search.cost < min(pure)


def test_three_axes_are_put_to_two_uses() -> None:
    """Of three axes of two, weights take two and tokens one: the sizes are those of 4 and 2.

    That is so where nothing goes on beside work; elsewhere sums of gradients are hidden, and batches
    alone are split.
    """
    mesh, shapes = ml.Mesh(a=2, b=2, c=2), {"x0": (16384, 4096)}
    backend = Backend(WaitingEngine(mesh), hardware=ml.Hardware.load(HARDWARE))
    model = feed_forward(4096, 16384, 2)
    plan = ml.compile(model, backend, auto_partition=True, shapes=shapes).plan
    assert plan.search.is_exact
    weight, batch = lies(plan, "up1.weight").axes(0), lies(plan, "x0").axes(0)
    assert len(weight) == 2
    assert len(batch) == 1
    assert not set(weight) & set(batch)


@pytest.mark.parametrize(
    ("learns", "share"), [(False, 0.65), pytest.param(True, 0.9, marks=pytest.mark.slow)]
)
def test_parameters_rest_split_where_memory_is_little(learns: bool, share: float) -> None:
    """Copies of all weights are most of what a device holds: they rest split, as in ZeRO 3.

    The batch is split, since its activations are larger; weights are gathered for each phase, and
    computed with whole, gradients are scattered, and the optimiser's state stays split.
    """
    model, mesh = feed_forward(2048, 8192, 4), ml.Mesh(data=8)
    shapes: dict[str, object] = {"x0": (16384, 2048)}
    options: dict[str, object] = {"auto_partition": True, "shapes": shapes}
    backend = plan_backend(mesh, HARDWARE)
    if learns:
        model |= ml.MeanSquaredError(name="end")(input="x4", target="t", output="loss")
        shapes["t"] = shapes["x0"]

    def plan(**limits: object) -> Plan:
        if learns:
            return ml.train_step(model, backend, ml.optim.adamw(1e-3), **options, **limits).plan
        return ml.compile(model, backend, **options, **limits).plan

    free = plan(partition_search_space="data")
    limit = int(share * free.memory().peak)
    found = plan(max_memory_per_device=limit)
    assert found.memory().peak <= limit
    assert found.search.gap <= 0.05
    weights = [f"{name}{i}.weight" for i in range(4) for name in ("up", "down")]
    resting = [name for name in weights if "data" in lies(found, name).axes(0)]
    before = [name for name in weights if "data" in lies(free, name).axes(0)]
    assert len(resting) > len(before)
    assert lies(found, "x0").axes(0) == ("data",)
    moved = [row for row in found.collectives() if row.kind == "all_gather"]
    moved = [row for row in moved if row.phase in ("forward", "backward")]
    assert {row.phase for row in moved} == {"forward", "backward"}
    assert {row.cause.value for row in moved} <= set(weights)  # and no activations
    assert "reduce_scatter" in kinds(found, "backward")
    if learns:
        for state in ("mu", "nu"):
            assert all("data" in lies(found, f"optimizer.0.{state}.{n}").axes(0) for n in weights)


def test_a_long_sequence_is_split_along_itself() -> None:
    """One sample cannot be split by batch, and all that is done is done for each position."""
    model = ml.Model()
    model |= ml.LayerNorm(name="norm")(input="x", output="even")
    model |= ml.FeedForward(hidden_dim=4096, name="mlp")(input="even", output="y")
    plan = search(model, ml.Mesh(context=8), {"x": (1, 65536, 1024)})
    assert lies(plan, "x").axes(1) == ("context",)


@pytest.mark.slow
def test_attention_with_one_head_goes_round_a_ring() -> None:
    """One head cannot be split, so the sequence is, and keys are passed on."""
    model = ml.Model()
    model |= ml.MultiHeadAttention(num_heads=1, causal=True, context_parallel="ring", name="attn")(
        input="x", output="y"
    )
    plan = search(model, ml.Mesh(context=8), {"x": (1, 32768, 1024)})
    assert lies(plan, "x").axes(1) == ("context",)
    assert "permute" in kinds(plan, "forward")


class WaitingEngine(PlannedEngine):
    """An engine that waits for each collective where it is issued."""

    @property
    def execution(self) -> Execution:
        return Execution(overlaps=False)


class CompiledEngine(PlannedEngine):
    """A compiler that has no kernel of attention, and takes it apart."""

    @property
    def execution(self) -> Execution:
        return Execution(fuses=True, lays_out=True)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_causal_attention_is_split_along_its_sequence_where_scores_are_made(
    is_compiled: bool,
) -> None:
    """By heads all scores are made, masked ones too; along a sequence no device makes those.

    A kernel of attention leaves them out by itself: then heads are split, which exchanges less.
    """
    model = ml.MultiHeadAttention(num_heads=16, causal=True, name="attn")
    mesh, shapes = ml.Mesh(tensor=4), {"input": (1, 4096, 256)}
    backend = plan_backend(mesh, HARDWARE)
    if is_compiled:
        backend = Backend(CompiledEngine(mesh), hardware=ml.Hardware.load(HARDWARE))
    plan = ml.compile(model, backend, auto_partition=True, shapes=shapes).plan
    assert plan.search.gap < 0.03
    split = P(None, "tensor", None)
    assert (lies(plan, "input") == split) is is_compiled
    assert is_compiled or lies(plan, "q.weight") == P("tensor", None)
    along = {row.cause.value for row in plan.collectives() if row.kind == "permute"}
    assert ("attn.ring_attention" in along) is is_compiled


@pytest.mark.slow
def test_experts_are_split_where_weights_are_large() -> None:
    """Tokens go to experts by all_to_all; to gather either for everybody would cost more."""
    model = ml.Model()
    model |= ml.MoE(num_experts=8, expert_dim=16384, name="moe")(input="x", output="y")
    mesh, shapes = ml.Mesh(expert=8), {"x": (64, 512, 1024)}
    split = {"in_shardings": {"x": P("expert")}, "out_shardings": {"y": P("expert")}}
    plan = search(model, mesh, shapes, **split)
    for name in ("in", "out"):
        assert lies(plan, f"moe.experts.{name}.weight").axes(0) == ("expert",)
    assert "all_to_all" in kinds(plan, "forward")
    said = {"shardings": {"moe.experts.*": P("expert")}}
    fixed = search(model, mesh, shapes, **split, partition_constraints=said)
    assert plan.search.cost <= fixed.search.cost * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("is_limited", [False, True])
def test_loops_are_searched(is_limited: bool) -> None:
    sizes = Sizes(3, 32, 4, 64, 16, 8)
    model = ml.Model()
    model |= ml.Repeat(transformer_block(sizes, "block"), 3, name="blocks")(input="x", output="y")
    mesh, shapes = ml.Mesh(data=4), {"x": (8, 16, 32)}

    def compile(backend: ml.Backend, **options: object) -> object:
        return ml.compile(model, backend, shapes=shapes, **options)

    backend, one = ml.NumpyBackend(mesh), ml.NumpyBackend()
    found = compile(backend, auto_partition=True)
    if is_limited:
        least = compile(backend, auto_partition=True, partition_objective="memory_usage").plan
        limit = (least.memory().peak + found.plan.memory().peak) // 2
        found = compile(backend, auto_partition=True, max_memory_per_device=limit)
        assert found.plan.memory().peak <= limit
    params = found.randomize_params(seed=0)
    rng = np.random.default_rng(0)
    x, seeds = (rng.standard_normal((8, 16, 32)).astype(np.float32) for _ in range(2))
    outputs, gradients = found.evaluate(params, {"x": x}, {"y": seeds})
    expected, wanted = compile(one).evaluate(
        {name: one.array(value.numpy()) for name, value in params.items()}, {"x": x}, {"y": seeds}
    )
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(outputs["y"].numpy(), expected["y"].numpy(), rtol, atol)
    top = max(np.abs(gradient.numpy()).max() for gradient in wanted.values())
    for name, gradient in wanted.items():
        np.testing.assert_allclose(
            gradients[name].numpy() / top, gradient.numpy() / top, rtol, atol, err_msg=name
        )


@pytest.mark.slow
def test_batches_are_split_over_all_devices_where_collectives_start_slowly() -> None:
    """Because all gradients travel together: their sums start once, not once each."""
    hardware = ml.Hardware.load("cpu")
    levels = tuple(replace(level, latency=2e-3, collectives={}) for level in hardware.levels)
    backend = plan_backend(ml.Mesh(data=2, tensor=2), replace(hardware, levels=levels))
    x = ml.TensorSpec((4096, 32))
    made = feed_forward(32, 64, layers=24)
    plan = ml.compile(made, backend, auto_partition=True, shapes={"x0": x}).plan
    split = replace(x, sharding=P(("data", "tensor")))
    data = ml.compile(feed_forward(32, 64, layers=24), backend, shapes={"x0": split}).plan
    assert lies(plan, "x0") == P(("data", "tensor"), None)
    assert plan.timeline().seconds <= 1.05 * data.timeline().seconds


def test_the_sum_of_a_loss_travels_with_gradients_where_collectives_start_slowly() -> None:
    """Nobody waits for it before the end: to gather what it sums would start one collective more."""
    hardware = ml.Hardware.load("cpu")
    levels = tuple(replace(level, latency=2e-3, collectives={}) for level in hardware.levels)
    backend = plan_backend(ml.Mesh(data=2, tensor=2), replace(hardware, levels=levels))
    model = feed_forward(32, 64, layers=8)
    model |= ml.MeanSquaredError(name="end")(input="x8", target="t", output="loss")
    x = (1 << 15, 32)
    plan = ml.compile(model, backend, auto_partition=True, shapes={"x0": x, "t": x}).plan
    assert lies(plan, "x0") == P(("data", "tensor"), None)
    assert [(row.kind, row.axes) for row in plan.collectives()] == [
        ("all_reduce", ("data", "tensor"))
    ]


def behind_a_slow_network() -> Backend:
    """Two nodes of four devices; what goes between them goes twenty times as slowly."""
    profile = ml.Hardware.load(HARDWARE)
    inner = replace(profile.levels[0], devices=4)
    outer = Level("network", None, 20 * inner.latency, inner.bandwidth / 20)
    levels = (inner, outer)
    return plan_backend(ml.Mesh(node=2, gpu=4), replace(profile, name="slow", levels=levels))


def test_parameters_rest_split_inside_nodes_where_the_network_between_is_slow() -> None:
    """Because gradients are scattered inside a node first, a quarter of them goes between nodes.

    Parameters are gathered ahead of their use, over fast links (hybrid sharding). Taken one after
    another that costs more than what sums gradients and leaves parameters whole.
    """
    model, shapes = feed_forward(1024, 4096, 4), {"x0": (32768, 1024)}
    backend = behind_a_slow_network()
    plan = ml.compile(model, backend, auto_partition=True, shapes=shapes).plan
    assert lies(plan, "x0") == P(("node", "gpu"), None)
    for number in range(4):
        for name in (f"up{number}.weight", f"down{number}.weight"):
            assert {axis for d in range(2) for axis in lies(plan, name).axes(d)} == {"gpu"}
    between = [row for row in plan.collectives() if "node" in row.axes]
    assert {(row.kind, row.axes) for row in between} == {("all_reduce", ("node",))}
    assert any("batches over 'node', 'gpu', parameters at rest over 'gpu'" in n for n in plan.notes)
    weights = 4 * 2 * 1024 * 4096 * 4
    assert sum(row.bytes for row in between) == weights / 4
    split = ml.TensorSpec((32768, 1024), sharding=P(("node", "gpu")))
    data = ml.compile(feed_forward(1024, 4096, 4), backend, shapes={"x0": split}).plan
    assert plan.timeline().seconds < data.timeline().seconds
    alone = ml.compile(
        model, backend, auto_partition=True, partition_search_space="fully_sharded", shapes=shapes
    ).plan.search
    assert plan.search.bound <= alone.bound
    assert plan.search.bound <= plan.search.cost


def test_a_recurrent_layer_is_split_by_its_units_where_there_is_one_sample() -> None:
    """Because as one op each device would compute all of it."""
    backend = plan_backend(ml.Mesh(a=8), "cpu")
    shapes = {"input": (1, 16, 1024)}
    plan = ml.compile(ml.LSTM(1024), backend, auto_partition=True, shapes=shapes).plan
    weight = lies(plan, "layer_0.hidden.weight")
    split = {axis.partition(".")[0] for d in range(3) for axis in weight.axes(d)}  # of its parts
    assert split == {"a"}
    assert not any(node.op.name == "lstm" for node in plan.stages[0].program.graph.nodes)
