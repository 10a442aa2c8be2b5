"""What travels together in a train step, the options that say so, and what is executed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import mithril as ml
import numpy as np
import pytest
from mithril.cli.gpt import Sizes, gpt, megatron, with_loss
from mithril.compiler.communication_options import read_communication
from mithril.cost import SIMULATED, Hardware
from mithril.ir import Start
from mithril.ir.rewrite import all_nodes
from mithril.mesh import Mesh, P
from mithril.plan import Execution, Plan
from mithril.report import explain
from mithril.runtime.planned import plan_backend

from tests.tolerances import TOLERANCE

SIZES = Sizes(layers=2, width=16, heads=2, hidden=32, context=8, batch=4)
VOCABULARY = 32
SUMS = ("all_reduce",)


def step_on(backend: ml.Backend, **options: object) -> ml.TrainStep:
    """Return a step of a GPT that clips gradients by their norm and reports its loss."""
    model = with_loss(gpt(VOCABULARY, SIZES))
    if "tensor" in backend.mesh.names:
        megatron(model)
    clipped = ml.optim.chain(ml.optim.clip_by_global_norm(1.0), ml.optim.adamw(1e-2))
    split = P("data") if "data" in backend.mesh.names else P()
    ids = ml.TensorSpec((SIZES.batch, SIZES.context), "int32", split)
    return ml.train_step(
        model, backend, clipped, shapes={"tokens": ids, "target": ids}, **options
    )  # fmt: skip


def sums_of(plan: Plan) -> list[tuple[tuple[str, ...], str, int]]:
    """Return the axes of each all_reduce, what it moves, and how many values that are."""
    return [
        (row.axes, row.cause.value, len(row.cause.parts) or 1)
        for row in plan.collectives()
        if row.kind in SUMS
    ]


# ------------------------------------------------------------------ what travels together


def test_a_step_of_copies_sums_once() -> None:
    plan = step_on(ml.NumpyBackend(Mesh(data=2))).plan
    assert sums_of(plan) == [(("data",), "38 gradients, 1 value", 39)]


def test_a_step_on_mlx_sums_once() -> None:
    pytest.importorskip("mlx.core")
    plan = step_on(ml.MLXBackend(Mesh(data=2))).plan
    assert sums_of(plan) == [(("data",), "38 gradients, 1 value", 39)]


def test_what_is_executed_is_what_the_plan_lists() -> None:
    split = {name: P("data") for name in batch()}
    counts = []
    for options in ({}, {"fusion_bytes": 8000}, {"all_reduce_fusion": False}):
        backend, executed = ml.NumpyBackend(Mesh(data=2)), list[object]()
        model = with_loss(gpt(VOCABULARY, SIZES))
        compiled = ml.compile(model, backend, in_shardings=split, **options)
        given = compiled.randomize_params(seed=0), batch(), {"loss": 1.0}
        compiled.evaluate(*given, observe=lambda told, rows=executed: rows.append(told.row))
        assert tuple(executed) == compiled.plan.list_issued()
        counts.append(len(executed))
    assert counts == [1, 3, 39]


def test_a_step_of_split_weights_sums_what_is_whole_and_the_norm() -> None:
    """The norm is of gradients that have arrived; all else of the axis is one sum."""
    plan = step_on(ml.NumpyBackend(Mesh(tensor=2))).plan
    *activations, norm = sums_of(plan)
    gradients = [row for row in activations if "gradients" in row[1]]
    assert norm == (("tensor",), "2 values", 2)
    assert len(gradients) <= 1
    assert not [row for row in activations if "cross_entropy" in row[1]]


def test_a_step_at_rest_sums_its_loss_with_the_norm() -> None:
    plan = step_on(ml.NumpyBackend(Mesh(data=2)), zero=3).plan
    assert sums_of(plan) == [(("data",), "3 values", 3)]


def test_what_is_large_stays_in_its_phase() -> None:
    """A sum of the forward is not kept until the backward has one of its kind."""
    model = ml.Model()
    model |= ml.Linear(64, bias=False, name="up")(input="x", output="h")
    model |= ml.Linear(64, bias=False, name="down")(input="h", output="y")
    model.shard({"up.weight": P("tensor"), "down.weight": P(None, "tensor")})
    backend = ml.NumpyBackend(Mesh(tensor=2))
    plan = ml.compile(model, backend, shapes={"x": (64, 64)}, differentiable=["x"]).plan
    rows = [(row.kind, row.phase, row.cause.parts) for row in plan.collectives()]
    assert rows == [("all_reduce", "forward", ()), ("all_reduce", "backward", ())]


def test_results_that_only_leave_are_gathered_together() -> None:
    """They are computed, so that the first has to wait for the last."""
    model = ml.Model()
    for name in ("a", "b"):
        model |= ml.Relu()(input=name, output=f"{name}_out")
    split = ml.TensorSpec((4, 4), "float32", P("data"))
    options = {
        "shapes": {"a": split, "b": split},
        "out_shardings": {"a_out": P(), "b_out": P()},
        "inference": True,
    }
    backend = ml.NumpyBackend(Mesh(data=2))
    (row,) = ml.compile(model, backend, **options).plan.collectives()
    assert (row.kind, row.cause.parts) == ("all_gather", ("a_out", "b_out"))


def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (SIZES.batch, SIZES.context)
    return {n: rng.integers(0, VOCABULARY, shape).astype(np.int32) for n in ("tokens", "target")}


def run_steps(backend: ml.Backend, **options: object) -> list[float]:
    step = step_on(backend, **options)
    state, losses = step.init(seed=0), []
    for _ in range(3):
        state, metrics = step(state, batch())
        losses.append(float(metrics["loss"].numpy()))
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [Mesh(data=2), Mesh(tensor=2), Mesh(data=2, tensor=2)], ids=str)
@pytest.mark.parametrize("options", [{}, {"all_reduce_fusion": False}, {"fusion_bytes": 512}])
def test_steps_are_those_of_one_device(mesh: Mesh, options: Mapping[str, object]) -> None:
    alone = run_steps(ml.NumpyBackend())
    rtol, atol = TOLERANCE["float32"]
    found = run_steps(ml.NumpyBackend(mesh), **options)
    np.testing.assert_allclose(found, alone, rtol=rtol, atol=atol)


# ------------------------------------------------------------------ how large


def on_link(rate: float, latency: float = 1e-6) -> Hardware:
    """Return devices of which a link carries so many bytes a second."""
    level = replace(SIMULATED.levels[0], bandwidth=rate, latency=latency)
    return replace(SIMULATED, levels=(level,), execution=Execution(overlaps=True))


def test_buckets_are_smaller_where_the_wait_costs_more_than_a_start() -> None:
    def count(hardware: Hardware) -> int:
        backend = plan_backend(Mesh(data=2), hardware)
        return len(sums_of(step_on(backend).plan))

    assert count(on_link(1e6, 1e-7)) > count(on_link(1e9, 1e-2)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize(("rate", "latency"), [(3e6, 1e-6), (1e7, 1e-5), (1e8, 1e-6)])
def test_the_size_by_the_time_model_takes_no_longer_than_a_size_by_hand(
    rate: float, latency: float, zero: int
) -> None:
    """Of sums, and of what is gathered and scattered; that starts no earlier than a block ahead."""
    hardware = on_link(rate, latency)

    def seconds(**options: object) -> float:
        step = step_on(plan_backend(Mesh(data=2), hardware), zero=zero, **options)
        return float(step.plan.timeline(hardware).seconds)

    by_hand, own = [seconds(fusion_bytes=n) for n in (500, 2000, 8000, 1_000_000)], seconds()
    assert own <= min(by_hand) * (1.02 if zero else 1.002)
    assert max(by_hand) > own * 1.01


# ------------------------------------------------------------------ options


def both(mesh: Mesh, **options: object) -> list[Plan]:
    """Return plans with options given to the step, and to the backend."""
    given = step_on(ml.NumpyBackend(mesh), **options), step_on(ml.NumpyBackend(mesh, **options))
    return [step.plan for step in given]


def test_without_fusion_each_sum_travels_alone() -> None:
    for plan in both(Mesh(data=2), all_reduce_fusion=False):
        assert [count for *_, count in sums_of(plan)] == [1] * 39
    for plan in both(Mesh(data=2), all_reduce_fusion=True):
        assert [count for *_, count in sums_of(plan)] == [39]


def test_without_fusion_of_sums_gathers_travel_together_all_the_same() -> None:
    plan = step_on(ml.NumpyBackend(Mesh(data=2)), zero=3, all_reduce_fusion=False).plan
    buffers = {row.kind for row in plan.collectives() if row.cause.parts}
    assert buffers == {"all_gather", "reduce_scatter"}


@pytest.mark.parametrize("size", [2000, "2 kB", np.int64(2000)])
def test_a_buffer_holds_no_more_than_it_is_given(size: object) -> None:
    for zero in (0, 3):
        step = step_on(ml.NumpyBackend(Mesh(data=2)), zero=zero, fusion_bytes=size)
        rows = step.plan.collectives()
        assert any(row.cause.parts for row in rows)
        assert all(row.bytes <= 2000 for row in rows if row.cause.parts)
    assert step_on(ml.NumpyBackend(Mesh(data=2), fusion_bytes=size)).plan.list_issued()


def test_compile_overrides_its_backend() -> None:
    backend = ml.NumpyBackend(Mesh(data=2), all_reduce_fusion=False)
    assert len(sums_of(step_on(backend, all_reduce_fusion=True).plan)) == 1
    assert len(sums_of(step_on(backend, collective_optimization=True).plan)) == 1
    assert len(sums_of(step_on(backend).plan)) == 39


def test_fusion_that_is_asked_for_keeps_the_size_of_its_backend() -> None:
    backend = ml.NumpyBackend(Mesh(data=4), fusion_bytes=100)
    asked = sums_of(step_on(backend, all_reduce_fusion=True).plan)
    assert asked == sums_of(step_on(backend).plan)
    assert asked != sums_of(step_on(ml.NumpyBackend(Mesh(data=4))).plan)


def test_functions_follow_their_backend() -> None:
    spec = ml.TensorSpec((8, 8), "float32", P("data"))
    for is_on in (True, False):
        backend = ml.NumpyBackend(Mesh(data=2), all_reduce_fusion=is_on)
        function = ml.jit(lambda x, y: (ml.ops.sum(x), ml.ops.sum(y)), backend=backend)
        plan = function.plan(spec, spec)
        assert len(sums_of(plan)) == (1 if is_on else 2)


# ------------------------------------------------------------------ all passes


@pytest.mark.parametrize("name", ["collective_optimization", "communication_optimization"])
def test_one_option_stands_for_all_passes(name: str) -> None:
    for plan in both(Mesh(data=2), **{name: True}):
        (note,) = (note for note in plan.notes if note.startswith(f"{name}=True:"))
        assert note == f"{name}=True: fusion has 39 values travel in 1 of 1 collectives"
        assert f"note: {note}" in explain(plan)
        why = "a program waits for each collective where it is issued"
        wanted = f"overlap of {name}=True changes nothing on backend 'numpy': {why}"
        assert wanted in plan.notes
    for plan in both(Mesh(data=2), **{name: False}):
        assert [count for *_, count in sums_of(plan)] == [1] * 39
        assert f"{name}=False: fusion leaves 39 collectives as they are" in plan.notes


def test_all_passes_say_what_overlaps() -> None:
    for is_on in (True, False):
        backend = plan_backend(Mesh(data=2), "a100-80gb")
        backend.communication = read_communication(communication_optimization=is_on)
        plan = step_on(backend, zero=3).plan
        waits = not any(row.cause.hidden for row in plan.collectives())
        assert waits != is_on
        starts = [n for s in plan.stages for n in all_nodes(s.program.graph) if n.op.is_collective]
        assert all(isinstance(node.op, Start) for node in starts) or is_on
        (note,) = (n for n in plan.notes if n.startswith(f"communication_optimization={is_on}: "))
        count = len(plan.collectives())
        hidden = sum(bool(row.cause.hidden) for row in plan.collectives())
        assert f"overlap has {hidden} of {count} go on beside what computes" in note


def test_one_device_says_that_nothing_is_communicated() -> None:
    plan = step_on(ml.NumpyBackend(), communication_optimization=True).plan
    assert "communication_optimization=True: nothing is communicated" in plan.notes


@pytest.mark.parametrize("is_on", [True, False])
def test_asynchronous_collectives_are_overlap(is_on: bool) -> None:
    named = ml.NumpyBackend(Mesh(data=2), async_collective_ops=is_on).communication.overlap
    assert named.strategy == ("auto" if is_on else "none")
    assert named.said == f"async_collective_ops={is_on}"
    model, shapes = ml.Linear(8), {"input": (8, 8)}
    compiled = ml.compile(
        model, ml.NumpyBackend(Mesh(data=2)), shapes=shapes, async_collective_ops=is_on, zero=3
    )
    assert any(f"async_collective_ops={is_on} changes nothing" in n for n in compiled.plan.notes)


# ------------------------------------------------------------------ blocks of the guides


GUIDES = [
    ((4,), {"collective_optimization": True}),
    ((4,), {"async_collective_ops": True}),
    ((4,), {"communication_optimization": True, "overlap_communication": True}),
    (
        (4, 2),
        {
            "collective_optimization": True,
            "all_reduce_fusion": True,
            "communication_overlap_strategy": "auto",
        },
    ),
]


@pytest.mark.parametrize(("mesh", "options"), GUIDES)
def test_backends_of_the_guides(mesh: tuple[int, ...], options: Mapping[str, object]) -> None:
    backend = ml.NumpyBackend(device_mesh=mesh, **options)
    compiled = ml.compile(ml.Linear(8), backend)
    params, x = compiled.randomize_params(seed=0), np.ones((8, 8), np.float32)
    out = compiled.evaluate(params, {"input": x})
    name = next(iter(out))
    wanted = x @ params["weight"].numpy().T + params["bias"].numpy()
    np.testing.assert_allclose(out[name].numpy(), wanted, *TOLERANCE["float32"])


# ------------------------------------------------------------------ what is refused

SIZE_FORMS = 'give a number of bytes above 0, such as 2_000_000 or "2 MB"'
OPPOSITE = "which says the opposite; leave one of them out"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"all_reduce_fusion": 1},
            "all_reduce_fusion=1 is neither True nor False; give one of them",
        ),
        ({"fusion_bytes": 0}, f"fusion_bytes=0 is no size of a buffer; {SIZE_FORMS}"),
        ({"fusion_bytes": -5}, f"fusion_bytes=-5 is no size of a buffer; {SIZE_FORMS}"),
        ({"fusion_bytes": 2.5}, f"fusion_bytes=2.5 is no size of a buffer; {SIZE_FORMS}"),
        ({"fusion_bytes": True}, f"fusion_bytes=True is no size of a buffer; {SIZE_FORMS}"),
        ({"fusion_bytes": "2 s"}, f"fusion_bytes='2 s' is no size of a buffer; {SIZE_FORMS}"),
        (
            {"all_reduce_fusion": False, "fusion_bytes": "2MB"},
            "all_reduce_fusion=False is given together with fusion_bytes='2MB', the size of what "
            "travels together; leave one of them out",
        ),
        (
            {"collective_optimization": "yes"},
            "collective_optimization='yes' is neither True nor False; give one of them",
        ),
        (
            {"collective_optimization": True, "communication_optimization": False},
            "collective_optimization=True and communication_optimization=False are two names of "
            "one option and differ; give one of them",
        ),
        (
            {"overlap_communication": True, "async_collective_ops": False},
            "overlap_communication=True and async_collective_ops=False are two names of one option "
            "and differ; give one of them",
        ),
        (
            {"async_collective_ops": 1},
            "async_collective_ops=1 is neither True nor False; give one of them",
        ),
        *(
            (
                {name: is_on, other: value},
                f"{name}={is_on} is given together with {other}={value!r}, {OPPOSITE}",
            )
            for name, is_on, other, value in [
                ("collective_optimization", True, "all_reduce_fusion", False),
                ("collective_optimization", True, "overlap_communication", False),
                ("communication_optimization", True, "async_collective_ops", False),
                ("communication_optimization", True, "communication_overlap_strategy", "none"),
                ("communication_optimization", False, "communication_overlap_strategy", "auto"),
                ("communication_optimization", False, "all_reduce_fusion", True),
                ("collective_optimization", False, "fusion_bytes", 100),
            ]
        ),
    ],
)
def test_values_that_are_refused(options: dict[str, object], text: str) -> None:
    for call in (lambda: ml.NumpyBackend(Mesh(data=2), **options), lambda: compiled_with(options)):
        with pytest.raises(ml.OptionError) as raised:
            call()
        assert str(raised.value) == text


def compiled_with(options: Mapping[str, object]) -> object:
    return ml.compile(ml.Linear(2), ml.NumpyBackend(), **options)


@pytest.mark.parametrize("name", ["all_reduce_fusion", "collective_optimization", "fusion_bytes"])
def test_functions_are_told_to_ask_their_backend(name: str) -> None:
    with pytest.raises(ml.OptionError, match=f"option '{name}' makes no sense for jit"):
        ml.jit(np.sin, **{name: True})
