"""How operands, dtypes and numbers are written in the text of a program."""

from __future__ import annotations

import math

from mithril.spi import DType, Scalar, TensorType


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
