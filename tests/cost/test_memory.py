"""What a plan says of memory: parts, rows of equal devices, schedules, donation, remedies."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.cost import SIMULATED, predict_memory
from mithril.cost.memory import PARTS, PlanMemory
from mithril.cost.remedies import find_remedies
from mithril.ir import Builder, Value
from mithril.mesh import Sharding
from mithril.ops.dynamic_slicing import DynamicUpdateSlice
from mithril.plan import Execution, Plan, Port, Program
from mithril.plan.serialize import plan_from_json, plan_to_json
from mithril.runtime import backend as backends
from mithril.types import DType, TensorType

WIDTH, BATCH, MATRIX = 16, 512, 16 * 16 * 4


def mlp(layers: int = 4) -> ml.Model:
    """Return linear layers of 16 x 16 with gelu between them, and a loss."""
    model = ml.Model()
    for number in range(layers):
        given: dict[str, Any] = {"input": "x"} if number == 0 else {}
        model += ml.Linear(WIDTH, name=f"layer{number}")(**given)
        model += ml.Gelu(name=f"gelu{number}")
    model += ml.Linear(1, name="last")(output="y")
    return model


def test_memory_is_predicted_once_for_plans_that_differ_in_notes() -> None:
    compiled = ml.compile(mlp(), ml.NumpyBackend(), shapes={"x": (BATCH, WIDTH)})
    plan = compiled.plan
    known = plan.memory()
    assert replace(plan, notes=("read me",)).memory() is known
    assert plan.memory(donated=["x"]) is not known
    assert plan.memory(donated=["x"]) is plan.memory(donated={"x"})
    assert plan.memory("h100-sxm").capacity is not None
    without = replace(plan, parameters=())
    assert without.memory().fullest.parts["parameters"] == 0 < known.fullest.parts["parameters"]
    assert plan.memory() == known


def plan_of(mesh: ml.Mesh, model: ml.Model | None = None, **options: Any) -> Plan:
    spec = P("data") if "data" in mesh.names else P()
    shapes = {"x": ml.TensorSpec((BATCH, WIDTH), "float32", spec)}
    return ml.compile(model or mlp(), ml.NumpyBackend(mesh), shapes=shapes, **options).plan


# ------------------------------------------------------------------ parts


def test_parts_are_all_that_is_there_at_the_peak() -> None:
    plan = plan_of(ml.Mesh(data=2))
    memory = plan.memory()
    row = memory.of(1)
    assert set(row.parts) == set(PARTS)
    assert sum(row.parts.values()) == row.peak == memory.peak
    assert sum(holding.bytes for holding in row.alive) == row.peak
    sizes = [holding.bytes for holding in row.alive]
    assert sizes == sorted(sizes, reverse=True)
    held = {port.name: port for port in plan.inputs}
    local = sum(held[name].type.nbytes for name in plan.parameters)
    assert row.parts["parameters"] == local
    assert row.parts["inputs"] == BATCH // 2 * (WIDTH + 1) * 4
    assert row.parts["optimizer"] == 0
    assert max(row.curve) <= row.peak
    assert row.curve[-1] == local * 2 + row.parts["inputs"] + BATCH // 2 * 4  # gradients, output


def test_activations_are_what_the_backward_needs_of_the_forward() -> None:
    forward = plan_of(ml.Mesh(), inference=True).memory().of(0)
    training = plan_of(ml.Mesh()).memory().of(0)
    assert forward.parts["activations"] == 0
    # of each layer what goes into its gelu and what comes out, at the end of the forward
    kept = [h for h in training.alive if h.kind == "activations"]
    assert len(kept) == 8
    assert all(holding.bytes == BATCH * WIDTH * 4 for holding in kept)


def test_gradients_lie_in_memory_at_the_end() -> None:
    row = plan_of(ml.Mesh(), mlp(1)).memory().of(0)
    assert row.parts["gradients"] > 0
    assert "gelu_gradient" in row.at or "einsum" in row.at


def test_text_says_peak_place_parts_and_the_largest() -> None:
    text = str(plan_of(ml.Mesh(data=2)).memory())
    assert re.match(
        r"memory: [\d.]+ KiB on a device; of devices of profile 'simulated' it is", text
    )
    assert re.search(r"devices 0-1: [\d.]+ KiB at most, at einsum in last", text)
    assert re.search(r"parameters [\d.]+ KiB, .*activations [\d.]+ KiB", text)
    assert re.search(r"16 KiB  activations  gelu3 \(gelu3\)", text)


def test_by_device_has_a_dict_for_each() -> None:
    memory = plan_of(ml.Mesh(data=2)).memory()
    first, second = memory.by_device()
    assert first == second == {"total": memory.peak, **memory.rows[0].parts}


def test_a_device_that_does_not_exist() -> None:
    with pytest.raises(IndexError, match="plan has no device 2; it has 2; give one of 0 to 1"):
        plan_of(ml.Mesh(data=2)).memory().of(2)


def test_a_plan_from_a_file_says_the_same() -> None:
    plan = plan_of(ml.Mesh(data=2))
    again = plan_from_json(plan_to_json(plan))
    assert again.parameters == plan.parameters
    assert predict_memory(again, SIMULATED).rows == predict_memory(plan, SIMULATED).rows


# ------------------------------------------------------------------ strategies


def test_what_rests_split_takes_less() -> None:
    whole = plan_of(ml.Mesh(data=4)).memory().of(0).parts["parameters"]
    resting = plan_of(ml.Mesh(data=4), at_rest=P("data")).memory().of(0).parts["parameters"]
    assert resting < 0.4 * whole


def pipeline_plan(schedule: str, count: int = 8, stages: int = 4, hidden: int = 0) -> Plan:
    model = ml.Model()
    parts = [ml.FeedForward(hidden) if hidden else ml.Linear(WIDTH) for _ in range(stages)]
    model |= ml.Pipeline(parts, microbatch_size=BATCH // count)(input="x", output="y")
    return plan_of(ml.Mesh(pipeline=stages), model, pipeline_schedule=schedule)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_the_parts_of_a_pipeline_are_the_whole(schedule: str) -> None:
    for row in pipeline_plan(schedule).memory().rows:
        assert sum(row.parts.values()) == row.peak


def count_in_flight(plan: Plan, device: int) -> int:
    """Return how many micro-batches' activations a device holds at its peak."""
    row = plan.memory().of(device)
    return sum(holding.kind == "activations" for holding in row.alive)


