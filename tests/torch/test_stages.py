"""Plans of several stages on PyTorch: every rank does what the timetable has for it, no more."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mithril import P
from mithril.engine.shards import trim_padding
from mithril.errors import BackendError
from mithril.ir import Cause
from mithril.mesh import Mesh, Sharding
from mithril.plan import Plan
from mithril.plan.timetable import Run, Transfer
from mithril.types import DType, TensorType
from mithril_torch.executors.observed import match_plan

from tests.pipeline.graphs import entering, graphs
from tests.pipeline.models import FEATURES, classifier, compared, samples
from tests.profiles import quick, scaled
from tests.tolerances import TOLERANCE
from tests.torch.threads import Ran, run_in_threads

SCHEDULES = ["gpipe", "1f1b", "interleaved", "zb-h1"]
MEGATRON = {"*up.weight": P("tensor", None), "*down.weight": P(None, "tensor")}


def opened(mesh: Mesh, **options: Any) -> ml.Backend:
    return ml.TorchBackend(mesh, device="cpu", **options)


# Every two of: schedule, stages, replicas and parts of a stage.
@quick(lambda stages, data, tensor: stages * data * tensor <= 4)
@pytest.mark.parametrize(
    ("schedule", "stages", "data", "tensor"),
    [
        ("gpipe", 1, 2, 2),
        ("gpipe", 2, 1, 1),
        ("gpipe", 4, 2, 1),
        ("1f1b", 1, 1, 2),
        ("1f1b", 2, 2, 1),
        ("1f1b", 4, 1, 2),
        ("interleaved", 1, 2, 1),
        ("interleaved", 2, 1, 2),
        ("interleaved", 4, 1, 1),
        ("zb-h1", 1, 1, 2),
        ("zb-h1", 2, 2, 2),
        ("zb-h1", 4, 1, 1),
    ],
)
def test_every_schedule_equals_one_device(
    schedule: str, stages: int, data: int, tensor: int
) -> None:
    model = classifier(stages, microbatch_size=2)
    if tensor > 1:
        model.shard(MEGATRON)
    backend = opened(Mesh(data=data, tensor=tensor, pipeline=stages))
    compared(model, backend, samples(8 * data), spec=P("data"), pipeline_schedule=schedule)


@pytest.mark.parametrize("batch", [5, 6, 7])
def test_a_ragged_last_microbatch(batch: int) -> None:
    model = classifier(2, microbatch_size=2)
    compared(model, opened(Mesh(data=2, pipeline=2)), samples(batch), spec=P("data"))


def test_the_same_program_again_and_again() -> None:
    """Messages of one run are not taken for those of the next."""
    backend = opened(Mesh(pipeline=2))
    compiled = ml.compile(classifier(2, microbatch_size=1), backend)
    params, inputs = compiled.randomize_params(), samples(6)
    first = compiled.evaluate(params, inputs, {"loss": 1.0})
    for factor in (2.0, 3.0, 1.0):
        outputs, gradients = compiled.evaluate(params, inputs, {"loss": factor})
        assert outputs["loss"].item() == first[0]["loss"].item()
        for name, gradient in gradients.items():
            expected, (rtol, atol) = factor * first[1][name].numpy(), TOLERANCE["float32"]
            np.testing.assert_allclose(gradient.numpy(), expected, rtol, atol)


def test_training_with_parameters_on_parts_of_the_mesh() -> None:
    backend = opened(Mesh(data=2, pipeline=2))
    model, inputs = classifier(2, microbatch_size=2), samples(8)
    compiled, alone = ml.compile(model, backend), ml.compile(model, ml.NumpyBackend())
    params, expected = compiled.randomize_params(), alone.randomize_params()
    for _ in range(3):
        found, slopes = compiled.evaluate(params, inputs, {"loss": 1.0})
        params = {name: x - 0.5 * slopes[name] for name, x in params.items()}
        wanted, own = alone.evaluate(expected, inputs, {"loss": 1.0})
        expected = {name: x - 0.5 * own[name] for name, x in expected.items()}
        assert found["loss"].item() == pytest.approx(wanted["loss"].item(), rel=1e-4)
    on = {name: x.sharding.mesh.flat for name, x in params.items()}
    assert set(on.values()) == {(0, 2), (1, 3)}
    first, second = (next(n for n, ranks in on.items() if r in ranks) for r in (0, 1))
    both = (params[first].sum() + params[second].sum()).item()
    wanted = params[first].numpy().sum() + params[second].numpy().sum()
    assert both == pytest.approx(wanted, rel=1e-4)
    assert [shard.device for shard in params[second].addressable_shards] == ["worker 1", "worker 3"]


@settings(max_examples=scaled(10), suppress_health_check=[HealthCheck.too_slow])
@given(model=graphs(), is_split=st.booleans())
def test_random_graphs_on_random_devices(model: ml.Model, is_split: bool) -> None:
    spec = P("data") if is_split else None
    compared(model, opened(Mesh(data=2)), entering(model), spec=spec)


def test_a_layer_that_two_stages_share() -> None:
    shared = ml.Linear(FEATURES, name="shared")
    model = ml.Model()
    model |= shared(input="input", output="h")
    model |= ml.Relu(name="middle")(input="h", output="r")
    model |= shared(input="r", output="output")
    for pattern, stage in (("shared", 0), ("middle", 1), ("shared_1", 1)):
        model.stage(pattern, stage)
    inputs = {"input": samples(8)["input"]}
    options = ml.PipelineOptions(microbatch_size=2)
    compared(model, opened(Mesh(pipeline=2)), inputs, pipeline=options)


def test_all_devices_in_turn() -> None:
    backend = opened(Mesh(data=2, pipeline=2), executor="lockstep")
    compared(classifier(2, microbatch_size=2), backend, samples(8), spec=P("data"))
    assert backend.engine.part(Mesh(data=2, pipeline=2).part({"pipeline": 1})).devices == (
        "cpu in turn 1",
        "cpu in turn 3",
    )


# ---------------------------------------------------------------- moves

WAYS = {
    "to one": (P("a", "b"), {"a": 1, "b": 0}, P()),
    "from one": (P(), {}, P("a")),
    "to a column": (P("a"), {"b": 1}, P(None, "a")),
    "uneven to a row": (P(("a", "b")), {"a": 0}, P(None, "b")),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "uint16", "int64"])
def test_a_move_from_some_devices_to_others(dtype: str, way: str) -> None:
    check_move(opened(Mesh(a=2, b=2)), dtype, way)


def test_a_move_where_all_devices_are_here() -> None:
    for way in WAYS:
        check_move(opened(Mesh(a=2, b=2), executor="lockstep"), "bfloat16", way)


def check_move(backend: ml.Backend, dtype: str, way: str) -> None:
    whole, (spec, at, wanted) = Mesh(a=2, b=2), WAYS[way]
    source = Sharding.of(whole if at else whole.part({"a": 0, "b": 1}), spec, 2)
    target = Sharding.of(whole.part(at) if at else whole, wanted, 2)
    type = TensorType((5, 3), DType(dtype))
    host = np.arange(15).reshape(5, 3).astype(type.dtype.numpy)
    cause = Cause("x", "here", "there", "y")
    part = backend.engine_on(source.mesh)
    shards = part.put(type, source, lambda box: host[box])
    moved = backend.engine.move(shards, Transfer(type, source, target, cause))
    for device in range(target.mesh.size):
        held = backend.engine_on(target.mesh).shard(moved, target, device)
        box = target.box(device, type.shape)
        assert held.shape == target.local_shape(type.shape)
        np.testing.assert_array_equal(trim_padding(held, box), host[box])


# ---------------------------------------------------------------- the order of things


def classes(stages: int, schedule: str, batch: int = 8) -> tuple[Plan, dict[str, np.ndarray]]:
    """Return the plan of a pipeline of one device a stage, and what goes in."""
    compiled = ml.compile(
        classifier(stages, microbatch_size=1),
        ml.NumpyBackend(Mesh(pipeline=stages)),
        pipeline_schedule=schedule,
    )
    inputs = samples(batch)
    params = compiled.randomize_params(1)
    outputs, _ = compiled.evaluate(params, inputs, {"loss": 1.0})
    assert outputs["loss"].shape == ()
    arrays = {name: x.numpy() for name, x in params.items()}
    return compiled.plan, {**arrays, **inputs, "output_gradients.loss": np.float32(1.0)}


def in_threads(stages: int, schedule: str, batch: int = 8, *, early: bool = True) -> Ran:
    plan, inputs = classes(stages, schedule, batch)
    return run_in_threads(plan, inputs, early=early)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ranks_keep_to_the_table_of_the_schedule(schedule: str, stages: int, early: bool) -> None:
    plan, inputs = classes(stages, schedule)
    ran = run_in_threads(plan, inputs, early=early)
    table = plan.timetable
    assert table is not None and table.schedule is not None
    for rank, steps in enumerate(ran.steps):
        done = [text.partition(", ")[0] for text in steps if ", stage" in text]
        planned = [
            str(step.action)
            for step in table.steps
            if isinstance(step, Run) and step.action and rank in plan.stages[step.stage].devices
        ]
        assert done == planned
        row = [str(action) for action in table.schedule.rows[rank]]
        assert list(dict.fromkeys(done)) == [text for text in row if text in done]


def test_a_stage_computes_while_the_next_message_comes() -> None:
    """What a stage needs next is asked for before it runs, not after."""
    plan, inputs = classes(2, "1f1b")
    ran = run_in_threads(plan, inputs)
    steps = ran.steps[1]
    asked = [n for n, text in enumerate(steps) if text.startswith("send of 0F1")]
    assert asked[0] < next(n for n, text in enumerate(steps) if text.startswith("1F0"))


def test_the_result_of_ranks_in_threads_is_that_of_one_device() -> None:
    plan, inputs = classes(4, "zb-h1")
    found = run_in_threads(plan, inputs).outputs
    compiled = ml.compile(classifier(4, microbatch_size=1), ml.NumpyBackend())
    params = {name: inputs[name] for name in compiled.parameters}
    given = {name: inputs[name] for name in compiled.inputs}
    outputs, gradients = compiled.evaluate(
        {name: compiled.backend.array(x) for name, x in params.items()}, given, {"loss": 1.0}
    )
    expected = dict(outputs) | {f"gradients.{name}": x for name, x in gradients.items()}
    for name, parts in found.items():
        (own,) = (part for part in parts if part is not None)
        np.testing.assert_allclose(own, expected[name].numpy(), *TOLERANCE["float32"])


@pytest.mark.slow
def test_fewer_activations_are_alive_in_1f1b_than_in_gpipe() -> None:
    """The first of 4 stages has 4 micro-batches under way instead of all 16."""
    gpipe, one = (in_threads(4, schedule, 64).most for schedule in ("gpipe", "1f1b"))
    assert one[0] < 0.5 * gpipe[0]
    assert one[3] < 0.3 * gpipe[3]


def test_sums_over_microbatches_grow_in_place() -> None:
    backend = opened(Mesh(pipeline=2))
    compiled = ml.compile(classifier(2, microbatch_size=1), backend)
    compiled.evaluate(compiled.randomize_params(), samples(4), {"loss": 1.0})
    text = compiled.code()
    assert "_accumulator.addmm_(" in text and "_accumulator.add_(" in text


# ---------------------------------------------------------------- what was carried out


def test_what_differs_from_the_plan_is_an_error() -> None:
    compiled = ml.compile(classifier(2, microbatch_size=1), ml.NumpyBackend(Mesh(pipeline=2)))
    plan = compiled.plan_for(samples(2), gradients=False)
    first, second = (
        position
        for position, step in enumerate(plan.timetable.steps)
        if not isinstance(step, Run) and plan.timetable.transfers[step.transfer].bytes
    )
    size = 4 * FEATURES

    def row(op: str, peer: int, tag: int, bytes: int = size) -> dict[str, Any]:
        return {
            "op": op, "peer": peer, "tag": tag, "bytes": bytes, "axes": ["sends"], "ranks": [0, 1],
            "partners": 2,
        }  # fmt: skip

    sent = [row("send", 1, first), row("send", 1, second)]
    got = [row("recv_", 0, second), row("recv_", 0, first)]
    wanted = [("send", (), size)] * 2
    assert wanted == list(plan.list_issued())
    for seen in ({0: sent, 1: got}, {1: got}):
        assert [told.row for told in match_plan(plan, seen)] == wanted
    for seen, text in (
        ({0: sent[::-1], 1: got}, "rank 0 carried out .* where the plan has .*; this is a fault"),
        ({0: sent, 1: got[:1]}, "rank 1 carried out nothing more where"),
        ({0: sent[:1], 1: got}, "rank 0 carried out nothing more where"),
        ({0: [*sent, sent[0]], 1: got}, "rank 0 .* where the plan has nothing more"),
        ({0: [sent[0], row("send", 1, second, 8)], 1: got}, "rank 0 carried out"),
    ):
        with pytest.raises(BackendError, match=text):
            list(match_plan(plan, seen))


@settings(max_examples=scaled(25))
@given(model=graphs())
def test_random_graphs_leave_no_rank_waiting(model: ml.Model) -> None:
    """Whoever sends waits until it is asked: no order of messages may depend on room for them."""
    compiled = ml.compile(model, ml.NumpyBackend(Mesh(data=2)))
    params, inputs = compiled.randomize_params(1), entering(model)
    outputs = compiled.evaluate(params, inputs, seed=0)
    slopes = {name: np.ones(x.shape, np.float32) for name, x in outputs.items()}
    outputs, gradients = compiled.evaluate(params, inputs, slopes, seed=0)
    if compiled.plan.only_stage is not None:
        return
    arrays = {**{n: x.numpy() for n, x in params.items()}, **inputs, "seed": np.uint32(0)}
    arrays |= {f"output_gradients.{name}": x for name, x in slopes.items()}
    found = run_in_threads(compiled.plan, arrays).outputs
    expected = dict(outputs) | {f"gradients.{name}": x for name, x in gradients.items()}
    for name, x in expected.items():
        own = next(part for part in found[name] if part is not None)
        np.testing.assert_allclose(own, x.numpy(), *TOLERANCE["float32"], err_msg=name)
