"""Collectives of the lockstep executor, against their definitions device by device."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations, product

import ml_dtypes
import numpy as np
import pytest
from mithril import ops
from mithril.engine.lockstep import LockstepExecutable
from mithril.engine.numpy_engine import NUMPY_KERNELS
from mithril.ir import Builder, Graph, Op
from mithril.mesh import Mesh
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
from mithril.types import DType, TensorType

from tests.engine.programs import apply_op, everywhere, execute, f32, graph_of, i32, program_of
from tests.profiles import quick
from tests.tolerances import TOLERANCE

MESHES = [Mesh(a=3), Mesh(a=2, b=3), Mesh(a=2, b=3, c=2)]
OVER = [
    (mesh, axes)
    for mesh in MESHES
    for count in range(1, len(mesh.names) + 1)
    for axes in permutations(mesh.names, count)
]
over = pytest.mark.parametrize(("mesh", "axes"), OVER, ids=str)
RTOL, ATOL = TOLERANCE["float32"]
REDUCE = {"sum": np.add.reduce, "max": np.maximum.reduce, "min": np.minimum.reduce}
Parts = list[np.ndarray]
Axes = tuple[str, ...]


def peers(mesh: Mesh, axes: Axes, device: int) -> tuple[list[int], int]:
    """Return the devices of a device's group, the first axis major, and its place among them."""
    grid = np.arange(mesh.size).reshape(mesh.shape)
    at = dict(zip(mesh.names, np.argwhere(grid == device)[0], strict=True))
    group = []
    for place in product(*(range(mesh.sizes[axis]) for axis in axes)):
        where = {**at, **dict(zip(axes, place, strict=True))}
        group.append(int(grid[tuple(where[name] for name in mesh.names)]))
    return group, group.index(device)


