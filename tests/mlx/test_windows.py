"""Convolution and pooling over many geometries, and kernels as they are chosen on a GPU."""

from __future__ import annotations

import random

import numpy as np
import pytest
from mithril import ops
from mithril.errors import ShapeError
from mithril.ir import Op
from mithril.ops.attention import Attention
from mithril.ops.windows import Padding
from mithril.testing.arrays import floats
from mithril.testing.evaluate import apply, type_of
from mithril.types import DType, Shape
from mithril_mlx.kernels import attention, convolution, exponential, normalization, position

from tests.mlx.test_kernels import check

F32 = np.float32


class Draw:
    """A geometry drawn at random: steps, windows and sizes small, so that every edge is met."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rank = self.rng.choice([1, 2, 2, 2, 3])
        self.size, self.window, self.stride = self.sizes(8), self.sizes(4), self.sizes(4)

    def sizes(self, most: int) -> Shape:
        return tuple(self.rng.randint(1, most) for _ in range(self.rank))

    def padding(self, most: Shape) -> Padding:
        return tuple((self.rng.randint(0, n), self.rng.randint(0, n)) for n in most)

    def array(self, *shape: int) -> np.ndarray:
        return floats(*shape, seed=self.rng.randint(0, 99)).astype(F32)


def is_possible(op: Op, *arrays: np.ndarray) -> bool:
    try:
        op.infer([type_of(array) for array in arrays])
    except ShapeError:
        return False
    return True


def check_convolution(seed: int) -> bool:
    """Return whether there is such a convolution, and compare it and its gradients."""
    draw = Draw(seed)
    groups, dilated = draw.rng.choice([1, 1, 2, 3]), draw.rng.random() < 0.5
    dilation = draw.sizes(3) if dilated else (1,) * draw.rank
    op = ops.Convolution(draw.stride, draw.padding((4,) * draw.rank), dilation, groups)
    x, w = draw.array(2, 2 * groups, *draw.size), draw.array(3 * groups, 2, *draw.window)
    if not is_possible(op, x, w):
        return False
    dy = draw.array(*apply(op, x, w)[0].shape)
    check(op, x, w)
    check(op.input_gradient(draw.size), dy, w)
    check(op.weight_gradient(draw.window), x, dy)
    return True


def check_pools(seed: int) -> bool:
    draw = Draw(seed)
    padding = draw.padding(tuple(size - 1 for size in draw.window))
    op = ops.MaxPool(draw.window, draw.stride, padding)
    x = np.round(draw.array(2, 3, *draw.size))  # with ties
    if not is_possible(op, x):
        return False
    check(op, x)
    (y,) = apply(op, x)
    dy = draw.array(*y.shape)
    check(ops.MaxPoolGradient(draw.window, draw.stride, padding), x, y, dy)
    for counted in (False, True):
        check(ops.AvgPool(draw.window, draw.stride, padding, counted), x)
        check(ops.AvgPoolGradient(draw.window, draw.stride, padding, counted, draw.size), dy)
    return True


@pytest.mark.parametrize("checks", [check_convolution, check_pools])
def test_any_geometry(checks: object) -> None:
    assert callable(checks)
    assert sum(checks(seed) for seed in range(150)) > 50


def test_more_dimensions_than_mlx_convolves() -> None:
    op = ops.Convolution((1, 2, 1, 1), ((1, 0),) * 4, (1,) * 4, 1)
    x, w = floats(1, 2, 3, 4, 2, 3).astype(F32), floats(2, 2, 2, 1, 2, 1).astype(F32)
    check(op, x, w)
    dy = floats(*apply(op, x, w)[0].shape, seed=2).astype(F32)
    check(op.input_gradient(x.shape[2:]), dy, w)
    check(op.weight_gradient(w.shape[2:]), x, dy)


# ------------------------------------------------------------------ what is chosen on a GPU


@pytest.fixture
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX's fused kernels exist on CPU too, made of other ops; what is handed to them can be seen."""
    for module in (attention, convolution, exponential, normalization, position):
        monkeypatch.setattr(module, "on_gpu", lambda: True)


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize("dtype", [F32, np.float16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_fused_attention(groups: int, causal: bool, dtype: type[np.generic]) -> None:
    q, k, v = (
        floats(2, s, h, 4, seed=s).astype(dtype) for s, h in [(3, 4), (5, groups), (5, groups)]
    )
    check(Attention(causal, 0.7), q, k, v)


@pytest.mark.usefixtures("_gpu")
def test_attention_with_a_mask_is_not_fused() -> None:
    """A row that sees nothing is 0 here, and NaN there."""
    q, mask = floats(2, 3, 4, 4).astype(F32), np.array([[[[True] * 3, [False] * 3, [True] * 3]]])
    check(Attention(False, 0.7), q, q, q, mask)


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize("dtype", [F32, np.float16])
def test_other_fused_kernels(dtype: type[np.generic]) -> None:
    x, row = floats(4, 6).astype(dtype), floats(6, seed=1).astype(dtype)
    for axis in (0, 1):
        check(ops.Softmax(axis), x)
        check(ops.LogSoftmax(axis), x)
    check(ops.LayerNorm(1e-5), x, row, -row)
    check(ops.RmsNorm(1e-5), x, row)
    check(ops.CrossEntropy(), x, np.array([0, 5, 2, 3]))


@pytest.mark.usefixtures("_gpu")
def test_positions_are_turned_in_float32() -> None:
    """There is no float64."""
    check(ops.Rope(100.0, 3, False, False), floats(2, 4, 3, 6).astype(F32), np.array([4, 0, 8, 7]))


@pytest.mark.usefixtures("_gpu")
def test_convolutions_of_groups_are_those_of_mlx() -> None:
    for seed in range(40):
        check_convolution(seed)


# ------------------------------------------------------------------ choosing


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int16", "bfloat16", "int32", "float32", "int64"]
)
@pytest.mark.parametrize(
    "shapes", [((96, 64),) * 3, ((96, 1), (64,), ()), ((1, 64), (96, 64), (1, 1))]
)
def test_where_of_many_elements_chooses_bits(shapes: tuple[Shape, ...], dtype: str) -> None:
    """NaN and infinities are not looked at; the other operand's are left behind."""
    condition, *others = (floats(*shape, seed=i) for i, shape in enumerate(shapes))
    x, y = (array.astype(DType(dtype).numpy) for array in others)
    if x.dtype.kind == "f":
        x.flat[::3], x.flat[1::3], y.flat[:1] = np.nan, -np.inf, -0.0
    check(ops.Where(), condition > 0.1, x, y)
