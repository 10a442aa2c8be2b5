"""Repeat: a body run n times, as one op that contains a graph.

Operands are carries, then invariants, then stacked operands. An iteration gets the carries as the
iteration before left them, the invariants as they are, and its own slice of every stacked operand
along their leading dimension. The body's outputs are first the next carries, then values that are
stacked, one slice an iteration. Results are the last carries and these stacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from mithril.errors import GraphError, ShapeError
from mithril.ir.graph import Graph, Value
from mithril.ir.nested import Nested
from mithril.ir.op import Types, register
from mithril.types import TensorType


@register
@dataclass(frozen=True)
class Repeat(Nested):
    """A body run `count` times; see the module's text.

    Args:
        body: the graph of one iteration.
        count: number of iterations.
        carried: how many operands, and outputs of the body, are carries.
        stacked: how many operands, the last ones, have a leading dimension of `count`.
        reverse: whether slices are taken, and put, from the last to the first.
    """

    name: ClassVar[str] = "repeat"
    count: int
    carried: int
    stacked: int
    reverse: bool = False

    def infer(self, inputs: Types) -> Types:
        """Return the types of the last carries and of the stacks.

        Raises:
            ShapeError: the operands do not fit, or a carry changes its type.
        """
        expected = [self._outer(i, v.type) for i, v in enumerate(self.body.inputs)]
        if list(inputs) != expected:
            raise ShapeError(
                f"repeat takes {', '.join(map(str, expected)) or 'nothing'}; it is given "
                f"{', '.join(map(str, inputs)) or 'nothing'}"
            )
        results = [value.type for value in self.body.outputs.values()]
        for value, after in zip(self.body.inputs, results[: self.carried], strict=False):
            if value.type != after:
                raise ShapeError(
                    f"repeat carries '{value.name}' into an iteration as {value.type} and out of "
                    f"it as {after}; a carry keeps its shape and dtype"
                )
        return [*results[: self.carried], *(stack(t, self.count) for t in results[self.carried :])]

    @property
    def iterations(self) -> int:
        """How often the body runs."""
        return self.count

    def narrow(self, wanted: Sequence[bool]) -> tuple[Repeat, Sequence[bool]]:
        """Return the loop without the stacks that are not needed; its carries stay."""
        kept = [position < self.carried or is_wanted for position, is_wanted in enumerate(wanted)]
        outputs = zip(self.body.outputs.items(), kept, strict=True)
        fewer = dict(item for item, is_kept in outputs if is_kept)
        return replace(self, body=Graph(self.body.inputs, self.body.nodes, fewer)), kept

    @property
    def carries(self) -> tuple[Value, ...]:
        """The body's inputs that are carries."""
        return self.body.inputs[: self.carried]

    @property
    def invariants(self) -> tuple[Value, ...]:
        """The body's inputs that are the same in every iteration."""
        return self.body.inputs[self.carried : len(self.body.inputs) - self.stacked]

    @property
    def slices(self) -> tuple[Value, ...]:
        """The body's inputs that are slices of stacked operands."""
        return self.body.inputs[len(self.body.inputs) - self.stacked :]

    @property
    def next_carries(self) -> tuple[Value, ...]:
        """The body's outputs that become the carries of the next iteration."""
        return tuple(self.body.outputs.values())[: self.carried]

    @property
    def made(self) -> tuple[Value, ...]:
        """The body's outputs that are stacked."""
        return tuple(self.body.outputs.values())[self.carried :]

    def _outer(self, position: int, inner: TensorType) -> TensorType:
        first = len(self.body.inputs) - self.stacked
        return stack(inner, self.count) if position >= first else inner

    def __str__(self) -> str:
        direction = ", reverse" if self.reverse else ""
        return f"repeat[{self.count} times, {self.carried} carried{direction}]"


def part_of(path: str, part: int) -> str:
    """Return the path of a part of a loop that is cut into loops one after another."""
    return f"{path}.part_{part}"


def stack(type: TensorType, count: int) -> TensorType:
    """Return the type with a leading dimension."""
    return type.with_shape((count, *type.shape))


def check_count(count: object, stacked: Sequence[TensorType]) -> int:
    """Return the number of iterations that is meant.

    Args:
        count: the number given, or None to take it from the stacked operands.
        stacked: their types.

    Raises:
        GraphError: there is none, or it is no positive integer.
        ShapeError: a stacked operand has another leading size.
    """
    if count is None and stacked and stacked[0].rank:
        count = stacked[0].shape[0]
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise GraphError(f"repeat runs {count!r} times; give a positive integer")
    for type in stacked:
        if not type.rank or type.shape[0] != count:
            raise ShapeError(
                f"repeat runs {count} times over stacked {type}; its first dimension must be "
                f"{count}, one slice an iteration"
            )
    return count
