"""Images with channels last: the same results, and a transposition where one comes in or goes out."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import mithril as ml
import numpy as np
import pytest
from mithril import ops
from mithril.engine import Engine
from mithril.engine.channels_last import OfImages, lay_channels_last
from mithril.ir import Builder, Graph, Tensor
from mithril.ir import registry as op_registry
from mithril.ir.rewrite import all_nodes
from mithril.ops.batch_norm import batch_norm
from mithril.ops.group_norm import group_norm
from mithril.testing.arrays import floats
from mithril.testing.evaluate import assert_close, differentiable, seeds
from mithril.testing.running import run_graph
from mithril.transform import cotangent_name, differentiate, gradient_of
from mithril.types import DType, TensorType

IMAGE, WEIGHT, ROW = (2, 3, 6, 4), (3, 3, 3, 3), (4,)
Cased = Callable[[Tensor, Tensor, Tensor], Tensor]


def conv(x: Tensor, w: Tensor) -> Tensor:
    return ops.convolution(x, w, padding=1)


def normalized(x: Tensor, w: Tensor, row: Tensor) -> Tensor:
    y = conv(x, w)
    away = y - ops.mean(y, (0, 2, 3)).reshape(3, 1, 1)
    variance = ops.mean(away * away, (0, 2, 3))
    return conv(away * ops.rsqrt(variance + 1e-5).reshape(3, 1, 1), w)


def pooled(x: Tensor, w: Tensor, row: Tensor) -> Tensor:
    y = ops.avg_pool(ops.max_pool(conv(x, w), 3, stride=1, padding=1), (2, 1))
    return conv(y, w).reshape(2, -1)


def padded(x: Tensor, w: Tensor, row: Tensor) -> Tensor:
    """Means over windows of different sizes, which are larger along one dimension."""
    y = ops.avg_pool(conv(x, w), (3, 2), stride=1, padding=((1, 1), (0, 1)), count_padding=False)
    return conv(y, w)


def cut(x: Tensor, w: Tensor, row: Tensor) -> Tensor:
    y = conv(x, w)[:, 1:, 1::2]
    y = ops.pad(y, ((0, 0), (1, 0), (2, 1), (0, 0)))
    return conv(ops.flip(y, (1, 3)), w)


def turned(x: Tensor, w: Tensor, row: Tensor) -> Tensor:
    y = conv(x, w)
    return y.transpose(0, 1, 3, 2) * conv(x.transpose(0, 1, 3, 2), w)


def chosen(x: Tensor, w: Tensor, row: Tensor) -> Tensor:
    y = conv(x, w)
    return ops.where(y > row, y, ops.broadcast_to(row * row, y.shape)) + x[:, :1]


def looped(x: Tensor, w: Tensor, row: Tensor) -> Tensor:
    return ops.repeat(lambda y: ops.relu(conv(y, w)) * row, conv(x, w), count=3)


def in_groups(x: Tensor, w: Tensor, row: Tensor) -> Tensor:
    y = ops.convolution(x, ops.concatenate([w, w], 0), padding=1)
    y = group_norm(y, [ops.concatenate([row[:3], row[1:]], 0), y[0, :, 0, 0]], 2, 1e-5)
    return ops.convolution(ops.silu(y), ops.concatenate([w, w], 1), padding=1)


def in_batches(x: Tensor, w: Tensor, row: Tensor) -> Tensor:
    y, average, variance = batch_norm(conv(x, w), row[:3], row[1:], 1e-5)
    return conv(ops.relu(y), w) * (average + variance).reshape(3, 1, 1)


def shuffled(x: Tensor, w: Tensor, row: Tensor) -> Tensor:
    """Dimensions taken apart and put together, some of them out of their order."""
    y = conv(x, w).reshape(2, 3, 3, 2, 4)
    y = y.transpose(0, 1, 3, 2, 4).reshape(2, 3, 6, 4)
    return conv(y, w).reshape(2, 9, 8)


def single(x: Tensor, w: Tensor, row: Tensor) -> Tensor:
    """Images of one pixel, and of one channel: no element moves."""
    y = ops.convolution(x, w, stride=(6, 4))
    return y.reshape(2, 3) @ conv(x, w[:1]).reshape(2, 24)[:, :3].T


CASES: dict[str, Cased] = {
    "bias": lambda x, w, row: ops.relu(conv(x, w) + row[:3].reshape(3, 1, 1)),
    "normalized": normalized,
    "pooled": pooled,
    "residual": lambda x, w, row: conv(ops.relu(x + conv(ops.relu(conv(x, w)), w)), w),
    "joined": lambda x, w, row: ops.concatenate([conv(x, w), ops.relu(conv(x, w)), x], 1) * row,
    "padded": padded,
    "cut": cut,
    "turned": turned,
    "chosen": chosen,
    "looped": looped,
    "in_groups": in_groups,
    "in_batches": in_batches,
    "shuffled": shuffled,
    "mask": lambda x, w, row: ops.silu(conv(ops.silu(conv(x, w)), w[:1])) * row,
    "single": single,
    "mean": lambda x, w, row: ops.mean(conv(x, w), (2, 3)) @ w[0, 0],
    "rows": lambda x, w, row: ops.max(conv(x, w), 2) + ops.sum(conv(x, w), 1, keepdims=True)[:, 0, :3],
    "places": lambda x, w, row: conv(x, w) * (x[0, 0] + row),
    "softmax": lambda x, w, row: ops.softmax(conv(x, w), 1),
    "strided": lambda x, w, row: ops.convolution(x, w, stride=(2, 3), padding=(1, 2)),
    "grouped": lambda x, w, row: ops.convolution(conv(x, w), w[:, :1], dilation=2, groups=3, padding=2),
    "one dimension": lambda x, w, row: conv(ops.relu(conv(x[..., 0], w[..., 0])), w[..., 1]),
    "three": lambda x, w, row: conv(ops.relu(conv(x.reshape(2, 3, 3, 2, 4), w.reshape(3, 3, 3, 3, 1))), w.reshape(3, 3, 3, 3, 1)),
}  # fmt: skip


def graph_of(case: Cased) -> Graph:
    builder = Builder()
    given = {"x": IMAGE, "w": WEIGHT, "row": ROW}
    inputs = [builder.input(TensorType(s, DType.float32), name) for name, s in given.items()]
    return builder.build({"y": case(*inputs)})


@cache
def engine(backend: str) -> Engine:
    options = {"memory_format": "channels_last"} if backend == "mlx" else {}
    return ml.open_backend(backend, **options).engine


@pytest.mark.parametrize("backend", ["jax", "mlx"])
@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_are_those_of_numpy(case: str, backend: str) -> None:
    graph = graph_of(CASES[case])
    values = {v.name: floats(*v.type.shape, seed=i).astype("f") for i, v in enumerate(graph.inputs)}
    given = {cotangent_name(name): seed for name, seed in seeds(graph).items()}
    joint = differentiate(graph, *differentiable(graph))
    found = run_graph(engine(backend), joint, {**values, **given})
    expected = run_graph(ml.NumpyBackend().engine, joint, {**values, **given})
    assert set(found) == set(expected) == {"y", *map(gradient_of, ("x", "w", "row"))}
    for name, array in expected.items():
        assert_close(found[name], array)


@pytest.mark.parametrize("case", CASES)
def test_convolutions_meet_their_layout(case: str) -> None:
    relaid = lay_channels_last(graph_of(CASES[case]), frozenset(op_registry()))
    names = [node.op.name for node in all_nodes(relaid)]
    assert "of_images" in names and "convolution" not in names


def count(case: Cased, op: str = "transpose") -> int:
    graph = lay_channels_last(graph_of(case), frozenset(op_registry()))
    return [node.op.name for node in graph.nodes].count(op)


def test_one_image_in_one_weight_in_one_image_out() -> None:
    """However many convolutions there are between; a broadcast or a pixel needs nothing."""
    assert count(CASES["residual"]) == 3
    assert count(CASES["normalized"]) == 3
    assert count(lambda x, w, row: ops.mean(conv(conv(x, w), w), (2, 3))) == 2
    assert count(lambda x, w, row: conv(x, w) + ops.broadcast_to(row[0], IMAGE)) == 3


def test_without_convolutions_nothing_changes() -> None:
    graph = graph_of(lambda x, w, row: ops.max_pool(x, 2).transpose(0, 2, 3, 1))
    assert lay_channels_last(graph, frozenset(op_registry())) is graph


def test_ops_of_images_say_what_they_give() -> None:
    op = OfImages(ops.MaxPool((2, 2), (2, 2), ((0, 0), (0, 0))))
    assert op.infer([TensorType((8, 28, 32, 3), DType.float32)])[0].shape == (8, 14, 16, 3)


def test_norms_and_masks_need_no_transposition() -> None:
    """Of the norm's groups dimensions are taken apart where they stand; a mask is as it was."""
    assert count(CASES["in_groups"]) == 4
    assert count(CASES["in_batches"]) == 3
    assert count(CASES["mask"]) == 3


@pytest.mark.parametrize("backend", ["jax", "mlx"])
def test_images_without_channels_have_gradients(backend: str) -> None:
    shapes = {"x": IMAGE, "w": (0, 3, 3, 3), "row": (0,)}
    builder = Builder()
    x, w, row = (builder.input(TensorType(s, DType.float32), n) for n, s in shapes.items())
    graph = builder.build({"y": batch_norm(conv(x, w), row, row, 1e-5)[0]})
    values = {n: np.ones(s, "f") for n, s in shapes.items()}
    given = {cotangent_name(name): seed for name, seed in seeds(graph).items()}
    joint = differentiate(graph, *differentiable(graph))
    found = run_graph(engine(backend), joint, {**values, **given})
    assert found["y"].shape == (2, 0, 6, 4)
    np.testing.assert_array_equal(found[gradient_of("x")], np.zeros(IMAGE, "f"))
