"""Unsigned integers of 16 and 32 bits, for which PyTorch has no arithmetic: ways around them.

A way changes how an op is written: operands of these types enter the expression as another type,
and the result leaves it as what the op promises. Other types pass as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from mithril.spi import DType, TensorType, Types

from mithril_torch.kernels.expression import dtype
from mithril_torch.kernels.table import EmitExpression

SIGNED = {DType.uint16: DType.int16, DType.uint32: DType.int32}
_OPERAND = re.compile(r"\{(\d+)\}")


def wide(write: EmitExpression) -> EmitExpression:
    """Compute in int64, which holds all of their numbers."""
    return _around(write, lambda t: (DType.int64, ".to(torch.int64)"), "to")


def as_signed(write: EmitExpression) -> EmitExpression:
    """Compute on the same bits as signed numbers: of ops to which the sign is a bit like others."""
    return _around(write, lambda t: (SIGNED[t], f".view({dtype(SIGNED[t])})"), "view")


def in_order(write: EmitExpression) -> EmitExpression:
    """Compare signed numbers that have the same order: the highest bit is turned around."""

    def flip_sign_bit(t: DType) -> tuple[DType, str]:
        signed = SIGNED[t]
        return signed, f".view({dtype(signed)}).bitwise_xor({-(1 << 8 * t.itemsize - 1)})"

    return _around(write, flip_sign_bit, "to")


def _around(
    write: EmitExpression, enter: Callable[[DType], tuple[DType, str]], leave: str
) -> EmitExpression:
    def text(op: Any, types: Types) -> str:
        entering = {i: enter(t.dtype) for i, t in enumerate(types) if t.dtype in SIGNED}
        if not entering:
            return write(op, types)
        entered = [
            TensorType(t.shape, entering[i][0]) if i in entering else t for i, t in enumerate(types)
        ]

        def operand(found: re.Match[str]) -> str:
            _, change = entering.get(int(found[1]), (None, ""))
            return found[0] + change

        inner = _OPERAND.sub(operand, write(op, entered))
        made, promised = op.infer(entered)[0].dtype, op.infer(types)[0].dtype
        return inner if made == promised else f"{inner}.{leave}({dtype(promised)})"

    return text
