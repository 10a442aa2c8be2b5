"""Which results are made in the memory of operands: of what is theirs, and read for the last time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mithril import ops
from mithril.engine.arena import makes_anew
from mithril.engine.operand_reuse import find_reused_operands
from mithril.ir import Builder, Tensor
from mithril.ops.arithmetic import Multiply
from mithril.types import DType, TensorType


def find(made: Callable[[Tensor], dict[str, Tensor]], dtype: DType = DType.float32) -> list[int]:
    builder = Builder()
    x = builder.input(TensorType((4, 6), dtype), "x")
    graph = builder.build(made(x))
    found = find_reused_operands(
        graph, lambda node: (0, 1) if isinstance(node.op, Multiply) else (), makes_anew
    )
    return [found.get(node, -1) for node in graph.nodes if isinstance(node.op, Multiply)]


def halve(x: Tensor) -> dict[str, Tensor]:
    return {"y": (x + x) * 0.5}


def halve_input(x: Tensor) -> dict[str, Tensor]:
    return {"y": x * 0.5}


def halve_output(x: Tensor) -> dict[str, Tensor]:
    total = x + x
    return {"y": total * 0.5, "total": total}


def halve_then_read(x: Tensor) -> dict[str, Tensor]:
    total = x + x
    half = total * 0.5
    return {"y": half + total}


def square(x: Tensor) -> dict[str, Tensor]:
    total = x + x
    return {"y": total * total}


def halve_second(x: Tensor) -> dict[str, Tensor]:
    return {"y": x * (x + 1.0)}


def halve_reshaped(x: Tensor) -> dict[str, Tensor]:
    return {"y": ops.reshape(x + x, (24,)) * 0.5}


def halve_view_of_view(x: Tensor) -> dict[str, Tensor]:
    total = x + x
    return {"y": ops.reshape(total, (24,)) * 0.5, "z": ops.reshape(total, (2, 12))}


def broadcast(x: Tensor) -> dict[str, Tensor]:
    return {"y": ops.sum(x, 0) * x}


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (halve, [0]), (halve_input, [-1]), (halve_output, [-1]), (halve_then_read, [-1]),
        (square, [-1]), (halve_second, [1]), (halve_reshaped, [0]), (halve_view_of_view, [-1]),
        (broadcast, [-1]),
    ],
)  # fmt: skip
def test_operands_are_reused_where_nobody_else_has_them(
    made: Callable[[Tensor], dict[str, Tensor]], wanted: list[int]
) -> None:
    assert find(made) == wanted


def test_integers_are_not_reused() -> None:
    assert find(lambda x: {"y": (x + x) * (x + 1)}, DType.int32) == [-1]
