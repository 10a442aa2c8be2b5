"""Activations in the host arena: same numbers, and less in the device's own memory."""

from __future__ import annotations

import gc
import importlib.util
import time
import tracemalloc
from pathlib import Path
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril.engine.host_arena import host_arena, lies_in_arena
from mithril.errors import BackendError, GraphError, OptionError, PlanError
from mithril.ir import Builder
from mithril.ir.rewrite import all_nodes
from mithril.ops.host import FromHost, ToHost, find_on_host, from_host, to_host, verify_host
from mithril.types import DType, TensorType

from tests.conformance.engines import BACKENDS, LOCKSTEP, opened
from tests.offload.models import MODELS, ROWS, WIDTH, batch, compile_model, take_gradients
from tests.profiles import quick
from tests.tolerances import TOLERANCE

ON = {"activation_offload": True, "offload_threshold": 1000}
RTOL, ATOL = TOLERANCE["float32"]


def held(compiled: ml.CompiledModel) -> int:
    return compiled.plan.memory().fullest.parts["host"]


# ------------------------------------------------------------------ numbers


@pytest.mark.parametrize("axes", [{}, {"data": 2}, {"data": 2, "tensor": 2}], ids=str)
@pytest.mark.parametrize("name", ["layers", "loop"])
@pytest.mark.parametrize("backend", ["numpy", *BACKENDS])
@quick(
    lambda backend, name, axes: not axes and backend not in ("numpy", LOCKSTEP) and name == "layers"
)
def test_gradients_are_those_without(backend: str, name: str, axes: dict[str, int]) -> None:
    on = opened(backend, **axes)
    plain = take_gradients(compile_model(name, on))
    compiled = compile_model(name, on, **ON)
    found = take_gradients(compiled)
    assert held(compiled) > 0
    for key, expected in plain.items():
        if backend == "jax":  # XLA fuses otherwise where a value is copied
            np.testing.assert_allclose(found[key], expected, rtol=RTOL, atol=ATOL)
        else:
            np.testing.assert_array_equal(found[key], expected)
    del compiled
    gc.collect()
    end = time.monotonic() + 10
    while host_arena("memory").held and time.monotonic() < end:
        time.sleep(0.01)  # devices whose results nobody read may not have come to their end
    assert host_arena("memory").held == 0


@pytest.mark.parametrize("backend", ["numpy", *BACKENDS])
@quick(lambda backend: backend == "numpy")
def test_stages_hand_activations_on_in_the_arena(backend: str) -> None:
    on = opened(backend, stage=2)
    plain, moved = compile_model("pipeline", on), compile_model("pipeline", on, **ON)
    if backend == "jax":
        with pytest.raises(OptionError, match="keeps nothing in the host arena from one program"):
            take_gradients(moved)
        return
    expected, found = take_gradients(plain), take_gradients(moved)
    for key in expected:
        np.testing.assert_allclose(found[key], expected[key], rtol=RTOL, atol=ATOL)
    before, after = plain.plan.memory().fullest, moved.plan.memory().fullest
    assert after.parts["host"] > 0
    assert after.peak <= before.peak + 64  # a few scalars are there at another moment
    if backend == "numpy":
        assert after.peak < before.peak
        assert all(np.array_equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", ["layers", "loop"])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize(
    "options", [{"memory_planning": "greedy"}, {"checkpointing": {"*_0": "all"}}], ids=str
)
@pytest.mark.slow
def test_it_goes_with_planned_memory_and_recomputation(
    options: dict[str, Any], backend: str, name: str
) -> None:
    on = opened(backend)
    if name == "loop" and "checkpointing" in options:
        options = {"checkpointing": "all"}
    expected = take_gradients(compile_model(name, on, **options))
    moved = compile_model(name, on, **options, **ON)
    for key, found in take_gradients(moved).items():
        np.testing.assert_array_equal(found, expected[key])
    assert held(moved) > 0


def test_collectives_are_the_plans_own() -> None:
    on = opened("numpy", data=2, tensor=2)
    plain, moved = compile_model("loop", on), compile_model("loop", on, **ON)
    expected, found = plain.plan_for(batch()), moved.plan_for(batch())
    assert found.list_issued() == expected.list_issued()


