"""A training step on images with their channels last: the same, with fewer transpositions."""

from __future__ import annotations

import re
from pathlib import Path

import mithril as ml
import mlx.core as mx
import numpy as np
import pytest
from mithril import P
from mithril.mesh import Mesh
from mithril.testing.arrays import floats
from mithril.testing.evaluate import assert_close


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
