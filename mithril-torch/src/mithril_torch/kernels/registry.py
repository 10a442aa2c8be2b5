"""The table of how ops are written in PyTorch, by op name.

An op is written as the text of one Python expression. Its operands stand in it as `{0}`, `{1}`, …;
it may name `torch`, `aten` (`torch.ops.aten`), `math`, `device` (where the program runs) and the
functions of `mithril_torch.program.runtime_library`. An op with several results is an expression of
a tuple. Whatever depends on attributes and shapes alone is worked out when the text is made.

An expression never writes into its operands. It may return a view of one, or an operand itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mithril.ir import Op
from mithril.types import DType, Scalar, TensorType

Types = Sequence[TensorType]
EmitExpression = Callable[[Any, Types], str]
EXPRESSIONS: dict[str, EmitExpression] = {}


class Direct(str):
    """An expression that can also be written so that its value is made in memory that is there.

    Args:
        text: the expression.
        into: the statement; the memory stands in it as `{out}`.

    >>> Direct("torch.mm({0}, {1})", "torch.mm({0}, {1}, out={out})").format("x", "y").into
    'torch.mm(x, y, out={out})'
    """

    into: str

    def __new__(cls, text: str, into: str) -> Direct:
        """Make an expression, which is a string like any other."""
        made = super().__new__(cls, text)
        made.into = into
        return made

    def format(self, *operands: str) -> Direct:  # type: ignore[override]
        """Return both with operands in their places."""
        return Direct(super().format(*operands), self.into.format(*operands, out="{out}"))


def kernel(*op_classes: type[Op]) -> Callable[[EmitExpression], EmitExpression]:
    """Register a function `(op, operand types) -> expression` for op classes."""

    def add(write: EmitExpression) -> EmitExpression:
        for op_class in op_classes:
            EXPRESSIONS[op_class.name] = write
        return write

    return add


def same(table: Mapping[type[Op], str]) -> None:
    """Register expressions that are the same whatever the attributes and types."""
    for op_class, text in table.items():
        kernel(op_class)(_always(text))


def _always(text: str) -> EmitExpression:
    return lambda op, types: text


def dtype(of: DType | TensorType) -> str:
    """Return how a dtype is written: `torch.float32`."""
    name = of.dtype if isinstance(of, TensorType) else of
    return f"torch.{name.value}"


def number(value: Scalar) -> str:
    """Return how a Python number is written, infinities and NaN included.

    >>> number(0.5), number(float("-inf"))
    ('0.5', '-math.inf')
    """
    if math.isnan(value):
        return "math.nan"
    if math.isinf(value):
        return "math.inf" if value > 0 else "-math.inf"
    return repr(value)