# ------------------------------------------------------------------ memory


def measure_numpy(compiled: ml.CompiledModel) -> int:
    take_gradients(compiled)
    tracemalloc.start()
    take_gradients(compiled)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("arena", ["memory", "file"])
@pytest.mark.parametrize("name", ["layers", "loop"])
@quick(lambda name, arena: name == "layers")
def test_what_numpy_allocates_falls_by_what_is_offloaded(name: str, arena: str) -> None:
    plain = compile_model(name, opened("numpy"))
    moved = compile_model(name, opened("numpy"), host_arena=arena, **ON)
    before, after = measure_numpy(plain), measure_numpy(moved)
    named = plain.plan.memory().peak - moved.plan.memory().peak
    assert before - after >= 0.95 * named
    if name == "layers":  # of a loop, NumPy has slices and their stack at one moment besides
        assert before - after <= 1.05 * named
    assert named > 0.5 * plain.plan.memory().peak
    assert host_arena(arena).most >= held(moved)
    host_arena(arena).reset_most()


@pytest.mark.parametrize("name", ["layers", "loop"])
@quick(lambda name: name == "layers")
def test_what_torch_allocates_falls_by_what_is_offloaded(name: str) -> None:
    pytest.importorskip("mithril_torch")

    from mithril_torch.executors.pool.allocations import count_allocations

    def measure(compiled: ml.CompiledModel) -> int:
        take_gradients(compiled)
        with count_allocations("cpu", []) as peak:
            take_gradients(compiled)
        return peak[0]

    on = opened("torch")
    plain, moved = compile_model(name, on), compile_model(name, on, **ON)
    before, after = measure(plain), measure(moved)
    named = plain.plan.memory().peak - moved.plan.memory().peak
    assert before - after == pytest.approx(named, rel=0.05)


@pytest.mark.slow
def test_what_xla_allocates_falls_by_what_is_offloaded() -> None:
    pytest.importorskip("mithril_jax")
    on = opened("jax")

    def measure(compiled: ml.CompiledModel) -> int:
        compiled.plan_for(batch())
        program = compiled.plan.stages[0].program
        shapes = [x.type for x in program.graph.inputs]
        executable = on.engine.lower(program)
        zeros = [np.zeros(type.shape, type.dtype.numpy) for type in shapes]
        return int(executable.memory(zeros).temp_size_in_bytes)

    plain, moved = compile_model("deep", on), compile_model("deep", on, **ON)
    fallen = measure(plain) - measure(moved)
    assert fallen >= 0.95 * (plain.plan.memory().peak - moved.plan.memory().peak) > 0


@pytest.mark.slow
def test_what_mlx_holds_falls_by_what_is_offloaded() -> None:
    pytest.importorskip("mithril_mlx")
    import mlx.core as mx

    def measure(compiled: ml.CompiledModel) -> int:
        take_gradients(compiled)
        gc.collect()
        mx.reset_peak_memory()
        take_gradients(compiled)
        return int(mx.get_peak_memory())

    on = opened("mlx")
    plain, moved = compile_model("layers", on), compile_model("layers", on, **ON)
    fallen = measure(plain) - measure(moved)
    assert fallen >= 0.95 * (plain.plan.memory().peak - moved.plan.memory().peak) > 0


def test_a_threshold_chooses_by_elements() -> None:
    on = opened("numpy")
    large = compile_model("loop", on, activation_offload=True, offload_threshold=ROWS * WIDTH)
    large.plan_for(batch())
    sizes = [
        node.outputs[0].type.size
        for node in all_nodes(large.plan.stages[0].program.graph)
        if isinstance(node.op, ToHost)
    ]
    assert set(sizes) == {ROWS * 2 * WIDTH}


# ------------------------------------------------------------------ spills


@pytest.mark.slow
def test_spills_go_away_across_the_peak() -> None:
    on = opened("numpy")
    plain = compile_model("layers", on)
    moved = compile_model("layers", on, spill_to_host=True, spill_threshold_mb=0.1)
    for key, expected in take_gradients(plain).items():
        np.testing.assert_array_equal(take_gradients(moved)[key], expected)
    before, after = measure_numpy(plain), measure_numpy(moved)
    named = plain.plan.memory().peak - moved.plan.memory().peak
    assert named > 0
    assert before - after == pytest.approx(named, rel=0.05)


