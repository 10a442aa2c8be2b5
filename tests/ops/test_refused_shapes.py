"""Shapes that have no answer are refused by name: nothing to choose from, letters that lead nowhere."""

from __future__ import annotations

import pytest
from mithril import ops
from mithril.errors import ShapeError
from mithril.ir import Builder
from mithril.types import DType, TensorType

F32, I32, BOOL = DType.float32, DType.int32, DType.bool_
MATRIX = TensorType((4, 6), F32)


@pytest.mark.parametrize(
    ("function", "types", "message"),
    [
        (ops.max, [TensorType((0, 3), F32)], r"max of float32\[0, 3\].*there are no elements"),
        (ops.mean, [TensorType((0, 3), F32)], r"mean of float32\[0, 3\].*there are no elements"),
        (ops.argmin, [TensorType((0,), F32)], r"argmin of float32\[0\].*there are no elements"),
        (ops.max, [TensorType((3,), BOOL)], r"'max' needs numbers, not bool; use any\(\) or all"),
        (lambda x: ops.sum(x, (0, 0)), [MATRIX], r"names a dimension twice in \(0, 0\)"),
        (lambda x: ops.sum(x, 2), [MATRIX], "names dimension 2 of a tensor of rank 2"),
        (
            lambda x: x.builder.apply(ops.Sum((3,), False), x),
            [MATRIX],
            r"cannot reduce dimensions \(3,\) of float32\[4, 6\]",
        ),
        (
            lambda x: x.builder.apply(ops.AnyTrue((0,), False), x),
            [MATRIX],
            "'any' needs bool, not float32; compare or cast first",
        ),
        (ops.take, [MATRIX, MATRIX], "'take' needs integer ids, not float32; cast them"),
        (ops.take, [TensorType((), F32), TensorType((2,), I32)], "cannot take rows of float32"),
        (
            lambda ids, updates: ops.scatter_add(ids, updates, 5),
            [TensorType((2,), I32), TensorType((3, 2), F32)],
            r"cannot scatter float32\[3, 2\] by ids int32\[2\]",
        ),
        (lambda x: ops.iota(x, (2,), 1), [MATRIX], "iota names dimension 1 of a tensor of rank 1"),
        (
            ops.softmax,
            [TensorType((3, 0), F32)],
            r"softmax of float32\[3, 0\]; dimension 1 is empt",
        ),
        (ops.log_softmax, [TensorType((3,), I32)], "log_softmax needs a float dtype, not int32"),
        (
            ops.cross_entropy,
            [TensorType((2, 0), F32), TensorType((2,), I32)],
            "has no classes; give at least one",
        ),
        (
            lambda q, k: ops.attention(q, k, k, causal=True),
            [TensorType((1, 4, 2, 3), F32), TensorType((1, 3, 2, 3), F32)],
            "4 queries and 3 keys and is causal; every query must see at least one key",
        ),
        (
            lambda x: ops.einsum("ab,bc->ad", x, x),
            [MATRIX],
            "'ab,bc->ad' names 'c' only once; a letter stands for a dimension of at least two",
        ),
        (
            lambda x: ops.einsum("aa,ab->b", x, x),
            [MATRIX],
            "'aa,ab->b' names 'a' twice in one term",
        ),
    ],
)
def test_shape_is_refused(function, types: list[TensorType], message: str) -> None:
    builder = Builder()
    operands = [builder.input(t, f"x{i}") for i, t in enumerate(types)]
    with pytest.raises(ShapeError, match=message):
        function(*operands)
