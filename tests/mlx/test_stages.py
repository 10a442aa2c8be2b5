"""Plans of several stages: all devices in one process, and a process a device."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import mithril as ml
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import P
from mithril.plan import Plan
from mithril.plan.timetable import Run
from mithril.plugins import LaunchRequest
from mithril_mlx.launch import commands

from tests.mlx.jobs import launch, mpirun
from tests.mlx.test_launch import started
from tests.pipeline.graphs import entering, graphs
from tests.pipeline.models import classifier, compared, samples
from tests.pipeline.test_devices import MESHES
from tests.profiles import scaled
from tests.runtime.scripts import ROOT, lines_of, script

STAGES = str(ROOT / "tests/mlx/stages.py")
MEGATRON = {"*up.weight": P("tensor", None), "*down.weight": P(None, "tensor")}
PAIRS = [
    ("gpipe", 2, 1, 1, {}), ("gpipe", 4, 2, 2, {}), ("gpipe", 1, 2, 1, {"jit": True}),
    ("1f1b", 4, 1, 1, {"jit": True}), ("1f1b", 2, 2, 2, {}), ("1f1b", 1, 1, 2, {}),
    ("interleaved", 4, 1, 2, {}), ("interleaved", 2, 2, 1, {"memory_format": "channels_last"}),
    ("zb-h1", 2, 1, 2, {"jit": True}), ("zb-h1", 4, 2, 1, {}), ("zb-h1", 1, 2, 2, {}),
]  # fmt: skip
"""Every pair of schedule, stages, replicas, tensor parallelism and option that goes together."""


@pytest.mark.parametrize(("schedule", "stages", "data", "tensor", "options"), PAIRS)
def test_every_schedule_in_one_process(
    schedule: str, stages: int, data: int, tensor: int, options: dict
) -> None:
    model = classifier(stages, microbatch_size=2)
    if tensor > 1:
        model.shard(MEGATRON)
    backend = ml.MLXBackend(ml.Mesh(data=data, tensor=tensor, pipeline=stages), **options)
    compared(model, backend, samples(8 * data), spec=P("data"), pipeline_schedule=schedule)


@settings(max_examples=scaled(25), deadline=None)
@given(model=graphs(), mesh=st.sampled_from(MESHES), is_split=st.booleans())
def test_random_graphs_on_devices_of_one_process(
    model: ml.Model, mesh: ml.Mesh, is_split: bool
) -> None:
    spec, inputs = P("data") if is_split else None, entering(model)
    compared(model, ml.MLXBackend(mesh), inputs, spec=spec, differentiable=tuple(inputs))


def test_parameters_are_updated_where_they_lie() -> None:
    backend = ml.MLXBackend(ml.Mesh(data=2, pipeline=2))
    compiled = ml.compile(classifier(2, microbatch_size=2), backend)
    params, found = compiled.randomize_params(), []
    for _ in range(4):
        outputs, slopes = compiled.evaluate(params, samples(8), {"loss": np.float32(1.0)})
        params = {name: params[name] - 0.1 * slopes[name] for name in params}
        found.append(float(outputs["loss"]))
    assert found == sorted(found, reverse=True)
    assert compiled.recompiles == 1
    where = {tuple(s.device for s in x.addressable_shards) for x in params.values()}
    assert where == {("cpu in turn 0", "cpu in turn 2"), ("cpu in turn 1", "cpu in turn 3")}


# ------------------------------------------------------------------ when things are computed


def deep(layers: int, width: int) -> ml.Model:
    stage = ml.Model()
    stage += ml.Linear(width)
    for _ in range(layers):
        stage += ml.Tanh()
    return stage


def peak_of(schedule: str) -> int:
    """Return the bytes that a step takes besides what is there before it and stays after it."""
    model = ml.Model()
    stages = [deep(4, 32) for _ in range(4)]
    model |= ml.Pipeline(stages, microbatch_size=2)(input="input", output="y")
    model += ml.Mean()(input="y", output="loss")
    backend = ml.MLXBackend(ml.Mesh(pipeline=4), device="cpu")
    compiled = ml.compile(model, backend, pipeline_schedule=schedule)
    x = backend.array(np.ones((32, 500, 32), np.float32))
    params = compiled.randomize_params()

    def step() -> None:
        _, slopes = compiled.evaluate(params, {"input": x}, {"loss": np.float32(1.0)})
        mx.eval([slope.shards for slope in slopes.values()])
        mx.synchronize()

    step()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    step()
    return mx.get_peak_memory() - before


@pytest.mark.slow
def test_1f1b_takes_less_memory_than_gpipe() -> None:
    """Of 16 micro-batches gpipe keeps all on each of four devices, 1f1b four, three, two and one."""
    lean, rich = peak_of("1f1b"), peak_of("gpipe")
    assert lean < rich / 3, (lean, rich)


def test_stages_are_started_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ml.MLXBackend(ml.Mesh(pipeline=2))
    compiled = ml.compile(classifier(2, microbatch_size=2), backend)
    params = compiled.randomize_params()
    compiled.evaluate(params, samples(8), {"loss": np.float32(1.0)})
    begun: list[int] = []
    start = mx.async_eval
    monkeypatch.setattr(mx, "async_eval", lambda *x: begun.append(1) or start(*x))
    compiled.evaluate(params, samples(8), {"loss": np.float32(1.0)})
    assert len(begun) >= len(steps_of(compiled.plan))


def steps_of(plan: Plan) -> tuple:
    assert plan.only_stage is None
    assert any(isinstance(step, Run) for step in plan.timetable.steps)
    return plan.timetable.steps


# ------------------------------------------------------------------ a process a device


@pytest.mark.slow
@pytest.mark.parametrize(
    "meshes",
    [["pipeline=2"], ["pipeline=4"], ["data=2,pipeline=2", "pipeline=2,tensor=2"]],
    ids=str,
)
def test_a_ring_gives_what_one_device_gives(meshes: list[str]) -> None:
    """Messages between others than neighbours are passed on; so are collectives inside stages."""
    ranks = 2 if meshes == ["pipeline=2"] else 4
    check(ranks, launch(ranks, STAGES, *meshes), meshes)


@pytest.mark.slow
@pytest.mark.parametrize("meshes", [["data=2,pipeline=2", "tensor=2,pipeline=2"]])
def test_mpi_gives_what_one_device_gives(meshes: list[str]) -> None:
    done = mpirun(4, STAGES, *meshes)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("checked Mesh(") == 4 * len(meshes)
    assert "abort" not in done.stderr.lower()


def check(ranks: int, done: subprocess.CompletedProcess[str], meshes: list[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(ranks):
        told = lines_of(rank, done.stdout)
        assert [line for line in told if line.startswith("checked Mesh(")] == [
            f"checked Mesh({mesh.replace(',', ', ')})" for mesh in meshes
        ]
        elsewhere = (
            f"array bool[2, 3] lies on ranks {ranks - 1}, not on this one ({rank}); reshard it to "
            f"P() first"
        )
        assert (elsewhere in told) is (rank != ranks - 1)


PRICED = """
backend = ml.MLXBackend(ml.Mesh(tensor=2, pipeline=2))
up, down = ml.Linear(8), ml.Linear(8)
model = ml.Model()
model |= ml.Linear(8, device_id=0)(input="input", output="h")
model |= ml.Linear(8, device_id=2)(input="h", output="output")
compiled = ml.compile(model, backend, shapes={"input": (4, 8)}, inference=True)
stage = ml.Model()
stage |= ml.Linear(8, sharding={"weight": P("tensor", None)})(input="x", output="h")
stage |= ml.Linear(8, sharding={"weight": P(None, "tensor")})(input="h", output="y")
piped = ml.Model()
piped |= ml.Pipeline([stage, ml.Relu()])(input="input", output="output")
split = ml.compile(piped, backend, shapes={"input": (4, 8)}, inference=True)
if backend.engine.local_devices == (0,):
    print(compiled.explain())
    print(split.explain())
    for row in compiled.plan.collectives():
        print(f"{row.kind}, {row.bytes} bytes, {row.cause.seconds * 1e6:.1f} us")
