"""Collectives over axes in any order, on every installed backend, equal the lockstep executor's."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from mithril import ops
from mithril.ir import Builder, Start, Tensor, Wait
from mithril.ir.verify import verify
from mithril.mesh import Mesh, P, Sharding
from mithril.ops.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    AxisIndex,
    KeepFirst,
    Permute,
    ReduceScatter,
    TakeShard,
)
from mithril.plan import Port, Program
from mithril.types import DType, TensorType

from tests.conformance.engines import BACKENDS, opened
from tests.engine.programs import execute
from tests.profiles import quick

MESHES = [
    Mesh(a=3), Mesh(a=2, b=3), Mesh(a=2, b=2, c=2), Mesh(a=2, b=2, order=("b", "a")),
    Mesh(a=2, b=1, c=3, order=("c", "b", "a")),
]  # fmt: skip
OVER = [
    (mesh, axes)
    for mesh in MESHES
    for count in {1, len(mesh.names)}
    for axes in permutations(mesh.names, count)
]
CASES = [(*over, "float32") for over in OVER]
CASES += [(mesh, mesh.names[::-1], dtype) for mesh in MESHES for dtype in ("bfloat16", "int32")]
QUICK = [
    case for case in CASES
    if case[0].names != ("a", "b", "c") or case[1] in (("b",), ("c", "a", "b"))
]  # fmt: skip


def every_collective(x: Tensor, axes: tuple[str, ...], count: int) -> dict[str, Tensor]:
    """Return what each kind of collective makes of a value that differs on all devices."""
    apply = x.builder.apply
    order = np.random.default_rng(count).permutation(count)
    pairs = tuple((source, int(target)) for source, target in enumerate(order))
    (index,) = apply(AxisIndex(axes))
    made = {
        **{f"all_reduce {r}": AllReduce(axes, r) for r in ("sum", "max", "min")},
        **{f"reduce_scatter {r}": ReduceScatter(axes, r, 1, count) for r in ("sum", "max", "min")},
        **{f"all_gather {d}": AllGather(axes, d, count) for d in (0, 1)},
        **{f"all_to_all {s} {1 - s}": AllToAll(axes, s, 1 - s, count) for s in (0, 1)},
        "permute": Permute(axes, pairs),
        "permute of some": Permute(axes, pairs[: count // 2]),
    }
    first, second = apply(AllReduce(axes, "sum"), x, x + x)
    turned, narrow = x.transpose(1, 0) + x, x[:, :count]
    flat = {
        **{f"all_gather {d} of several": AllGather(axes, d, count) for d in (0, 1)},
        **{
            f"reduce_scatter {r} {d} of several": ReduceScatter(axes, r, d, count)
            for d in (0, 1)
            for r in ("sum", "max")
        },
        **{f"all_to_all {d} of several": AllToAll(axes, d, 1 - d, count) for d in (0, 1)},
        "permute of several": made["permute"],
        "permute of some of several": made["permute of some"],
    }
    pending = apply(Start(AllReduce(axes, "sum")), x)
    work = x + x
    return {
        **{name: apply(op, x)[0] for name, op in made.items()},
        **{
            f"{name}, {i}": y
            for name, op in flat.items()
            for i, y in enumerate(apply(op, x, turned, narrow))
        },
        "take_shard": apply(TakeShard(0, count), x, index)[0],
        "keep_first": apply(KeepFirst(), x, index)[0],
        "axis_index": x + ops.cast(index, x.dtype),
        "bucket": first - second,
        "started": apply(Wait(), *pending)[0] - work,
    }


def program(mesh: Mesh, axes: tuple[str, ...], dtype: DType) -> Program:
    """Return a program in which the parts of a tensor, one a device, go through every collective."""
    builder, rows = Builder(), 2 * mesh.size
    x = builder.input(TensorType((rows, rows), dtype), "x")
    graph = builder.build(every_collective(x, axes, mesh.product(axes)))
    apart = Sharding.of(mesh, P(mesh.names), 2)

    def port(name: str, local: TensorType) -> Port:
        return Port(name, local.with_shape((local.shape[0] * mesh.size, local.shape[1])), apart)

    leaving = tuple(port(name, value.type) for name, value in graph.outputs.items())
    return Program(mesh, verify(graph), (port("x", x.type),), leaving)


@pytest.mark.parametrize("backend", BACKENDS)
@quick(lambda mesh, axes, dtype: (mesh, axes, dtype) in QUICK)
@pytest.mark.parametrize(("mesh", "axes", "dtype"), CASES, ids=str)
def test_every_collective(backend: str, mesh: Mesh, axes: tuple[str, ...], dtype: str) -> None:
    written = program(mesh, axes, DType(dtype))
    (entering,) = written.inputs
    rng = np.random.default_rng(0)
    host = rng.integers(-9, 9, entering.type.shape).astype(entering.type.dtype.numpy)
    if DType(dtype).is_float:
        host[3, 2], host[-1, 0], host[0, 1] = np.nan, np.inf, -np.inf
    rows = np.split(host, mesh.size)
    parts = [rows[mesh.index_over(device, mesh.names)] for device in range(mesh.size)]
    expected, _ = execute(written, {"x": parts})
    engine = opened(backend, **mesh.sizes).engine.on(mesh)
    given = engine.put(entering.type, entering.sharding, lambda box: host[box].copy())
    for port, made in zip(written.outputs, engine.lower(written)([given]), strict=True):
        for device in range(mesh.size):
            found = engine.shard(made, port.sharding, device)
            wanted = np.asarray(expected[port.name][device])
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
            wide = [x.astype(np.float64) for x in (found, wanted)]  # NumPy sees NaN in no bfloat16
            np.testing.assert_array_equal(*wide, f"{port.name} on {device}")
