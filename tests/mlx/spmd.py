"""What every rank of a job checks: run by `mithril launch` or mpirun, see test_spmd.py.

usage: spmd.py AXIS=SIZE,…[:AXIS,…] [scatters] — exits with 0 and says so if all is as on one device.
Behind `:` stands the order of the axes on the network.
With `scatters` there is a reduce_scatter, as JACCL has it, made of an all_sum.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations

import mithril as ml
import mlx.core as mx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril.engine.transport import Call, Transport
from mithril.plan import Plan
from mithril.types import DType
from mithril_mlx.distributed import Job

from tests.conformance.test_collectives import program
from tests.engine.programs import execute
from tests.profiles import scaled
from tests.runtime.test_precision import transformer
from tests.runtime.test_random_models import compare
from tests.tolerances import TOLERANCE

DTYPES = ("float32", "bfloat16", "int32")
SCATTERS = frozenset({"reduce_scatter"})


def main(text: str, has_scatter: bool = False) -> None:
    """Check all there is; where more ranks spin than a small machine has cores, the basics."""
    if has_scatter:
        mx.distributed.sum_scatter = cut_sum
        Job.transport = property(lambda job: Transport("ring", job.world.size(), more=SCATTERS))
    text, _, order = text.partition(":")
    sizes = {name: int(size) for name, size in (a.split("=") for a in text.split(","))}
    mesh = ml.Mesh(sizes, order=order.split(",") if order else None)
    backend = ml.MLXBackend(mesh)
    (rank,) = backend.engine.local_devices
    assert backend.engine.transport.size == mesh.size
    counts = sorted({1, len(mesh.names)})
    for axes in [names for n in counts for names in permutations(mesh.names, n)]:
        for dtype in DTYPES if mesh.size <= 4 else DTYPES[:1]:
            check_collectives(backend, axes, DType(dtype), rank)
    if has_scatter:
        sys.stdout.write("checked reduce_scatter\n")
        return
    check_random_models(mesh)
    if mesh.size <= 4:
        check_training(mesh)
    sys.stdout.write(f"checked {mesh}\n")  # in one piece: others write, too


def cut_sum(x: mx.array, group: mx.distributed.Group, stream: mx.Stream | None = None) -> mx.array:
    whole = mx.distributed.all_sum(x, group=group, stream=stream)
    return mx.split(whole, group.size(), axis=0)[group.rank()]


@contextmanager
def issued(backend: ml.Backend) -> Iterator[list[Call]]:
    """Note what MLX's distributed library is asked for."""
    calls: list[Call] = []
    backend.engine.communicator.on_call = calls.append
    try:
        yield calls
    finally:
        backend.engine.communicator.on_call = None


def expected_calls(backend: ml.Backend, rows: list) -> list[Call]:
    mesh, transport = backend.mesh, backend.engine.transport
    return [
        call
        for kind, axes, nbytes in rows
        for call in transport.calls(kind, nbytes, mesh.product(axes))
    ]


def check_collectives(backend: ml.Backend, axes: tuple, dtype: DType, rank: int) -> None:
    """Every collective over some axes gives what lockstep gives, NaN and infinity included."""
    written = program(backend.mesh, axes, dtype)
    (entering,) = written.inputs
    host = np.random.default_rng(0).integers(-9, 9, entering.type.shape).astype(dtype.numpy)
    if dtype.is_float:
        host[3, 2], host[-1, 0], host[0, 1] = np.nan, np.inf, -np.inf
    parts, mesh = np.split(host, backend.mesh.size), backend.mesh
    held = [parts[mesh.index_over(device, mesh.names)] for device in range(mesh.size)]
    wanted, rows = execute(written, {"x": held})
    engine = backend.engine
    x = engine.put(entering.type, entering.sharding, lambda box: host[box].copy())
    seen = []
    with issued(backend) as calls:
        made = engine.lower(written)([x], lambda told: seen.append(told.row))
    assert seen == rows
    if engine.transport.has("reduce_scatter"):  # of sums three: of one value, and twice of several
        scattered = [call for call in calls if call.kind == "reduce_scatter"]
        assert len(scattered) == 3 * (len(axes) == len(backend.mesh.names))
    else:
        assert calls == expected_calls(backend, rows)
    for port, shards in zip(written.outputs, made, strict=True):
        found = engine.shard(shards, port.sharding, rank).astype(np.float64)
        right = np.asarray(wanted[port.name][rank]).astype(np.float64)
        np.testing.assert_array_equal(found, right, f"{port.name} over {axes}, {dtype}")


def check_random_models(mesh: ml.Mesh) -> None:
    """Models and shardings are drawn alike in every rank."""

    @settings(
        max_examples=scaled(8 if mesh.size <= 4 else 3),
        derandomize=True,
        database=None,
        deadline=None,
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        compiled, rows = compare(data, ml.MLXBackend, meshes=[mesh])
        assert tuple(rows) == compiled.plan.list_issued()

    check()


def check_training(mesh: ml.Mesh) -> None:
    """Losses of a few steps are NumPy's, and what is issued is what the plan is priced with."""
    expected, _, _ = losses(ml.NumpyBackend())
    found, plan, calls = losses(ml.MLXBackend(mesh), mesh)
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(found, expected, rtol, atol)
    assert calls == expected_calls(ml.MLXBackend(mesh), list(plan.list_issued()))
    compiled, _, _ = losses(ml.MLXBackend(mesh, jit=True), mesh)
    np.testing.assert_allclose(compiled, expected, rtol, atol)


def losses(backend: ml.Backend, mesh: ml.Mesh | None = None) -> tuple[list, Plan, list[Call]]:
    model = transformer()
    if mesh is not None:
        model.shard({"*.weight": ml.P(*mesh.names[-1:])})
    compiled = ml.compile(model, backend)
    params = compiled.randomize_params(5)
    found, calls = [], []
    for step in range(3):
        rng = np.random.default_rng(step)
        inputs = {
            name: backend.array(
                rng.integers(0, 7, (4, 6)).astype(np.int32),
                sharding=ml.P(*(mesh.names[:1] if mesh else ())),
            )
            for name in ("ids", "target")
        }
        if mesh is None:
            outputs, slopes = compiled.evaluate(params, inputs, {"loss": 1.0})
        else:
            with issued(backend) as calls:
                outputs, slopes = compiled.evaluate(params, inputs, {"loss": 1.0})
        params = {name: params[name] - 0.1 * slopes[name] for name in params}
        found.append(float(outputs["loss"]))
    return found, compiled.plan, calls


if __name__ == "__main__":
    main(sys.argv[1], has_scatter="scatters" in sys.argv)