@pytest.mark.skipif(importlib.util.find_spec("mithril_mlx") is None, reason="is not installed")
def test_views_that_are_made_after_a_spill_stay_where_they_are() -> None:
    """A part of a gradient is a view, whose place in the mesh is known later than the gradient."""
    made = ml.Model()
    made |= ml.Linear(32, name="up")(input="x", output="h")
    made += ml.Gelu(name="act")(output="a")
    made += ml.Linear(8, name="down")(output="y")
    made += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    rng = np.random.default_rng(0)
    data = {name: rng.standard_normal((32, 8)).astype(np.float32) for name in "xt"}
    options = {"auto_partition": True, "spill_to_host": True, "spill_threshold_mb": 1e-4, "zero": 3}
    losses = []
    for backend, given in (
        (ml.NumpyBackend(), {}),
        (ml.MLXBackend(ml.Mesh(data=2)), options),
    ):
        spec = ml.P("data") if given else None
        shapes = {name: ml.TensorSpec(x.shape, sharding=spec) for name, x in data.items()}
        step = ml.train_step(made, backend, ml.optim.sgd(0.1), shapes=shapes, **given)
        state = step.init(seed=0)
        assert bool(given) == any(
            isinstance(n.op, ToHost) for n in all_nodes(step.plan.only_stage.program.graph)
        )
        found = []
        for _ in range(3):
            state, metrics = step(state, data)
            found.append(metrics["loss"].item())
        losses.append(found)
    np.testing.assert_allclose(losses[1], losses[0], RTOL, ATOL)


def test_nothing_is_spilled_that_is_small() -> None:
    moved = compile_model("layers", opened("numpy"), spill_to_host=True)
    moved.plan_for(batch())
    assert held(moved) == 0


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"activation_offload": 1}, "activation_offload=1 is neither True nor False"),
        ({"activation_offload": True, "offload_threshold": -1}, "offload_threshold=-1 is no number of elements; give a finite number of 0 or more"),
        ({"activation_offload": True, "offload_threshold": "1MB"}, "offload_threshold='1MB' is no number of elements"),
        ({"offload_threshold": 5}, "offload_threshold=5 has no effect without activation_offload=True; give that, too, or leave it out"),
        ({"spill_threshold_mb": 5}, "spill_threshold_mb=5 has no effect without spill_to_host=True"),
        ({"spill_to_host": True, "spill_threshold_mb": float("nan")}, "spill_threshold_mb=nan is no number of MiB"),
        ({"activation_offload": True, "inference": True}, "activation_offload=True is given together with inference=True, where nothing is kept for a backward; leave one out, or use spill_to_host=True"),
        ({"activation_offload": True, "host_arena": "disk"}, "host_arena='disk' is no place for a host arena; give one of 'memory', 'file'"),
        ({"host_arena": "file"}, "host_arena='file' has no effect where nothing is offloaded; give activation_offload=True or spill_to_host=True, too, or leave it out"),
    ],
)  # fmt: skip
def test_bad_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError) as caught:
        compile_model("layers", opened("numpy"), **options)
    assert text in str(caught.value)


def test_offload_of_nothing_is_refused() -> None:
    compiled = compile_model("layers", opened("numpy"), activation_offload=True)
    with pytest.raises(PlanError) as caught:
        take_gradients(compiled)
    assert str(caught.value) == (
        "activation_offload finds nothing to offload: no activation that the backward needs has "
        "more than offload_threshold=1000000 elements on a device; give a smaller "
        "offload_threshold, or leave it out"
    )
    compiled.evaluate(compiled.randomize_params(seed=0), batch(), seed=3)  # there is no backward


