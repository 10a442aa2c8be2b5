"""Checkpoint: a graph run as one op, whose values are not kept for the backward computation.

The forward computation is that of the body. The gradient runs the body again, on operands that come
`after` the cotangent, instead of keeping what the body computed (`transform.checkpoint`). Before
anything is planned, the body takes the op's place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mithril.errors import ShapeError
from mithril.ir.nested import Nested
from mithril.ir.op import Types, register


@register
@dataclass(frozen=True)
class Checkpoint(Nested):
    """A body that is computed again rather than kept; see the module's text."""

    name: ClassVar[str] = "checkpoint"

    def infer(self, inputs: Types) -> Types:
        """Return the types of the body's outputs.

        Raises:
            ShapeError: the operands do not fit the body.
        """
        expected = [value.type for value in self.body.inputs]
        if list(inputs) != expected:
            raise ShapeError(
                f"checkpoint takes {', '.join(map(str, expected)) or 'nothing'}; its operands are "
                f"{', '.join(map(str, inputs)) or 'nothing'}"
            )
        return [value.type for value in self.body.outputs.values()]

    def __str__(self) -> str:
        return "checkpoint"
