"""Every kind of collective over the axes of a mesh in any order, against the NumPy engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import permutations

import numpy as np

from mithril import ops
from mithril.engine import Engine
from mithril.ir import Builder, Op, Start, Tensor, Wait
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
    collectives,
)
from mithril.plan import Port, Program
from mithril.testing.check import Check, Mismatch, Missing, Outcome
from mithril.testing.compare import describe_difference
from mithril.testing.levels import Level
from mithril.testing.running import require_kernels, run_program
from mithril.testing.target import Target, open_oracle
from mithril.types import DType, TensorType

Axes = tuple[str, ...]
Made = dict[str, Tensor]
Make = Callable[[Tensor, Axes, int], Made]
"""Takes a value that differs on all devices, mesh axes, and how many devices are along them."""


def _all_reduce(x: Tensor, axes: Axes, count: int) -> Made:
    apply = x.builder.apply
    made = {r: apply(AllReduce(axes, r), x)[0] for r in ("sum", "max", "min")}
    first, second = apply(AllReduce(axes, "sum"), x, x + x)
    return {**made, "bucket": first + second}


def _reduce_scatter(x: Tensor, axes: Axes, count: int) -> Made:
    return {
        **_each({r: ReduceScatter(axes, r, 1, count) for r in ("sum", "max", "min")}, x),
        **_several(
            {f"{r} {d}": ReduceScatter(axes, r, d, count) for d in (0, 1) for r in ("sum", "max")},
            x,
            count,
        ),
    }


def _all_gather(x: Tensor, axes: Axes, count: int) -> Made:
    kinds = {str(d): AllGather(axes, d, count) for d in (0, 1)}
    return {**_each(kinds, x), **_several(kinds, x, count)}


def _all_to_all(x: Tensor, axes: Axes, count: int) -> Made:
    kinds = {f"{s} {1 - s}": AllToAll(axes, s, 1 - s, count) for s in (0, 1)}
    return {**_each(kinds, x), **_several(kinds, x, count)}


def _permute(x: Tensor, axes: Axes, count: int) -> Made:
    order = np.random.default_rng(count).permutation(count)
    pairs = tuple((source, int(target)) for source, target in enumerate(order))
    ring = tuple((source, (source + 1) % count) for source in range(count))
    kinds = {
        "all": Permute(axes, pairs),
        "ring": Permute(axes, ring),
        "some": Permute(axes, pairs[: count // 2]),
    }
    return {**_each(kinds, x), **_several(kinds, x, count)}


def _parts(x: Tensor, axes: Axes, count: int) -> Made:
    apply = x.builder.apply
    (index,) = apply(AxisIndex(axes))
    return {
        "take_shard": apply(TakeShard(0, count), x, index)[0],
        "keep_first": apply(KeepFirst(), x, index)[0],
        "axis_index": x + ops.cast(index, x.dtype),
    }


def _start_and_wait(x: Tensor, axes: Axes, count: int) -> Made:
    """Return what collectives make that are started before work which does not need them."""
    apply = x.builder.apply
    sums = apply(Start(AllReduce(axes, "sum")), x)
    parts = apply(Start(AllGather(axes, 0, count)), x)
    work = x + x
    (total,), (whole,) = apply(Wait(), *sums), apply(Wait(), *parts)
    return {"sum": total + work, "gather": whole}


def _each(kinds: Mapping[str, Op], x: Tensor) -> Made:
    return {name: x.builder.apply(op, x)[0] for name, op in kinds.items()}


def _several(kinds: Mapping[str, Op], x: Tensor, count: int) -> Made:
    """Return what collectives make of several operands at once, of different shapes and layouts."""
    turned, narrow = x.transpose(1, 0) + x, x[:, :count]
    return {
        f"{name} of several, {i}": y
        for name, op in kinds.items()
        for i, y in enumerate(x.builder.apply(op, x, turned, narrow))
    }


KINDS: dict[str, Make] = {
    AllReduce.name: _all_reduce,
    AllGather.name: _all_gather,
    ReduceScatter.name: _reduce_scatter,
    AllToAll.name: _all_to_all,
    Permute.name: _permute,
    "parts of a device": _parts,
    "start and wait": _start_and_wait,
}
DTYPES = {
    Level.smoke: ("float32",),
    Level.basic: ("float32", "bfloat16", "int32"),
    Level.full: ("float32", "float64", "bfloat16", "float16", "int32", "int8", "uint8", "bool"),
}


def list_collective_checks() -> Iterator[Check]:
    """Yield a check for every kind of collective."""
    for kind in KINDS:
        yield Check("collectives", kind, partial(check_collective, kind), Level.smoke, devices=2)


def check_collective(kind: str, target: Target, level: Level) -> Outcome:
    """Compare a kind of collective with the NumPy engine, in dtypes and over axes of a mesh."""
    engine = target.open_all().engine
    if kind in collectives() and kind not in engine.capabilities:
        raise Missing("not among the engine's capabilities; plans that need it are refused")
    meshes = [target.mesh, *(map(Mesh, target.uneven) if level is Level.full else ())]
    tried = 0
    for mesh in meshes:
        for axes, dtype in _choose(mesh, level):
            if dtype in engine.dtypes:
                on = target.open(mesh).engine
                compare_collective(write_program(mesh, axes, dtype, KINDS[kind]), on, axes)
                tried += 1
    return Outcome(note=f"{tried} program{'s' * (tried != 1)}")


def _choose(mesh: Mesh, level: Level) -> list[tuple[Axes, DType]]:
    """Return the axes that collectives go over, and dtypes: each way in float32, one in each."""
    names = [name for name, size in mesh.sizes.items() if size > 1]
    ways = [axes for count in sorted({1, len(names)}) for axes in permutations(names, count)]
    first, *others = map(DType, DTYPES[level])
    found = [(axes, first) for axes in (ways[-1:] if level is Level.smoke else ways)]
    return found + [(ways[-1], dtype) for dtype in others]


def compare_collective(program: Program, engine: Engine, axes: Axes) -> None:
    """Raise unless a program makes on every device what it makes on the NumPy engine.

    Args:
        program: of one input, which gets `values_for` it.
        engine: what is tried.
        axes: that the collectives go over, for the message.

    Raises:
        Mismatch: it makes something else; collectives are held to equality.
        Missing: the engine cannot compute with an op that stands beside the collective.
    """
    host = values_for(program)
    dtype, mesh = program.inputs[0].type.dtype, program.mesh
    oracle = open_oracle(mesh).engine
    require_kernels(engine, program)
    found, expected = (run_program(on, program, {"x": host}) for on in (engine, oracle))
    for port in program.outputs:
        for device in engine.local_devices:
            wanted = oracle.shard(expected[port.name], port.sharding, device)
            made = engine.shard(found[port.name], port.sharding, device)
            text = describe_difference(made, wanted, DType.int32)
            if text:
                raise Mismatch(
                    f"{port.name} over {'·'.join(axes)} of {mesh!r} in {dtype}, on device "
                    f"{device}: {text}"
                )


def write_program(mesh: Mesh, axes: Axes, dtype: DType, make: Make) -> Program:
    """Return a program in which the parts of a tensor, one a device, go through collectives."""
    builder, rows = Builder(), 2 * mesh.size
    x = builder.input(TensorType((rows, rows), dtype), "x")
    graph = builder.build(make(x, axes, mesh.product(axes)))
    apart = Sharding.of(mesh, P(mesh.names), 2)

    def port(name: str, local: TensorType) -> Port:
        return Port(name, local.with_shape((local.shape[0] * mesh.size, local.shape[1])), apart)

    leaving = tuple(port(name, value.type) for name, value in graph.outputs.items())
    return Program(mesh, verify(graph), (port("x", x.type),), leaving)


def values_for(program: Program) -> np.ndarray:
    """Return small whole numbers for the input of a program, floats with NaN and infinities."""
    (entering,) = program.inputs
    dtype = entering.type.dtype
    low, high = (0, 2) if dtype == "bool" else (0 if dtype.startswith("u") else -9, 9)
    host = np.random.default_rng(0).integers(low, high, entering.type.shape)
    made: np.ndarray = host.astype(dtype.numpy)
    if dtype.is_float:
        made[3, 2], made[-1, 0], made[0, 1] = np.nan, np.inf, -np.inf
    return made
