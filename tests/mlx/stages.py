"""What every rank of a job checks of plans with several stages; see test_stages.py.

usage: stages.py MESH… — a mesh as AXIS=SIZE,…; exits with 0 and says so if all is as on one device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from typing import Any

import mithril as ml
import numpy as np
from hypothesis import given, settings
from mithril import P
from mithril.engine.transport import Call, Transport
from mithril.plan import Plan, Stage
from mithril.plan.timetable import Run
from mithril.types import DType
from mithril_mlx.lazy import LazyExecutable

from tests.mlx.spmd import issued
from tests.offload.models import train_uneven_stages
from tests.pipeline.graphs import entering, graphs
from tests.pipeline.models import (
    block,
    classifier,
    compared,
    equal,
    followed,
    head,
    samples,
)
from tests.profiles import scaled

MEGATRON = {"*up.weight": P("tensor", None), "*down.weight": P(None, "tensor")}


def main(meshes: list[str]) -> None:
    for number, text in enumerate(meshes):
        mesh = ml.Mesh({name: int(n) for name, n in (a.split("=") for a in text.split(","))})
        for schedule in ("zb-h1",) if number else ("gpipe", "1f1b", "zb-h1"):
            check_pipeline(mesh, schedule)
        if not number:
            check_training(mesh)
        if mesh.sizes == {"data": 2, "pipeline": 2}:
            found, on = train_uneven_stages(ml.MLXBackend(mesh)), ml.NumpyBackend(mesh)
            np.testing.assert_allclose(found, train_uneven_stages(on), rtol=1e-4)
        check_loops_and_dropout(mesh)
        sys.stdout.write(f"checked {mesh}\n")  # in one piece: others write, too
    check_arrays(mesh.size)
    check_graphs(mesh.size)
    sys.stdout.write("checked placed layers\n")


def pipeline(mesh: ml.Mesh) -> ml.Model:
    model = classifier(mesh.sizes["pipeline"], microbatch_size=2)
    return model.shard(MEGATRON) or model if "tensor" in mesh.names else model


def arriving(mesh: ml.Mesh) -> P | None:
    return P("data") if "data" in mesh.names else None


def rank_of(backend: ml.Backend) -> int:
    (rank,) = backend.engine.local_devices
    return rank


def compared_here(
    model: ml.Model, backend: ml.Backend, batch: dict[str, np.ndarray], **options: Any
) -> ml.CompiledModel:
    """Compare with one device; this rank is told of what it takes part in."""
    return compared(model, backend, batch, device=rank_of(backend), **options)


# ------------------------------------------------------------------ what is carried out


@contextmanager
def run_here() -> Iterator[list[LazyExecutable]]:
    """Note the programs that this process runs."""
    ran: list[LazyExecutable] = []
    call = LazyExecutable.__call__

    def noted(self: LazyExecutable, *arguments: object) -> list:
        if self._is_stage:
            ran.append(self)
        return call(self, *arguments)

    LazyExecutable.__call__ = noted
    try:
        yield ran
    finally:
        LazyExecutable.__call__ = call


def check_pipeline(mesh: ml.Mesh, schedule: str) -> None:
    """Results are those of one device, and what is done is what the timetable says of this rank."""
    backend = ml.MLXBackend(mesh)
    model, batch = pipeline(mesh), samples(8 * mesh.sizes.get("data", 1))
    compiled = compared_here(model, backend, batch, spec=arriving(mesh), pipeline_schedule=schedule)
    params = compiled.randomize_params(1)
    given = {n: backend.array(x, sharding=arriving(mesh)) for n, x in batch.items()}
    with issued(backend) as calls, run_here() as ran:
        compiled.evaluate(params, given, {"loss": np.float32(1.0)})
    check_order(compiled.plan, ran, rank_of(backend))
    check_calls(backend, compiled.plan, calls)


def check_order(plan: Plan, ran: list[LazyExecutable], rank: int) -> None:
    """The programs run in the order of the table's row of this rank."""
    steps = [s for s in plan.timetable.steps if isinstance(s, Run)]
    mine = [s for s in steps if rank in plan.stages[s.stage].devices]
    assert len(ran) == len(mine)
    programs: dict[LazyExecutable, int] = {}
    for program, step in zip(ran, mine, strict=True):
        assert programs.setdefault(program, step.stage) == step.stage
    assert len(set(programs.values())) == len(programs), "each stage has a program of its own"
    done = list(dict.fromkeys(step.action for step in mine if step.action))
    number = plan.mesh.coordinates(rank)["pipeline"]
    row = plan.timetable.schedule.rows[number]
    assert done == [action for action in row if action in done]