def parts_of(mesh: Mesh, *shape: int, seed: int = 0) -> Parts:
    """Return a different array of small whole numbers for each device."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-50, 50, shape).astype(np.float32) for _ in range(mesh.size)]


def collective(mesh: Mesh, op: Op, parts: Parts) -> tuple[Parts, list]:
    """Run one collective on values that differ everywhere."""
    graph = graph_of(lambda x: apply_op(op, x)[0], x=f32(*parts[0].shape))
    program = program_of(mesh, graph, {"x": everywhere(mesh, parts[0].ndim)})
    found, rows = execute(program, {"x": parts})
    return found["y"], rows


def check(mesh: Mesh, op: Op, parts: Parts, define: Callable[[list[int], int], np.ndarray]) -> None:
    """Compare with a definition: a group and a place in it give the result."""
    found, rows = collective(mesh, op, parts)
    for device in range(mesh.size):
        expected = define(*peers(mesh, op.attributes["axes"], device))
        np.testing.assert_array_equal(found[device], expected, strict=True)
    assert [(kind, axes) for kind, axes, _ in rows] == [(op.name, op.attributes["axes"])]


@quick(lambda mesh, reduction: mesh is MESHES[1] or reduction == "sum")
@over
@pytest.mark.parametrize("reduction", REDUCE)
def test_all_reduce_gives_everybody_the_reduction(mesh: Mesh, axes: Axes, reduction: str) -> None:
    parts = parts_of(mesh, 2, 3)
    check(
        mesh,
        AllReduce(axes, reduction),
        parts,
        lambda group, _: REDUCE[reduction]([parts[d] for d in group]),
    )


@over
@pytest.mark.parametrize("dimension", [0, 1])
def test_all_gather_concatenates_the_group(mesh: Mesh, axes: Axes, dimension: int) -> None:
    parts = parts_of(mesh, 2, 3)
    check(
        mesh,
        AllGather(axes, dimension, mesh.product(axes)),
        parts,
        lambda group, _: np.concatenate([parts[d] for d in group], dimension),
    )


@quick(lambda mesh, reduction: mesh is MESHES[1] or reduction == "sum")
@over
@pytest.mark.parametrize("reduction", REDUCE)
def test_reduce_scatter_gives_each_its_part(mesh: Mesh, axes: Axes, reduction: str) -> None:
    count = mesh.product(axes)
    parts = parts_of(mesh, 2, 2 * count)
    check(
        mesh,
        ReduceScatter(axes, reduction, 1, count),
        parts,
        lambda group, place: np.split(REDUCE[reduction]([parts[d] for d in group]), count, 1)[
            place
        ],
    )


@over
@pytest.mark.parametrize(("split", "concat"), [(0, 1), (1, 0)])
def test_all_to_all_swaps_pieces(mesh: Mesh, axes: Axes, split: int, concat: int) -> None:
    count = mesh.product(axes)
    parts = parts_of(mesh, 2 * count, count)
    check(
        mesh,
        AllToAll(axes, split, concat, count),
        parts,
        lambda group, place: np.concatenate(
            [np.split(parts[d], count, split)[place] for d in group], concat
        ),
    )


@over
def test_permute_sends_values_on(mesh: Mesh, axes: Axes) -> None:
    count = mesh.product(axes)
    order = np.random.default_rng(count).permutation(count)
    pairs = tuple((source, int(target)) for source, target in enumerate(order))
    source_of = {target: source for source, target in pairs}
    parts = parts_of(mesh, 2)
    check(
        mesh,
        Permute(axes, pairs),
        parts,
        lambda group, place: parts[group[source_of[place]]],
    )


@over
def test_a_gather_takes_back_the_shards_of_a_reduction(mesh: Mesh, axes: Axes) -> None:
    count = mesh.product(axes)

    def both(x):
        (shard,) = apply_op(ReduceScatter(axes, "sum", 0, count), x)
        return *apply_op(AllGather(axes, 0, count), shard), *apply_op(AllReduce(axes, "sum"), x)

    program = program_of(mesh, graph_of(both, x=f32(2 * count)), {"x": everywhere(mesh, 1)})
    found, _ = execute(program, {"x": parts_of(mesh, 2 * count)})
    np.testing.assert_array_equal(found["y0"], found["y1"])


@over
def test_the_axis_index_is_the_place_in_the_group(mesh: Mesh, axes: Axes) -> None:
    builder = Builder()
    (index,) = builder.apply(AxisIndex(axes))
    found, rows = execute(program_of(mesh, builder.build({"y": index})), {})
    expected = [peers(mesh, axes, device)[1] for device in range(mesh.size)]
    np.testing.assert_array_equal(found["y"], np.array(expected, np.int32), strict=True)
    assert rows == []


@over
def test_taking_shards_undoes_a_gather(mesh: Mesh, axes: Axes) -> None:
    count = mesh.product(axes)

    def there_and_back(x):
        (whole,) = apply_op(AllGather(axes, 0, count), x)
        (index,) = x.builder.apply(AxisIndex(axes))
        return apply_op(TakeShard(0, count), whole, index)[0]

    parts = parts_of(mesh, 2, 3)
    program = program_of(mesh, graph_of(there_and_back, x=f32(2, 3)), {"x": everywhere(mesh, 2)})
    found, _ = execute(program, {"x": parts})
    np.testing.assert_array_equal(found["y"], parts)


@over
def test_keeping_the_first_and_reducing_gives_the_value(mesh: Mesh, axes: Axes) -> None:
    def there_and_back(x):
        (index,) = x.builder.apply(AxisIndex(axes))
        (partial,) = apply_op(KeepFirst(), x, index)
        return apply_op(AllReduce(axes, "sum"), partial)[0]

    value = parts_of(mesh, 3)[0]
    found, _ = execute(
        program_of(mesh, graph_of(there_and_back, x=f32(3))), {"x": [value] * mesh.size}
    )
    np.testing.assert_array_equal(found["y"], [value] * mesh.size)


@over
def test_a_bucket_reduces_each_of_its_values(mesh: Mesh, axes: Axes) -> None:
    graph = graph_of(
        lambda x, y, z: apply_op(AllReduce(axes, "sum"), x, y, z), x=f32(2), y=i32(), z=f32(1, 2)
    )
    values = {"x": parts_of(mesh, 2), "y": parts_of(mesh, seed=1), "z": parts_of(mesh, 1, 2)}
    values["y"] = [part.astype(np.int32) for part in values["y"]]
    given = {name: everywhere(mesh, parts[0].ndim) for name, parts in values.items()}
    found, rows = execute(program_of(mesh, graph, given), values)
    assert rows == [("all_reduce", axes, 8 + 4 + 8)]
    for device in range(mesh.size):
        group, _ = peers(mesh, axes, device)
        for number, name in enumerate("xyz"):
            expected = np.sum([values[name][d] for d in group], 0, dtype=values[name][0].dtype)
            np.testing.assert_array_equal(found[f"y{number}"][device], expected)
            assert found[f"y{number}"][device].dtype == expected.dtype


BYTES = {
    "all_reduce": (AllReduce(("a",), "sum"), 4 * 4 * 6),
    "all_gather": (AllGather(("a",), 0, 2), 2 * 4 * 4 * 6),
    "reduce_scatter": (ReduceScatter(("a",), "sum", 0, 2), 4 * 4 * 6),
    "all_to_all": (AllToAll(("b", "a"), 1, 0, 6), 4 * 4 * 6),
    "permute": (Permute(("b",), ((0, 1), (1, 2), (2, 0))), 4 * 4 * 6),
}


@pytest.mark.parametrize("kind", BYTES)
def test_the_observer_is_told_kind_axes_and_bytes(kind: str) -> None:
    op, moved = BYTES[kind]
    mesh = Mesh(a=2, b=3)
    _, rows = collective(mesh, op, parts_of(mesh, 4, 6))
    assert rows == [(kind, op.attributes["axes"], moved)]


@pytest.mark.parametrize("kind", BYTES)
def test_nobody_needs_to_observe(kind: str) -> None:
    op, _ = BYTES[kind]
    mesh = Mesh(a=2, b=3)
    parts = parts_of(mesh, 4, 6)
    graph: Graph = graph_of(lambda x: apply_op(op, x)[0], x=f32(4, 6))
    program = program_of(mesh, graph, {"x": everywhere(mesh, 2)})
    (found,) = LockstepExecutable(program, NUMPY_KERNELS, np)([parts])
    np.testing.assert_array_equal(found, collective(mesh, op, parts)[0])


SMALL = {
    "float16": (np.float16, 2048.0),
    "bfloat16": (ml_dtypes.bfloat16, 256.0),
}


@pytest.mark.parametrize("scattered", [False, True], ids=["all_reduce", "reduce_scatter"])
@pytest.mark.parametrize("name", SMALL)
def test_sums_of_16_bit_floats_accumulate_in_float32(name: str, scattered: bool) -> None:
    dtype, big = SMALL[name]  # big + 1 is big in this dtype; big + 8 is not
    mesh = Mesh(a=9)
    op = ReduceScatter(("a",), "sum", 0, 9) if scattered else AllReduce(("a",), "sum")
    graph = graph_of(lambda x: apply_op(op, x)[0], x=TensorType((9,), DType(name)))
    parts = [np.full(9, big, dtype), *[np.ones(9, dtype)] * 8]
    assert (parts[0] + parts[1] == parts[0]).all()
    found, _ = execute(program_of(mesh, graph, {"x": everywhere(mesh, 1)}), {"x": parts})
    for part in found["y"]:
        assert part.dtype == dtype
        np.testing.assert_array_equal(part.astype(np.float32), big + 8)


@pytest.mark.parametrize("name", SMALL)
def test_a_maximum_of_16_bit_floats_stays_16_bit(name: str) -> None:
    dtype, _ = SMALL[name]
    mesh = Mesh(a=3)
    graph = graph_of(
        lambda x: apply_op(AllReduce(("a",), "max"), x)[0], x=TensorType((2,), DType(name))
    )
    parts = [np.asarray([n, -n], dtype) for n in (1, 3, 2)]
    found, _ = execute(program_of(mesh, graph, {"x": everywhere(mesh, 1)}), {"x": parts})
    assert found["y"][0].dtype == dtype
    np.testing.assert_array_equal(found["y"][0].astype(np.float32), [3, -1])


def test_sums_of_16_bit_integers_wrap_as_on_one_device() -> None:
    mesh = Mesh(a=1001)  # so many that float32 would lose the last bits
    type = TensorType((1,), DType.int16)
    graph = graph_of(lambda x: apply_op(AllReduce(("a",), "sum"), x)[0], x=type)
    parts = [np.asarray([32767], np.int16)] * mesh.size
    expected = np.sum(parts, 0, dtype=np.int16)
    found, _ = execute(program_of(mesh, graph, {"x": everywhere(mesh, 1)}), {"x": parts})
    np.testing.assert_array_equal(found["y"][0], expected, strict=True)


def test_collectives_and_kernels_mix() -> None:
    """A mean over the mesh, by hand."""
    mesh = Mesh(a=2, b=3)

    def centred(x):
        (total,) = apply_op(AllReduce(("b", "a"), "sum"), ops.sum(x))
        return x - total / 24.0

    parts = parts_of(mesh, 4)
    program = program_of(mesh, graph_of(centred, x=f32(4)), {"x": everywhere(mesh, 1)})
    found, rows = execute(program, {"x": parts})
    np.testing.assert_allclose(found["y"], np.array(parts) - np.mean(parts), rtol=RTOL, atol=ATOL)
    assert rows == [("all_reduce", ("b", "a"), 4)]
