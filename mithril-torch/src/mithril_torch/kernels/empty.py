"""What a kernel gives where an operand has no elements."""

from __future__ import annotations

from typing import Any

from mithril.spi import Types

from mithril_torch.kernels.index import fill
from mithril_torch.kernels.table import EmitExpression


def zero_without_elements(write: EmitExpression) -> EmitExpression:
    """Return how an op of one result is written: as zeros where an operand has no elements.

    PyTorch refuses such operands, or gives results of another shape.

    Args:
        write: how it is written of operands with elements.
    """

    def text(op: Any, types: Types) -> str:
        if all(type.size for type in types):
            return write(op, types)
        (result,) = op.infer(types)
        return fill(result, 0)

    return text