def test_schedules_hold_as_many_microbatches_as_they_are_known_for() -> None:
    # The first stage reads its micro-batches where the batch lies.
    assert count_in_flight(pipeline_plan("gpipe"), 1) == 8
    assert count_in_flight(pipeline_plan("1f1b"), 1) == 3 + 1  # the next one has arrived


def test_accumulators_grow_in_place_where_the_engine_does_that() -> None:
    plan = pipeline_plan("1f1b")
    apart = predict_memory(plan, SIMULATED).of(0).peak
    growing = replace(SIMULATED, execution=Execution(adds_in_place=True))
    assert apart - predict_memory(plan, growing).of(0).peak >= MATRIX


def test_devices_that_do_the_same_share_a_row() -> None:
    memory = pipeline_plan("1f1b").memory()
    assert [row.devices for row in memory.rows] == [(0,), (1,), (2,), (3,)]
    assert len(plan_of(ml.Mesh(data=8, tensor=2)).memory().rows) == 1


def repeated(layers: int) -> ml.Model:
    model = ml.Model()
    block = ml.Model(name="block")
    block |= ml.Linear(WIDTH, name="up")(input="x", output="a")
    block |= ml.Gelu()(input="a", output="y")
    model |= ml.Repeat(block, layers, name="blocks")(input="x", output="y")
    return model


def test_thousands_of_devices_and_layers_are_gone_through_once() -> None:
    mesh = ml.Mesh(data=16, tensor=8, expert=32)
    spec = ml.TensorSpec((BATCH, WIDTH), "float32", P("data"))
    backend = ml.NumpyBackend(mesh)
    plan = ml.compile(repeated(96), backend, shapes={"x": spec}, at_rest=P("data")).plan
    started = time.process_time()
    memory = plan.memory()
    assert time.process_time() - started < 0.3
    assert [len(row.devices) for row in memory.rows] == [4096]
    assert len(memory.by_device()) == 4096


def test_stacks_of_a_loop_grow_with_its_length() -> None:
    def kept(layers: int) -> int:
        plan = plan_of(ml.Mesh(), repeated(layers))
        return plan.memory().of(0).parts["activations"]

    assert kept(20) - kept(10) == kept(30) - kept(20) > 0


# ------------------------------------------------------------------ donation


def test_a_cache_that_is_donated_is_written_where_it_lies() -> None:
    builder = Builder()
    cache = TensorType((1000, 8), DType.float32)
    x = builder.input(cache, "cache")
    part = builder.input(cache.with_shape((1, 8)), "part")
    start = builder.input(TensorType((), DType.int32), "at")
    (made,) = builder.apply(DynamicUpdateSlice((0, 1)), x, part, start, start)
    graph, mesh = builder.build({"cache": made}), ml.Mesh()

    def port(value: Value, name: str) -> Port:
        return Port(name, value.type, Sharding.replicated(mesh, value.type.rank))

    inputs = tuple(port(value, value.name) for value in graph.inputs)
    plan = Plan.of_program(mesh, Program(mesh, graph, inputs, (port(made.value, "cache"),)))
    kept, donated = (predict_memory(plan, SIMULATED, names).peak for names in ((), ("cache",)))
    assert kept - donated == cache.nbytes


def test_outputs_take_the_memory_of_donated_inputs_where_memory_is_laid_out() -> None:
    plan = plan_of(ml.Mesh(), mlp(2))
    xla = replace(SIMULATED, execution=Execution(fuses=True, lays_out=True))
    names = [name for name in plan.parameters if "weight" in name]
    kept, donated = (predict_memory(plan, xla, given).peak for given in ((), names))
    assert kept - donated >= 2 * MATRIX