"""


@pytest.mark.slow
def test_what_is_passed_on_is_priced_and_explained(tmp_path: Path) -> None:
    done = launch(4, script(tmp_path, PRICED))
    assert done.returncode == 0, done.stderr
    text = "\n".join(lines_of(0, done.stdout))
    assert "send, 128 bytes, 0.5 us" in text, "0.2 us to a neighbour"
    assert "emulated: 2 sends one after another, 128 bytes each" in text
    assert "emulated: 2 times send among 2 devices, 128 bytes" in text


WAITING = """
backend = ml.MLXBackend(ml.Mesh(data=2))
(rank,) = backend.engine.local_devices
type = TensorType((1 << 23,), DType.float32)  # more than sockets take without a receiver
x = mx.ones(type.shape)
done = Path(__file__).with_name("computed")
with backend.engine.communicator.use_comm_stream():
    if rank == 1:
        while not done.exists():
            time.sleep(0.01)
    came = backend.engine.communicator.relay(x if rank == 0 else None, type, (0, 1))
    if rank == 0:
        mx.eval(mx.exp(x) + 1)
        done.touch()
print("came", came.sum().item())
"""


@pytest.mark.slow
def test_a_rank_computes_while_a_message_waits(tmp_path: Path) -> None:
    """The receiver comes only when the sender has computed something else."""
    head = "import time\nfrom pathlib import Path\nimport mlx.core as mx\n"
    head += "from mithril.types import DType, TensorType\n"
    done = launch(2, script(tmp_path, head + WAITING))
    assert done.returncode == 0, done.stderr
    assert lines_of(1, done.stdout) == [f"came {float(1 << 23)}"]


GONE = """
backend = ml.MLXBackend(ml.Mesh(pipeline=2))
(rank,) = backend.engine.local_devices
model = ml.Model()
model |= ml.Pipeline([ml.Linear(8), ml.Linear(3)], microbatch_size=2)(input="input", output="y")
model += ml.Mean()(input="y", output="loss")
compiled = ml.compile(model, backend)
params = compiled.randomize_params()
for step in range(4):
    if rank == 1 and step == 2:
        raise ValueError("boom")
    try:
        outputs, _ = compiled.evaluate(params, {"input": np.ones((8, 4), "f")}, {"loss": 1.0})
        print("step", step, outputs["loss"].shape, flush=True)
    except ml.BackendError as error:
        print(error)
        sys.exit(7)
"""


@pytest.mark.slow
def test_a_stage_that_is_lost_is_told_of(tmp_path: Path) -> None:
    """Without a launcher, which would stop the other rank.

    Threads of MLX that wait for the lost rank may crash a process that ends by itself, on a machine
    with much to do; what it printed stands.
    """
    both = [
        started([sys.executable, script(tmp_path, GONE)], **dict(command.environment))
        for command in commands(LaunchRequest("", (), 2, folder=str(tmp_path)))
    ]
    told = [rank.communicate(timeout=60) for rank in both]
    assert told[0][0].splitlines()[:2] == ["step 0 ()", "step 1 ()"]
    assert "step 2" not in told[0][0]
    assert both[0].returncode in (7, -signal.SIGSEGV)
    assert "rank 0 has lost another process of the job while they exchanged data: " in told[0][0]
    assert "ValueError: boom" in told[1][1]
