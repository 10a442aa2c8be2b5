"""Every op of PyTorch's table on operands that do not lie in memory in the order of their indices.

Transposes and slices are views, so that any op may be given one; and what an op makes may keep the
strides of an operand. Some of PyTorch's kernels for losses, norms and softmax write or read a
tensor as if it lay in order, whatever its strides are.
"""

from __future__ import annotations

from collections.abc import Callable

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril.ir import Op
from mithril.testing.cases import CASES, Case, is_first_of_its_op
from mithril.testing.evaluate import apply, assert_close, coarsest, type_of

from tests.profiles import quick

torch = pytest.importorskip("torch")
pytest.importorskip("mithril_torch")
from mithril_torch.kernels import EXPRESSIONS  # noqa: E402
from mithril_torch.program import runtime_library  # noqa: E402
from mithril_torch.program.buffers import is_written_into, write_into  # noqa: E402

from tests.torch.test_primitives import plain, tensor  # noqa: E402

Arrays = tuple[np.ndarray, ...]
TABLE = [case for case in CASES if case.op.name in EXPRESSIONS]
FITTING = ("lstm_gradient", "qr", "svd")
"""Ops whose operands fit one another, or whose results are not unique where rows are equal."""


def turned(array: np.ndarray) -> torch.Tensor:
    """Lay dimensions out in the reverse order."""
    return tensor(array.T.copy()).permute(list(range(array.ndim))[::-1])


def swapped(array: np.ndarray) -> torch.Tensor:
    """Lay the last dimension out before the one that precedes it."""
    return tensor(array.swapaxes(-1, -2).copy()).mT if array.ndim > 1 else tensor(array)


def with_channels_last(array: np.ndarray) -> torch.Tensor:
    """Lay the second dimension out as the last one, as those of images may lie."""
    return (
        tensor(np.moveaxis(array, 1, -1).copy()).movedim(-1, 1) if array.ndim > 2 else turned(array)
    )


def spread(array: np.ndarray) -> torch.Tensor:
    """Take every other element of something twice as long."""
    if not array.ndim:
        return tensor(array)
    wide = np.repeat(array, 2, axis=-1)
    wide[..., 1::2] = np.roll(array, 1)
    return tensor(wide)[..., ::2]


def repeated(array: np.ndarray) -> torch.Tensor:
    """Take the first row, if there are floats in it, as all of them."""
    is_repeated = array.ndim and array.dtype.kind == "f"
    return tensor(array[:1]).expand(array.shape) if is_repeated else tensor(array)


LAYOUTS: list[Callable[[np.ndarray], torch.Tensor]] = [
    turned, swapped, with_channels_last, spread, repeated,
]  # fmt: skip


@quick(is_first_of_its_op)
@pytest.mark.parametrize("case", TABLE, ids=str)
def test_an_op_of_operands_that_lie_otherwise(case: Case) -> None:
    arrays = [a.astype(np.float32) if a.dtype == np.float64 else a for a in case.arrays]
    for layout in LAYOUTS[: -1 if case.op.name in FITTING else None]:
        operands = [layout(array) for array in arrays]
        values = tuple(plain(operand) for operand in operands)
        with np.errstate(all="ignore"):
            expected = apply(case.op, *values)
        for made in run(case.op, operands, values):
            for found, wanted in zip(made, expected, strict=True):
                assert found.dtype == wanted.dtype, layout
                assert_close(found, wanted, coarsest(*values, wanted))


def run(op: Op, operands: list[torch.Tensor], values: Arrays) -> list[list[np.ndarray]]:
    """Return what an op makes; also of memory that is given, where it can write into such."""
    types = [type_of(value) for value in values]
    names = (f"x[{i}]" for i in range(len(operands)))
    expression = EXPRESSIONS[op.name](op, types).format(*names)
    scope = {**vars(runtime_library), "x": operands, "device": "cpu"}
    with torch.inference_mode():
        made = eval(expression, scope)
        found = [list(made) if isinstance(made, tuple) else [made]]
        if is_written_into(expression):
            scope["given"] = torch.full_like(made, 7, memory_format=torch.contiguous_format)
            exec(write_into("given", expression), scope)
            found.append([scope["given"]])
    return [[plain(y) for y in results] for results in found]


def test_the_cross_entropy_of_logits_both_ways() -> None:
    """As of images and texts that are to be told apart: rows of one matrix, and its columns."""

    def loss(logits: ml.Array) -> ml.Array:
        ids = mnp.arange(logits.shape[0])
        return mnp.cross_entropy(logits, ids).mean() + mnp.cross_entropy(logits.T, ids).mean()

    logits = np.random.default_rng(0).standard_normal((5, 5)).astype(np.float32)
    found, wanted = (
        ml.jit(ml.grad(loss))(backend.array(logits)).numpy()
        for backend in (ml.TorchBackend(), ml.NumpyBackend())
    )
    assert_close(found, wanted)
