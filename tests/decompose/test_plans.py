"""Plans with products in parts: what they list, when that is chosen, and what readers are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import mithril as ml
import pytest
from mithril.cli.gpt import Sizes, transformer_block
from mithril.compiler import PlanOptions, Request, Target, make_plan
from mithril.cost import SIMULATED, Hardware
from mithril.cost.levels import Level
from mithril.ir import Start, Wait
from mithril.mesh import Mesh, P, Sharding
from mithril.ops.collective import collective_of, collectives
from mithril.partition.decompose import CHUNKS, RING
from mithril.partition.overlap import Overlap
from mithril.plan import Execution, Plan
from mithril.plan.proof import prove_order
from mithril.plan.serialize import plan_from_json, plan_to_json
from mithril.report import explain
from mithril.runtime.planned import plan_backend
from mithril.sharding import Layout

from tests.graphs import MEGATRON_MLP, mlp

SIZES = Sizes(layers=1, width=64, heads=4, hidden=256, context=32, batch=2)
BETWEEN = P(None, "tensor")
"""How activations lie between products: the sequence is split."""


def sequence_parallel(sizes: Sizes, name: str = "block") -> ml.Model:
    """A block after Korthikanti et al. (2022): no activation is whole but inside products."""
    block = transformer_block(sizes, name)
    block.shard({f"attn.{part}.weight": P("tensor", None) for part in "qkv"})
    block.shard({f"{part}.weight": P(None, "tensor") for part in ("attn.o", "mlp.down")})
    block.shard({"mlp.up.weight": P("tensor", None)})
    names = ("x", "normed1", "seen", "middle", "normed2", "thought", "y")
    block.shard(dict.fromkeys(names, BETWEEN))
    return block


def stacked(sizes: Sizes) -> ml.Model:
    model = ml.Model(name="m")
    for number in range(sizes.layers):
        model |= sequence_parallel(sizes, f"block{number}")(x=f"x{number}", y=f"x{number + 1}")
    return model


def planned(
    profile: Hardware | str, sizes: Sizes = SIZES, count: int = 4, **options: object
) -> ml.CompiledModel:
    shape = (sizes.batch, sizes.context, sizes.width)
    dtype = options.pop("dtype", "float32")
    return ml.compile(
        stacked(sizes),
        plan_backend(Mesh(tensor=count), profile),
        shapes={"x0": ml.TensorSpec(shape, dtype, BETWEEN)},
        precision=ml.Precision(dtype=dtype),
        **options,
    )


def list_steps(plan: Plan) -> list[str]:
    """Return the order of products and of what is exchanged."""
    (stage,) = plan.stages
    lines = []
    for node in stage.program.graph.nodes:
        op = collective_of(node.op)
        if op is not None:
            assert node.cause is not None
            step = node.cause.algorithm
            verb = "start" if isinstance(node.op, Start) else "issue"
            what = f"{op.name}, {step}" if step else op.name
            lines.append(f"  {verb} {what} of {node.cause.value}")
        elif isinstance(node.op, Wait):
            lines.append(f"  wait for {node.inputs[0].type}")
        elif node.op.name in ("einsum", "attention", "attention_gradient"):
            made = " and ".join(str(value.type) for value in node.outputs)
            lines.append(f"{node.phase} {node.scope} {node.op.name}: {made}")
    return lines


def test_golden_megatron_with_sequence_parallel_and_decomposed_products(
    golden: Callable[[str, str], None],
) -> None:
    """While a part is multiplied the next one travels; nothing is gathered or scattered whole."""
    plan = planned("a100-80gb", communication_overlap_strategy="decompose").plan
    golden("megatron_decomposed.txt", "\n".join(list_steps(plan)) + "\n")
    kinds = [row.kind for row in plan.collectives()]
    assert set(kinds) == {"permute", "all_reduce"}
    whole = {(r.cause.algorithm.kind, r.phase) for r in plan.collectives() if r.kind == "permute"}
    assert whole == {
        (kind, phase) for kind in ("all_gather", "reduce_scatter")
        for phase in ("forward", "backward")
    }  # fmt: skip


def test_steps_say_what_they_stand_for() -> None:
    compiled = planned("a100-80gb", communication_overlap_strategy="decompose")
    plan, whole = compiled.plan, planned("a100-80gb", communication_overlap_strategy="none").plan
    rows = [row for row in plan.collectives() if row.cause.algorithm is not None]
    first = [row for row in rows if row.cause.algorithm.step == 1]
    assert [row.cause.algorithm.steps for row in first] == [3] * len(first)
    known = [(row.kind, (row.bytes,)) for row in whole.collectives() if row.kind != "all_reduce"]
    assert sorted((r.cause.algorithm.kind, r.cause.algorithm.bytes) for r in first) == sorted(known)
    text = compiled.explain()
    assert "     algorithm decomposed product, step 2 of 3 of all_gather of 16384 bytes" in text
    hidden = [line for line in text.splitlines() if line.startswith("     hidden ")]
    assert len(hidden) == len(plan.collectives())
    assert any("us of it, behind" in line for line in hidden)
    assert plan_from_json(plan_to_json(plan)).collectives() == plan.collectives()
    prove_order(plan)


# ------------------------------------------------------------------ what is chosen

LARGE = Sizes(layers=2, width=4096, heads=32, hidden=16384, context=2048, batch=2)


@cache
def timed(profile: str, **options: object) -> tuple[Plan, float, float]:
    """Return a plan in 16 bits with its predicted seconds, and those that nothing hides."""
    plan = planned(profile, LARGE, dtype="bfloat16", **options).plan
    timeline = plan.timeline()
    return plan, timeline.seconds, timeline.exposed["tensor"]


@pytest.mark.slow
def test_auto_decomposes_where_a_step_is_faster() -> None:
    plan, seconds, exposed = timed("tpu-v4", communication_overlap_strategy="auto")
    steps = [row.cause.algorithm for row in plan.collectives()]
    assert any(step is not None and step.name == RING for step in steps)
    _, least, waiting = timed("tpu-v4", communication_overlap_strategy="none")
    forced, most, hidden = timed("tpu-v4", communication_overlap_strategy="decompose")
    assert seconds < 0.9 * least
    assert seconds <= most
    assert exposed < 0.3 * waiting
    assert hidden < 0.3 * waiting
    assert "reduce_scatter" not in {row.kind for row in forced.collectives()}


def test_auto_leaves_small_products_alone() -> None:
    plan = planned("a100-80gb", communication_overlap_strategy="auto").plan
    assert all(row.cause.algorithm is None for row in plan.collectives())
    assert plan.notes == planned("a100-80gb").plan.notes


@pytest.mark.slow
def test_what_is_asked_for_by_nobody_takes_no_more_memory() -> None:
    profile = Hardware.load("tpu-v4")
    profile = replace(profile, memory_bytes=None)
    plan = planned(profile, LARGE, dtype="bfloat16").plan
    none = planned(profile, LARGE, dtype="bfloat16", communication_overlap_strategy="none").plan
    assert plan.memory(profile).peak <= none.memory(profile).peak


def test_loops_are_entered() -> None:
    block = sequence_parallel(SIZES)
    model = ml.Repeat(block, 3, name="blocks")
    compiled = ml.compile(
        model,
        plan_backend(Mesh(tensor=4), "a100-80gb"),
        shapes={"input": ml.TensorSpec((2, 32, 64), "float32", BETWEEN)},
        communication_overlap_strategy="decompose",
    )
    rows = [row for row in compiled.plan.collectives() if row.cause.algorithm is not None]
    assert {row.times for row in rows} == {3}
    assert {row.cause.algorithm.kind for row in rows} == {"all_gather", "reduce_scatter"}


def test_a_memory_that_is_too_small_for_parts_keeps_the_whole() -> None:
    sizes = Sizes(layers=1, width=512, heads=4, hidden=2048, context=512, batch=4)
    execution = Execution(overlaps=True)
    profile = replace(SIMULATED, execution=execution)
    peaks = {
        strategy: planned(profile, sizes, communication_overlap_strategy=strategy)
        .plan.memory(profile)
        .peak
        for strategy in ("decompose", "none")
    }
    assert peaks["none"] < peaks["decompose"]
    small = replace(profile, memory_bytes=peaks["none"])
    plan = planned(small, sizes, communication_overlap_strategy="decompose").plan
    assert plan.memory(small).peak <= small.memory_bytes
    assert (
        "note: communication_overlap_strategy='decompose' decomposes nothing in this plan: in "
        "parts it needs more memory than it may take" in explain(plan)
    )


# ------------------------------------------------------------------ chunks


def test_what_is_large_travels_in_chunks() -> None:
    """Of sums over devices, too, for which there is no ring."""
    model = ml.Model(name="m")
    model |= ml.FeedForward(16384, name="mlp")(input="x", output="y")
    model.shard({"mlp.up.weight": P("tensor", None), "mlp.down.weight": P(None, "tensor")})
    found = {}
    for is_on in (None, True):
        compiled = ml.compile(
            model,
            plan_backend(Mesh(tensor=4), "a100-80gb"),
            shapes={"x": ml.TensorSpec((8, 2048, 4096), "bfloat16")},
            precision=ml.Precision(dtype="bfloat16"),
            inference=True,
            pipeline_communication=is_on,
        )
        found[is_on] = compiled.plan
    (whole,), rows = found[None].collectives(), found[True].collectives()
    assert {row.kind for row in rows} == {"all_reduce"}
    assert len(rows) in (2, 4, 8)
    assert sum(row.bytes for row in rows) == whole.bytes
    assert [row.cause.algorithm.step for row in rows] == list(range(1, len(rows) + 1))
    assert {row.cause.algorithm.name for row in rows} == {CHUNKS}
    assert sum(row.cause.hidden for row in rows) > 0 == whole.cause.hidden
    assert found[True].timeline().seconds < found[None].timeline().seconds
    assert f"algorithm chunks, step 1 of {len(rows)} of all_reduce" in explain(found[True])


def test_what_comes_in_chunks_is_computed_with_as_it_comes() -> None:
    model = ml.Model(name="m")
    model |= ml.Gelu()(input="x", output="y")
    model.shard({"x": P(None, "tensor"), "y": P()})
    backend = plan_backend(Mesh(tensor=4), "a100-80gb")
    given = ml.TensorSpec((64, 1024, 1024), "float32", P(None, "tensor"))
    options = {"shapes": {"x": given}, "inference": True}
    plan = ml.compile(model, backend, pipeline_communication=True, **options).plan
    kinds = {row.kind for row in plan.collectives()}
    assert kinds <= {"all_gather"}


# ------------------------------------------------------------------ options and notes


def notes_of(backend: ml.Backend, **options: object) -> str:
    shapes = {"x0": ml.TensorSpec((2, 32, 64), "float32", BETWEEN)}
    return explain(ml.compile(stacked(SIZES), backend, shapes=shapes, **options).plan)


def test_backends_that_overlap_nothing_say_so() -> None:
    backend = ml.NumpyBackend(Mesh(tensor=4))
    why = "a program waits for each collective where it is issued"
    text = notes_of(backend, communication_overlap_strategy="decompose")
    said = "note: communication_overlap_strategy='decompose'"
    assert text.count("decomposed product, step 1 of 3") == 7
    assert f"{said} has 7 collectives travel in parts on backend 'numpy'; {why}" in text
    text = notes_of(backend, pipeline_communication=True)
    said = "note: pipeline_communication=True changes nothing on backend 'numpy'"
    assert f"{said}: {why}" in text
    assert "decomposed" not in notes_of(backend)


def test_plans_say_where_nothing_can_be_decomposed() -> None:
    for backend in (ml.NumpyBackend(Mesh(data=2)), plan_backend(Mesh(data=2), "a100-80gb")):
        for split in (P("data"), P()):
            compiled = ml.compile(
                ml.Gelu(), backend, shapes={"input": ml.TensorSpec((4, 4), "float32", split)},
                out_shardings=P(), communication_overlap_strategy="decompose",
                pipeline_communication=True,
            )  # fmt: skip
            text = explain(compiled.plan)
            assert (
                "communication_overlap_strategy='decompose' decomposes nothing in this plan: no "
                "product takes what is gathered, or makes what is scattered" in text
            )
            assert "pipeline_communication=True changes nothing " in text


def test_products_stay_whole_where_a_target_has_no_permutes() -> None:
    """Unless that is asked for, which is refused then as for any collective."""
    graph, mesh = mlp(2, 64, 512, 1024), Mesh(tensor=4)
    layouts = {
        name: Layout(computed=Sharding.of(mesh, spec, 2), decided_by="the annotation")
        for name, spec in MEGATRON_MLP.items()
        if "bias" not in name
    }
    split = Sharding.of(mesh, BETWEEN, 3)
    layouts |= {"x": Layout(split), "y": Layout(leaves=split)}
    slow = replace(
        SIMULATED, execution=Execution(overlaps=True), levels=(Level("any", None, 1e-9, 1e8),)
    )
    kinds, kernels = {}, ml.NumpyBackend().engine.kernels
    for capabilities in (frozenset(collectives()), frozenset(collectives()) - {"permute"}):
        target = Target("some", mesh, kernels, capabilities, slow)
        options = PlanOptions(overlap=Overlap("auto", "said"))
        plan = make_plan(graph, Request(layouts), target, options)
        kinds["permute" in capabilities] = {row.kind for row in plan.collectives()}
    assert "permute" in kinds[True]
    assert "permute" not in kinds[False]


def test_what_is_compressed_stays_so() -> None:
    """Sums that are passed on would travel in float32."""
    model = ml.Model()
    model |= ml.Linear(256, bias=False, name="up")(input="x", output="y")
    model |= ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    shapes = {
        "x": ml.TensorSpec((16, 64), sharding=P("data")),
        "t": ml.TensorSpec((16, 256), sharding=P("data")),
    }
    steps = {}
    for form in (None, "bf16"):
        step = ml.train_step(
            model, ml.NumpyBackend(Mesh(data=4)), ml.optim.adamw(0.1), shapes=shapes, zero=3,
            gradient_compression=form, communication_overlap_strategy="decompose",
        )  # fmt: skip
        steps[form] = [row for row in step.plan.collectives() if row.phase == "backward"]
    assert {row.cause.algorithm.kind for row in steps[None]} == {"reduce_scatter"}
    (row,) = steps["bf16"]
    assert (row.kind, row.cause.compressed) == ("reduce_scatter", "bf16")


def test_one_option_stands_for_all_passes() -> None:
    plan = planned("tpu-v4", LARGE, dtype="bfloat16", communication_optimization=True).plan
    (note,) = [note for note in plan.notes if note.startswith("communication_optimization=True")]
    assert "travel in parts beside what computes with them" in note


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"pipeline_communication": 1},
            "pipeline_communication=1 is neither True nor False; give one of them",
        ),
        (
            {"pipeline_communication": True, "overlap_communication": False},
            "pipeline_communication=True is given together with overlap_communication=False, by "
            "which nothing goes on beside chunks; leave one of them out",
        ),
        (
            {"pipeline_communication": True, "communication_overlap_strategy": "bucket"},
            "pipeline_communication=True is given together with communication_overlap_strategy="
            "'bucket', by which all that a block needs travels at once; leave one of them out",
        ),
        (
            {"pipeline_communication": True, "communication_optimization": False},
            "communication_optimization=False is given together with pipeline_communication=True, "
            "which says the opposite; leave one of them out",
        ),
        (
            {"overlap_communication": False, "communication_overlap_strategy": "decompose"},
            "overlap_communication=False is given together with communication_overlap_strategy="
            "'decompose', which says the opposite; leave one of them out",
        ),
    ],
)
def test_values_that_are_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(ml.OptionError) as raised:
        ml.NumpyBackend(Mesh(data=2), **options)
    assert str(raised.value) == text
    with pytest.raises(ml.OptionError) as raised:
        ml.compile(ml.Gelu(), ml.NumpyBackend(), **options)
    assert str(raised.value) == text


def test_compile_overrides_its_backend() -> None:
    backend = ml.NumpyBackend(Mesh(tensor=4), pipeline_communication=True)
    assert "pipeline_communication" in notes_of(backend)
    assert "pipeline_communication" not in notes_of(backend, pipeline_communication=False)
    assert "pipeline_communication" not in notes_of(backend, overlap_communication=False)
    both = notes_of(backend, communication_overlap_strategy="decompose")
    assert "pipeline_communication" in both
