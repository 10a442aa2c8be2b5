"""Programs written by hand over collectives: an all-reduce as a tree, and work behind a start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from mithril import ops
from mithril.ir import Builder, Repeat, Start, Tensor, Wait
from mithril.mesh import Mesh
from mithril.ops.collective import AllGather, AllReduce, AxisIndex, Permute, ReduceScatter
from mithril.plan import Program
from mithril.types import DType, TensorType

from tests.algorithms.cases import program_of
from tests.conformance.engines import BACKENDS, opened
from tests.profiles import quick

EVERYWHERE = ["numpy", *BACKENDS]
SIZES = (2, 3, 4)


@dataclass
class Ran:
    """What a program made, by output and device, and what was carried out."""

    made: dict[str, list[np.ndarray]]
    rows: list[tuple[str, tuple[str, ...], int]] = field(default_factory=list)


def run(backend: str, program: Program, values: Mapping[str, np.ndarray]) -> Ran:
    engine = opened(backend, **program.mesh.sizes).engine
    handles = [
        engine.put(port.type, port.sharding, lambda box, name=port.name: values[name][box].copy())
        for port in program.inputs
    ]
    executable, ran = engine.lower(program), Ran({})
    for observe in (None, lambda told: ran.rows.append(told.row)):
        results = executable(handles, observe)
        for port, handle in zip(program.outputs, results, strict=True):
            parts = [engine.shard(handle, port.sharding, i) for i in range(program.mesh.size)]
            before = ran.made.setdefault(port.name, parts)
            np.testing.assert_array_equal(parts, before)
    return ran


def tree_sum(x: Tensor, axis: str, count: int) -> Tensor:
    """Return the sum over an axis: up a binomial tree to the first device, and down again.

    In a round devices `width` apart meet; who is left out keeps what it has. On the way down all
    but the first device of each subtree hold nothing that counts, and take what they are sent.
    """
    apply, widths = x.builder.apply, [2**i for i in range((count - 1).bit_length())]

    def pairs(width: int) -> list[tuple[int, int]]:
        return [(low + width, low) for low in range(0, count - width, 2 * width)]

    for width in widths:
        (sent,) = apply(Permute((axis,), tuple(pairs(width))), x)
        x = x + sent  # zeros, where nobody sends
    root = np.zeros(count, np.float32)
    root[0] = 1
    total = x * at_own_index(x, axis, root)  # only the first device has all of it
    for width in reversed(widths):
        down = tuple((low, high) for high, low in pairs(width))
        (sent,) = apply(Permute((axis,), down), total)
        total = total + sent
    return total


def at_own_index(x: Tensor, axis: str, values: np.ndarray) -> Tensor:
    """Return the number that a device has among some, one for each."""
    (index,) = x.builder.apply(AxisIndex((axis,)))
    found = 0.0 * ops.cast(index, x.dtype)
    for number, value in enumerate(values):
        found = found + ops.cast(ops.equal(index, number), x.dtype) * float(value)
    return found


@quick(lambda backend, count: count != 3 or backend == "numpy")
@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("count", SIZES)
def test_a_tree_of_permutes_is_an_all_reduce(backend: str, count: int) -> None:
    builder, mesh = Builder(), Mesh(a=count)
    x = builder.input(TensorType((3, 2), DType.float32), "x")
    (expected,) = builder.apply(AllReduce(("a",), "sum"), x)
    graph = builder.build({"tree": tree_sum(x, "a", count), "all_reduce": expected})
    program = program_of(graph, mesh)
    host = np.random.default_rng(count).integers(-9, 9, (3 * count, 2)).astype(np.float32)
    ran = run(backend, program, {"x": host})
    total = np.sum(np.split(host, count), 0)
    for device in range(count):
        np.testing.assert_array_equal(ran.made["tree"][device], total)
        np.testing.assert_array_equal(ran.made["all_reduce"][device], total)
    assert sorted(ran.rows) == sorted(program.list_issued())
    rounds = (count - 1).bit_length()
    assert [row[0] for row in ran.rows].count("permute") == 2 * rounds


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "bfloat16"])
def test_who_is_left_out_gets_zeros(backend: str, dtype: str) -> None:
    """Of four devices one sends only, one gets only, one does both, and one does neither."""
    builder, mesh = Builder(), Mesh(a=4)
    x = builder.input(TensorType((2,), DType(dtype)), "x")
    graph = builder.build({"y": builder.apply(Permute(("a",), ((0, 3), (3, 1))), x)[0]})
    host = np.arange(1, 9).astype(DType(dtype).numpy)
    host[:2] = np.nan if dtype == "float32" else host[:2]  # zeros are not made by a product
    ran = run(backend, program_of(graph, mesh), {"x": host})
    parts, nothing = np.split(host, 4), np.zeros_like(host[:2])
    expected = [nothing, parts[3], nothing, parts[0]]
    for found, wanted in zip(ran.made["y"], expected, strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))
    if (backend, dtype) != ("jax", "bfloat16"):  # XLA moves float32 there on CPU
        assert ran.rows == [("permute", ("a",), host[:2].nbytes)]


HIERARCHY = {
    "inside": (("a", "b"), ((1, 0), (3, 2))),
    "leaders": (("a", "b"), ((2, 0),)),
    "across": (("b", "a"), ((3, 0), (1, 2))),
    "all": (("a",), ((0, 1), (1, 0))),
}
"""Permutes over both axes of a mesh, by which data may cross only one of them."""


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("step", HIERARCHY)
def test_a_step_of_a_hierarchy_is_told_by_its_axes(backend: str, step: str) -> None:
    axes, pairs = HIERARCHY[step]
    builder, mesh = Builder(), Mesh(a=2, b=2)
    x = builder.input(TensorType((2,), DType.float32), "x")
    program = program_of(builder.build({"y": builder.apply(Permute(axes, pairs), x)[0]}), mesh)
    host = np.arange(1, 9, dtype=np.float32)
    ran, parts = run(backend, program, {"x": host}), np.split(host, 4)
    expected = [np.zeros(2)] * 4
    for group in mesh.groups(axes):
        for source, target in pairs:
            expected[group[target]] = parts[group[source]]
    np.testing.assert_array_equal(ran.made["y"], expected)
    assert ran.rows == [("permute", axes, 8)]


def overlapped(x: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """Return what three collectives make, each started before work that does not need it."""
    apply = x.builder.apply
    sums = apply(Start(AllReduce(("a",), "sum")), x, x * 2.0)
    work = ops.matmul(x, weight)
    parts = apply(Start(AllGather(("a",), 0, 2)), work)
    more = ops.sin(work) + x[:, :1]
    first, second = apply(Wait(), *sums)
    scattered = apply(Start(ReduceScatter(("a",), "sum", 0, 2)), first + more)
    (whole,) = apply(Wait(), *parts)
    least = apply(Start(AllReduce(("a",), "min")), second)
    last = ops.cos(more)
    return {
        "whole": whole,
        "scattered": apply(Wait(), *scattered)[0],
        "least": apply(Wait(), *least)[0],
        "work": last + first,
    }


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_work_stands_between_a_start_and_its_wait(backend: str) -> None:
    builder, mesh = Builder(), Mesh(a=2)
    x = builder.input(TensorType((4, 3), DType.float32), "x")
    weight = builder.input(TensorType((3, 3), DType.float32), "weight")
    program = program_of(builder.build(overlapped(x, weight)), mesh)
    rng = np.random.default_rng(0)
    host, weights = rng.normal(size=(8, 3)), rng.normal(size=(6, 3))
    given = {"x": host.astype(np.float32), "weight": weights.astype(np.float32)}
    ran = run(backend, program, given)

    x_of, weight_of = np.split(given["x"], 2), np.split(given["weight"], 2)
    work = [x @ w for x, w in zip(x_of, weight_of, strict=True)]
    more = [np.sin(w) + x[:, :1] for w, x in zip(work, x_of, strict=True)]
    total = x_of[0] + x_of[1]
    reduced = more[0] + more[1] + 2 * total
    for device in range(2):
        expected = {
            "whole": np.concatenate(work),
            "scattered": np.split(reduced, 2)[device],
            "least": 2 * total,
            "work": np.cos(more[device]) + total,
        }
        for name, wanted in expected.items():
            np.testing.assert_allclose(ran.made[name][device], wanted, rtol=1e-5, atol=1e-5)
    assert sorted(ran.rows) == sorted(program.list_issued())
    assert [row[0] for row in program.list_issued()] == [
        "all_reduce", "all_gather", "reduce_scatter", "all_reduce"
    ]  # fmt: skip


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_a_loop_starts_and_waits_in_each_trip(backend: str) -> None:
    body = Builder()
    y = body.input(TensorType((4,), DType.float32), "y")
    pending = body.apply(Start(AllReduce(("a",), "sum")), y)
    half = y * 0.5
    op = Repeat(body.build({"y": body.apply(Wait(), *pending)[0] - half}), 3, 1, 0)
    builder = Builder()
    (made,) = builder.apply(op, builder.input(y.type, "y"))
    program = program_of(builder.build({"made": made}), Mesh(a=2))
    host = np.arange(8, dtype=np.float32)
    ran = run(backend, program, {"y": host})
    parts = np.split(host, 2)
    for _ in range(3):
        total = parts[0] + parts[1]
        parts = [total - 0.5 * part for part in parts]
    np.testing.assert_array_equal(ran.made["made"], parts)
    assert ran.rows == [("all_reduce", ("a",), 16)] * 3
