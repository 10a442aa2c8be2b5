"""Assigns values to the flat buffer of an all_reduce, so that they are not copied into it.

An all_reduce works in place on one flat buffer, allocated before the first of its operands is
computed. An operand without other uses is written there by the op that computes it; others are
copied there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import accumulate

from mithril.ir import Constant, Graph, Node, Value
from mithril.ops.collective import AllReduce, AxisIndex

from mithril_torch.kernels.expression import Direct, dtype

_HAS_OUT_ARGUMENT = (
    "torch.add(", "torch.sub(", "torch.mul(", "torch.div(", "torch.neg(", "torch.sum(",
    "torch.amax(", "torch.amin(",
)  # fmt: skip


@dataclass(frozen=True)
class Buffer:
    """The memory of one all_reduce.

    Args:
        name: of the variable.
        node: the all_reduce.
        written_in_place: operands that the op which makes them writes there.
    """

    name: str
    node: Node
    written_in_place: frozenset[Value]

    @property
    def is_single(self) -> bool:
        """Whether there is one operand; it is the buffer then, and has its shape."""
        return len(self.node.inputs) == 1

    def declaration(self) -> str:
        """Return the line that makes the buffer."""
        (first, *_), sizes = self.node.inputs, [v.type.size for v in self.node.inputs]
        shape = list(first.type.shape) if self.is_single else [sum(sizes)]
        return f"{self.name} = torch.empty({shape}, dtype={dtype(first.type)}, device=device)"

    def views(self) -> list[str]:
        """Return, for each operand, its part of the buffer."""
        if self.is_single:
            return [self.name]
        ends = list(accumulate(value.type.size for value in self.node.inputs))
        return [
            f"{self.name}[{end - value.type.size}:{end}].view({list(value.type.shape)})"
            for value, end in zip(self.node.inputs, ends, strict=True)
        ]


def plan_buffers(graph: Graph, prefix: str) -> dict[Node, Buffer]:
    """Return the buffer of each all_reduce.

    Args:
        graph: a local graph.
        prefix: what the names of the buffers start with.
    """
    uses = Counter(value for node in graph.nodes for value in node.inputs)
    uses.update(graph.outputs.values())
    made = {node.outputs[0] for node in graph.nodes if _can_write_into(node)}
    found: dict[Node, Buffer] = {}
    for node in graph.nodes:
        if isinstance(node.op, AllReduce):
            there = frozenset(v for v in node.inputs if v in made and uses[v] == 1)
            found[node] = Buffer(f"{prefix}{len(found)}", node, there)
    return found


def _can_write_into(node: Node) -> bool:
    is_special = node.op.is_collective or isinstance(node.op, Constant | AxisIndex)
    return len(node.outputs) == 1 and not is_special and not node.op.bodies


def write_into(target: str, expression: str) -> str:
    """Return the line that puts the value of an expression into memory that is there.

    >>> write_into("v1", "torch.sum(a, (0,))")
    'torch.sum(a, (0,), out=v1)'
    >>> write_into("v1", "torch.mm(a, b).t()")
    'v1.copy_(torch.mm(a, b).t())'
    """
    if isinstance(expression, Direct):
        return expression.into.format(out=target)
    is_total = expression.startswith("torch.sum(") and ", (" not in expression  # takes no `out`
    if expression.startswith(_HAS_OUT_ARGUMENT) and _is_one_call(expression) and not is_total:
        return f"{expression[:-1]}, out={target})"
    return f"{target}.copy_({expression})"


def _is_one_call(expression: str) -> bool:
    depth = 0
    for position, character in enumerate(expression):
        depth += (character == "(") - (character == ")")
        if depth == 0 and character == ")":
            return position == len(expression) - 1
    return False
