"""Images with channels last: the same results, and fewer transpositions."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import mithril as ml
import mlx.core as mx
import numpy as np
import pytest
from mithril import P, ops
from mithril.engine import Engine
from mithril.ir import Builder, Graph, Tensor
from mithril.ir.rewrite import all_nodes
from mithril.mesh import Mesh
from mithril.plan import Program
from mithril.testing.arrays import floats
from mithril.testing.evaluate import assert_close, differentiable, seeds
from mithril.testing.running import run_graph
from mithril.transform import cotangent_name, differentiate, gradient_of
from mithril.types import DType, TensorType
from mithril_mlx.layout import OfImages, channels_last

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
    "cut": cut,
    "turned": turned,
    "chosen": chosen,
    "looped": looped,
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
def engine(memory_format: str) -> Engine:
    return ml.MLXBackend(memory_format=memory_format).engine


@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_are_those_of_numpy(case: str) -> None:
    graph = graph_of(CASES[case])
    values = {v.name: floats(*v.type.shape, seed=i).astype("f") for i, v in enumerate(graph.inputs)}
    given = {cotangent_name(name): seed for name, seed in seeds(graph).items()}
    joint = differentiate(graph, *differentiable(graph))
    found = run_graph(engine("channels_last"), joint, {**values, **given})
    expected = run_graph(ml.NumpyBackend().engine, joint, {**values, **given})
    assert set(found) == set(expected) == {"y", *map(gradient_of, ("x", "w", "row"))}
    for name, array in expected.items():
        assert_close(found[name], array)


@pytest.mark.parametrize("case", CASES)
def test_convolutions_meet_their_layout(case: str) -> None:
    relaid = channels_last(Program(Mesh({}), graph_of(CASES[case]), (), ())).graph
    names = [node.op.name for node in all_nodes(relaid)]
    assert "of_images" in names and "convolution" not in names


def count(case: Cased, op: str = "transpose") -> int:
    graph = channels_last(Program(Mesh({}), graph_of(case), (), ())).graph
    return [node.op.name for node in graph.nodes].count(op)


def test_one_image_in_one_weight_in_one_image_out() -> None:
    """However many convolutions there are between; a broadcast or a pixel needs nothing."""
    assert count(CASES["residual"]) == 3
    assert count(CASES["normalized"]) == 3
    assert count(lambda x, w, row: ops.mean(conv(conv(x, w), w), (2, 3))) == 2
    assert count(lambda x, w, row: conv(x, w) + ops.broadcast_to(row[0], IMAGE)) == 3


def test_without_convolutions_nothing_changes() -> None:
    graph = graph_of(lambda x, w, row: ops.max_pool(x, 2).transpose(0, 2, 3, 1))
    assert channels_last(Program(Mesh({}), graph, (), ())).graph is graph


def test_ops_of_images_say_what_they_give() -> None:
    op = OfImages(ops.MaxPool((2, 2), (2, 2), ((0, 0), (0, 0))))
    assert op.infer([TensorType((8, 28, 32, 3), DType.float32)])[0].shape == (8, 14, 16, 3)


# ------------------------------------------------------------------ a training step


def cnn() -> ml.Model:
    model = ml.Model()
    for i, filters in enumerate((4, 6)):
        model += ml.Conv2d(filters=filters, kernel_size=3, padding=1, name=f"conv_{i}")
        model += ml.Relu()
        model += ml.MaxPool2d(kernel_size=2)
    model += ml.Flatten()
    model += ml.Linear(5, name="head")
    return model


PICTURES = floats(4, 3, 8, 8).astype(np.float32)


def step(memory_format: str, mesh: dict[str, int]) -> dict[str, np.ndarray]:
    """Return results and gradients of a training step."""
    backend = ml.MLXBackend(Mesh(mesh), memory_format=memory_format)
    model = cnn()
    if "tensor" in mesh:
        model.shard({"conv_*.weight": P("tensor")})
    compiled = ml.compile(model, backend)
    x = backend.array(PICTURES, sharding=P("data") if "data" in mesh else P())
    ones = backend.ones((4, 5))
    outputs, slopes = compiled.evaluate(
        compiled.randomize_params(0), {"input": x}, {"output": ones}
    )
    return {name: array.numpy() for name, array in {**outputs, **slopes}.items()}


@pytest.mark.parametrize("mesh", [{}, {"data": 2}, {"data": 2, "tensor": 2}], ids=str)
def test_a_step_is_that_of_channels_first(mesh: dict[str, int]) -> None:
    first, last = (step(form, mesh) for form in ("channels_first", "channel_last"))
    assert set(first) == set(last) and len(first) == 7
    for name, expected in first.items():
        assert_close(last[name], expected)


def transpositions(memory_format: str, folder: Path) -> int:
    """Return how many MLX runs in a training step, whose graph is built as if to be compiled."""
    backend = ml.MLXBackend(memory_format=memory_format, jit=True)
    shapes = {"input": ml.TensorSpec(PICTURES.shape)}
    program = ml.compile(cnn(), backend, shapes=shapes).plan.stages[0].program
    put = backend.engine.put
    handles = [
        put(port.type, port.sharding, lambda box, shape=port.type.shape: np.zeros(shape, "f"))
        for port in program.inputs
    ]
    results = backend.engine.lower(program).build(handles, None)  # type: ignore[attr-defined]
    mx.export_to_dot(str(folder / "step.dot"), *(x for shards in results for x in shards))
    return len(re.findall("Transpose", (folder / "step.dot").read_text()))


def test_a_step_has_fewer_transpositions(tmp_path: Path) -> None:
    """In three of five convolutions' operands and results, and in what lies between them."""
    first, last = (transpositions(f, tmp_path) for f in ("channels_first", "channels_last"))
    assert last <= first - 8
