"""Results that are written over operands: only where nobody else has or reads that memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import numpy as np
import pytest
import torch
from mithril import P, ops
from mithril import numpy as mnp
from mithril.spi import DType
from mithril_torch.program.runtime_library.channels import batch_norm, batch_norm_gradient

from tests.tolerances import TOLERANCE

SHAPE = (4, 6)
Function = Callable[..., Any]


def code(function: Function, mesh: ml.Mesh | None = None, spec: P | None = None) -> str:
    """Compare a function, and the gradients of what it makes, with NumPy's; return its program."""

    @ml.layer
    def Made(x: Any, y: Any) -> Any:  # noqa: N802
        return function(x, y)

    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(SHAPE, dtype=np.float32) for name in "xy"}
    before = {name: array.copy() for name, array in arrays.items()}
    found = []
    on = ml.TorchBackend(mesh or ml.Mesh(), device="cpu", executor="lockstep" if mesh else "auto")
    for backend in (ml.NumpyBackend(), on):
        model = ml.Model()
        model |= Made()(x="x", y="y", output="z")
        split = spec if spec and backend is on else P()
        given = {n: backend.array(a, sharding=split) for n, a in arrays.items()}
        compiled = ml.compile(model, backend, shapes=given, differentiable=["x", "y"])
        slope = {"z": np.ones(SHAPE, np.float32)}
        for _ in range(2):  # nothing that is kept was written over
            outputs, gradients = compiled.evaluate({}, given, slope)
        results = {**outputs, **gradients}
        found.append({name: array.numpy() for name, array in results.items()})
        for name, array in given.items():
            np.testing.assert_array_equal(array.numpy(), before[name])
    for name, array in found[0].items():
        np.testing.assert_allclose(found[1][name], array, *TOLERANCE["float32"])
    return compiled.code()


def test_what_an_op_made_is_written_over() -> None:
    text = code(lambda x, y: mnp.relu(x * y + y * 2.0))
    assert "torch.relu_(" in text
    assert ".add_(" in text
    assert "grad_input=" not in text  # the cotangent is the caller's
    assert "aten.threshold_backward(" in text
    assert "torch.gt(" not in text


def test_a_sum_of_gradients_grows_in_one_memory() -> None:
    text = code(lambda x, y: mnp.tanh(x) * mnp.exp(x) + y)
    assert ".add_(" in text


def read_again(x: Any, y: Any) -> Any:
    z = x * y
    return (z + mnp.relu(z)) * 1.0


def twice(x: Any, y: Any) -> Any:
    z = mnp.tanh(x) * y
    return z + z


def views(x: Any, y: Any) -> Any:
    z = x * y
    return mnp.relu(z.reshape(6, 4)).reshape(4, 6) + z


@pytest.mark.parametrize(
    "function",
    [
        read_again,
        twice,
        views,
        lambda x, y: x + y,
        lambda x, y: mnp.relu(mnp.broadcast_to(x[:1], SHAPE)) * y,
        lambda x, y: mnp.relu(x * y)[:, ::-1] + mnp.relu(x * y),
        lambda x, y: ops.where(x > 0, mnp.relu(y) + x, y),
    ],
)
def test_what_is_read_again_stays(function: Function) -> None:
    code(function)


def test_inputs_stay() -> None:
    text = code(lambda x, y: mnp.relu(x) + y)
    forward = text.partition("backward")[0]
    assert "relu_(" not in forward


def test_what_is_sent_is_not_written_over() -> None:
    text = code(lambda x, y: mnp.relu(x * y + y), ml.Mesh(data=2), P("data"))
    assert "torch.relu_(" in text
    code(lambda x, y: (x * y).sum(0) + mnp.relu(x * y), ml.Mesh(data=2), P("data"))


def test_an_arena_has_places_of_its_own() -> None:
    backend = ml.TorchBackend(device="cpu")
    model = ml.Model()
    model |= ml.Linear(6, name="up")(input="x", output="h")
    model |= ml.Relu()(input="h", output="z")
    compiled = ml.compile(model, backend, shapes={"x": SHAPE}, memory_planning="greedy")
    assert "relu_(" not in compiled.code(gradients=False)


def losses(x: Any, y: Any) -> Any:
    ids = ops.iota(x, (4,), dtype=DType.int32)
    return mnp.tanh(x) * ops.cross_entropy(x @ y.T @ y, ids).reshape(4, 1)


def test_gradients_of_cross_entropy_are_written_over_logits() -> None:
    assert ", over=True)" in code(losses)

    def of_input(x: Any, y: Any) -> Any:
        ids = ops.iota(x, (4,), dtype=DType.int32)
        return y * ops.cross_entropy(x, ids).reshape(4, 1)

    text = code(of_input)
    assert "cross_entropy_gradient(" in text
    assert "over=True" not in text  # the logits are the caller's


def test_what_a_product_is_added_to_is_written_over_where_nobody_else_reads_it() -> None:
    """Gradients of what several products read, and residual sums, which are kept for gradients."""
    text = code(lambda x, y: x @ y.T @ y + x @ x.T @ x)
    assert ".addmm_(" in text
    text = code(lambda x, y: mnp.tanh(x) + x @ y.T @ y)
    assert "torch.addmm(" in text


@pytest.mark.parametrize("function", [ops.gelu, ops.silu, lambda x: ops.gelu(x, approximate=True)])
def test_gradients_of_gates_are_written_over_cotangents(function: Function) -> None:
    text = code(lambda x, y: function(x * 2.0) * (y * 3.0))
    assert ", grad_input=" in text
    assert ".mul_(" in text


def test_the_gradient_of_a_norm_is_made_over_what_it_has_normalised() -> None:
    model = ml.Model()
    model |= ml.Conv2d(4, 3, padding=1, bias=False, name="conv")(input="x", output="a")
    model |= ml.BatchNorm(name="norm")(
        input="a", running_mean="m", running_variance="v", output="z"
    )
    shapes = {"x": (2, 3, 8, 8), "m": (4,), "v": (4,)}
    assert "over=True" in ml.compile(model, ml.TorchBackend(device="cpu"), shapes=shapes).code()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_a_norm_has_the_same_gradients_over_its_operand(
    dtype: torch.dtype, layout: torch.memory_format
) -> None:
    torch.manual_seed(0)
    x, g = torch.randn(2, 3, 4, 6, 5).mul(3.0).add(2.0).to(dtype).unbind()
    x, g = (image.contiguous(memory_format=layout) for image in (x, g))
    gain, bias = torch.rand(2, 4).to(dtype).unbind()
    _, mean, _, scale = batch_norm(x, gain, bias, 1e-5)
    expected = batch_norm_gradient(x, gain, mean, scale, g)
    found = batch_norm_gradient(x, gain, mean, scale, g, over=True)
    torch.testing.assert_close(found, expected)
    is_over = found[0].data_ptr() == x.data_ptr()
    assert is_over == (layout is torch.channels_last and dtype is not torch.bfloat16)