# ------------------------------------------------------------------ too little of it


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give simulated devices little memory."""
    real = backends.find_hardware

    def limit(size: int) -> None:
        def find(*arguments: Any) -> Any:
            return replace(real(*arguments), memory_bytes=size)

        monkeypatch.setattr(backends, "find_hardware", find)

    return limit


def test_a_plan_that_does_not_fit_is_warned_of_with_numbers_and_remedies(small: Any) -> None:
    need = plan_of(ml.Mesh(data=4)).memory().peak
    small(need - 1)
    with pytest.warns(ml.MithrilWarning, match="plan needs .* KiB on device 0 at") as seen:
        plan = plan_of(ml.Mesh(data=4))
    (one,) = seen.list
    assert one.filename == __file__
    text = str(one.message)
    assert "and a device of profile 'simulated' has" in text
    assert "at_rest=ml.P('data') of the parameters saves" in text
    assert "compute_dtype='bfloat16' of ml.Precision saves" in text
    assert plan.memory().fits is False
    assert "does not fit into" in str(plan.memory())


def test_a_plan_that_fits_is_made_in_silence(small: Any) -> None:
    need = plan_of(ml.Mesh(data=4)).memory().peak
    small(need)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plan_of(ml.Mesh(data=4), strict_memory=True).memory().fits is True


def test_strict_memory_refuses(small: Any) -> None:
    small(1000)
    with pytest.raises(ml.PlanError, match=r"plan needs .* has 1000 B; .* saves"):
        plan_of(ml.Mesh(data=4), strict_memory=True)
    compiled = ml.compile(ml.Linear(100), ml.NumpyBackend(), strict_memory=True)
    with pytest.raises(ml.PlanError, match="plan needs"):
        compiled.evaluate(compiled.randomize_params(), {"input": np.ones((50, 50))})


def test_strict_memory_of_devices_of_unknown_memory_is_refused() -> None:
    message = "strict_memory=True has nothing to compare with: profile 'simulated' does not say"
    with pytest.raises(ml.PlanError, match=message):
        plan_of(ml.Mesh(data=4), strict_memory=True)


def test_strict_memory_is_a_flag() -> None:
    with pytest.raises(ml.OptionError, match="strict_memory"):
        plan_of(ml.Mesh(), strict_memory="yes")


def test_where_nothing_helps_the_message_says_so(small: Any) -> None:
    small(100)
    with pytest.raises(ml.PlanError, match="use smaller batches, or more devices"):
        ml.compile(
            ml.Linear(8, bias=False), ml.NumpyBackend(), shapes={"input": (2, 8)}, inference=True,
            strict_memory=True,
        )  # fmt: skip


def saved_by(plan: Plan, memory: PlanMemory, what: str) -> int:
    """Return what a remedy is said to save."""
    found = [r for r in find_remedies(plan, memory, SIMULATED) if what in r.what]
    assert found, what
    return found[0].saved


def test_remedies_save_what_they_say() -> None:
    mesh = ml.Mesh(data=4)
    plan = plan_of(mesh)
    memory = plan.memory()
    resting = plan_of(mesh, at_rest=P("data")).memory()
    assert saved_by(plan, memory, "at_rest") <= 1.1 * (memory.peak - resting.peak)
    half = plan_of(mesh, precision=ml.Precision(compute_dtype="bfloat16")).memory()
    assert memory.peak - half.peak > 0
    coarse, finer = (pipeline_plan("1f1b", count, hidden=256) for count in (4, 8))
    said = saved_by(coarse, coarse.memory(), "8 micro-batches in place of 4")
    assert said <= 1.5 * (coarse.memory().peak - finer.memory().peak)


def test_a_batch_that_lies_whole_along_an_axis_may_be_split() -> None:
    mesh = ml.Mesh(data=4, other=2)
    plan = plan_of(mesh)
    assert saved_by(plan, plan.memory(), "splitting the batch over 'other' by in_shardings") > 0


# ------------------------------------------------------------------ the guides' form


def test_memory_usage_is_that_of_the_plan_for_the_arrays() -> None:
    compiled = ml.compile(mlp(), ml.NumpyBackend(ml.Mesh(data=2)))
    params, inputs = compiled.randomize_params(), {"x": np.ones((BATCH, WIDTH), np.float32)}
    usage = compiled.get_memory_usage(params, inputs)
    assert usage == compiled.plan.memory().by_device()
    assert len(usage) == 2
    assert usage[0]["gradients"] == usage[0]["activations"] == 0
    training = compiled.get_memory_usage(params, inputs, {"y": np.ones((BATCH, 1), np.float32)})
    assert training[0]["total"] > usage[0]["total"]
    assert compiled.recompiles == 2
    compiled.evaluate(params, inputs)
    assert compiled.recompiles == 2


def test_memory_usage_refuses_what_is_not_the_models() -> None:
    compiled = ml.compile(mlp(), ml.NumpyBackend())
    with pytest.raises(ml.GraphError, match="model has no input 'z'"):
        compiled.get_memory_usage(compiled.randomize_params(), {"z": np.ones((BATCH, WIDTH))})
    with pytest.raises(ml.OptionError, match="get_memory_usage"):
        compiled.get_memory_usage(compiled.randomize_params(), {}, unit="GB")