def check_calls(backend: ml.Backend, plan: Plan, calls: list[Call]) -> None:
    """Calls are those of the timetable, and messages that are passed on for others."""
    rank, transport = rank_of(backend), backend.engine.transport
    expected: list[Call] = []
    for step in plan.timetable.steps:
        if isinstance(step, Run):
            expected += calls_inside(transport, plan.stages[step.stage], rank)
            continue
        transfer = plan.timetable.transfers[step.transfer]
        for piece in transfer.chunks:
            nbytes = piece.size * transfer.type.dtype.itemsize
            expected += sent_by(rank, transport, (piece.sender, piece.receiver), nbytes)
    assert calls == expected


def sent_by(rank: int, transport: Transport, way: tuple[int, int], nbytes: int) -> list[Call]:
    hops = transport.route(*way) if way[0] != way[1] else ()
    return [Call("send", nbytes, 2) for sender, _ in hops if sender == rank]


def calls_inside(transport: Transport, stage: Stage, rank: int) -> list[Call]:
    """Return what a rank issues in collectives of a stage, its own or not."""
    mesh, expected = stage.program.mesh, []
    for kind, axes, nbytes in stage.program.list_issued():
        count = mesh.product(axes)
        if transport.groups:
            expected += transport.calls(kind, nbytes, count) if rank in stage.devices else ()
            continue
        value = nbytes // count if kind == "all_gather" else nbytes
        for group in mesh.groups(axes):
            for way in permutations(map(mesh.in_whole, group), 2):
                expected += sent_by(rank, transport, way, value)
    return expected


# ------------------------------------------------------------------ models


def check_training(mesh: ml.Mesh) -> None:
    """Parameters are updated where they lie; all ranks read the loss."""
    found = losses(ml.MLXBackend(mesh), mesh)
    np.testing.assert_allclose(found, losses(ml.NumpyBackend(), mesh), rtol=1e-4)
    np.testing.assert_allclose(losses(ml.MLXBackend(mesh, jit=True), mesh), found, rtol=1e-4)


def losses(backend: ml.Backend, mesh: ml.Mesh) -> list[float]:
    compiled = ml.compile(pipeline(mesh), backend, pipeline_schedule="1f1b")
    params, found = compiled.randomize_params(2), []
    batch = samples(8)
    for _ in range(3):
        outputs, slopes = compiled.evaluate(params, batch, {"loss": np.float32(1.0)})
        params = {name: params[name] - 0.1 * slopes[name] for name in params}
        found.append(float(outputs["loss"]))
    norm = sum((x * x).sum() for x in params.values())
    return [*found, float(norm)]


def check_loops_and_dropout(mesh: ml.Mesh) -> None:
    first = ml.Model()
    first |= ml.Repeat(block(), 2)(input="x", output="h")
    first |= ml.Dropout(rate=0.5)(input="h", output="y")
    last = followed(block(), head())
    model = ml.Model()
    between = [block() for _ in range(mesh.sizes["pipeline"] - 2)]
    model |= ml.Pipeline([first, *between, last], microbatch_size=2)(
        input="input", targets="targets", output="loss"
    )
    if "tensor" in mesh.names:
        model.shard(MEGATRON)
    compared_here(model, ml.MLXBackend(mesh), samples(8), spec=arriving(mesh))


def check_graphs(size: int) -> None:
    """Layers on devices, drawn alike in every rank."""

    @settings(max_examples=scaled(4), derandomize=True, database=None, deadline=None)
    @given(model=graphs())
    def check(model: ml.Model) -> None:
        batch = entering(model)
        compared_here(model, ml.MLXBackend(ml.Mesh(data=size)), batch, differentiable=tuple(batch))

    check()


def check_arrays(size: int) -> None:
    """Arrays of a part are on its ranks only; every dtype travels; all can read them."""
    backend = ml.MLXBackend(ml.Mesh(data=size))
    rank, last = rank_of(backend), size - 1
    for dtype in ("float32", "bfloat16", "float16", "int32", "int8", "bool"):
        model = ml.Model()
        model |= ml.Transpose((1, 0), device_id=0)(input="input", output="h")
        model |= ml.Transpose((1, 0), device_id=last)(input="h", output="output")
        x = (np.arange(6).reshape(2, 3) % 3).astype(DType(dtype).numpy)
        compiled = ml.compile(model, backend, inference=True)
        y = compiled.evaluate({}, {"input": x})["output"]
        assert [s.device for s in y.addressable_shards] == [f"rank {last}"] * (rank == last)
        equal({"y": y}, {"y": ml.NumpyBackend().array(x)})
        assert y.numpy().tolist() == x.tolist()
    try:
        y.mlx()
    except ml.BackendError as error:
        sys.stdout.write(f"{error}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