def test_compilers_of_whole_programs_are_refused() -> None:
    pytest.importorskip("mithril_torch")
    compiled = compile_model("layers", ml.TorchBackend(device="cpu", jit=True), **ON)
    with pytest.raises(OptionError, match="cannot copy to the host arena; leave out"):
        take_gradients(compiled)
    pytest.importorskip("mithril_jax")
    on = ml.JaxBackend(ml.Mesh(data=2), pjit_lowering_strategy="gspmd")
    with pytest.raises(OptionError, match="by which XLA places copies by itself and none go to"):
        take_gradients(compile_model("layers", on, **ON))


def test_a_file_without_mithril_has_no_arena(tmp_path: Path) -> None:
    pytest.importorskip("mithril_torch")
    compiled = compile_model("layers", opened("torch"), **ON)
    compiled.plan_for(batch())
    with pytest.raises(BackendError, match="which a file without Mithril does not have; leave out"):
        compiled.eject(tmp_path / "step.py", gradients=True)


def test_functions_have_no_forward_to_offload() -> None:
    with pytest.raises(OptionError, match="only a model has a forward and a backward"):
        ml.jit(lambda x: x, activation_offload=True)


# ------------------------------------------------------------------ the ops


def test_the_ops_are_each_others_gradients() -> None:
    on = opened("numpy", data=2)

    def double(x: Any) -> Any:
        return (from_host(to_host(x * 3.0)) * 2.0).sum()

    x = on.array(np.ones((4, 2), np.float32), sharding=ml.P("data"))
    gradient = ml.jit(ml.grad(double))(x)
    np.testing.assert_array_equal(gradient.numpy(), np.full((4, 2), 6.0))
    assert gradient.sharding == x.sharding


def test_nobody_computes_with_what_lies_in_the_arena() -> None:
    builder = Builder()
    x = builder.input(TensorType((3,), DType.float32), "x")
    graph = builder.build({"y": to_host(x) + 1.0})
    with pytest.raises(GraphError) as caught:
        verify_host(graph)
    assert "which lies in the host arena; bring it back with from_host before" in str(caught.value)


def test_stacks_of_loops_lie_in_the_arena() -> None:
    compiled = compile_model("loop", opened("numpy"), **ON)
    compiled.plan_for(batch())
    graph = compiled.plan.stages[0].program.graph
    stacks = [v for v in find_on_host(graph) if len(v.type.shape) == 3]
    assert len(stacks) >= 2
    back = [node for node in all_nodes(graph) if isinstance(node.op, FromHost)]
    assert all(len(node.inputs) == 2 for node in back)  # nothing comes back too early


# ------------------------------------------------------------------ the arena


@pytest.mark.slow
@pytest.mark.parametrize("where", ["memory", "file"])
def test_blocks_are_reused_and_freed(where: str) -> None:
    arena = host_arena(where)
    start = arena.held
    rng = np.random.default_rng(0)
    kept: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for number in range(300):
        x = rng.integers(0, 255, rng.integers(0, 200_000), np.uint8)
        kept[number] = x, arena.hold(x)
        if number % 3:
            del kept[int(rng.choice(list(kept)))]
    assert all(np.array_equal(x, copy) and lies_in_arena(copy) for x, copy in kept.values())
    part = kept[max(kept)][1][10:20]
    wanted = kept[max(kept)][0][10:20]
    kept.clear()
    assert arena.hold(np.zeros(150_000)).sum() == 0
    np.testing.assert_array_equal(part, wanted)  # a view keeps its block
    del part
    gc.collect()
    assert arena.held == start
    assert start or arena.segments == 0


@pytest.mark.parametrize("order", ["C", "F"])
def test_copies_keep_the_order_of_elements(order: Any) -> None:
    x = np.asarray(np.arange(24.0).reshape(2, 3, 4), order=order)
    copy = host_arena("memory").hold(x)
    assert copy.strides == x.strides
    np.testing.assert_array_equal(copy, x)


@pytest.mark.parametrize("name", MODELS)
@quick(lambda name: name == "pipeline")
def test_models_of_these_tests_keep_activations(name: str) -> None:
    axes = {"stage": 2} if name == "pipeline" else {}
    compiled = compile_model(name, opened("numpy", **axes))
    compiled.plan_for(batch())
    assert compiled.plan.memory().fullest.parts["activations"] > 0
