"""Assigns values to the flat buffer of an all_reduce, so that they are not copied into it.

An all_reduce works in place on one flat buffer, allocated before the first of its operands is
computed. An operand without other uses is written there by the op that computes it; others are
copied there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import accumulate

from mithril.spi import Graph, Node, Value
from mithril.spi.ops import AllReduce, AxisIndex, Constant, Wait, collective_of

from mithril_torch.kernels.expression import Direct, dtype
from mithril_torch.program.fusions import Fusion

_HAS_OUT_ARGUMENT = frozenset(f"torch.{name}" for name in (
    "abs", "add", "amax", "amin", "atan", "bitwise_and", "bitwise_left_shift", "bitwise_not",
    "bitwise_or", "bitwise_right_shift", "bitwise_xor", "cat", "ceil", "cos", "cosh", "cumprod",
    "cumsum", "div", "eq", "erf", "exp", "expm1", "floor", "ge", "gt", "le", "log", "log1p",
    "logical_and", "logical_not", "logical_or", "logical_xor", "lt", "maximum", "minimum", "mul",
    "ne", "neg", "pow", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "sub", "sum",
    "tan", "tanh", "trunc", "where",
)) | frozenset(f"aten.{name}" for name in ("gelu", "silu", "_softmax", "_log_softmax"))  # fmt: skip
_HAS_GRAD_INPUT = frozenset(
    f"aten.{name}"
    for name in ("gelu_backward", "silu_backward", "threshold_backward", "_softmax_backward_data")
)
"""Functions whose result is made in memory that is given as `out=`, or as `grad_input=`."""


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
        if isinstance(collective_of(node.op), AllReduce):
            there = frozenset(v for v in node.inputs if v in made and uses[v] == 1)
            found[node] = Buffer(f"{prefix}{len(found)}", node, there)
    return found


def _can_write_into(node: Node) -> bool:
    is_special = node.op.is_collective or isinstance(node.op, Constant | AxisIndex | Wait | Fusion)
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
    argument = _find_out_argument(expression)
    return (
        f"{expression[:-1]}, {argument}={target})" if argument else f"{target}.copy_({expression})"
    )


def is_written_into(expression: str) -> bool:
    """Return whether the value of an expression can be made in memory that is there, not copied.

    >>> is_written_into("torch.sum(a, (0,))"), is_written_into("a.reshape(2, 3)")
    (True, False)
    """
    return isinstance(expression, Direct) or bool(_find_out_argument(expression))


def _find_out_argument(expression: str) -> str:
    """Return the argument of a call that takes the memory for its result; nothing if none does."""
    function = expression.partition("(")[0]
    is_total = function == "torch.sum" and ", (" not in expression  # takes no `out`
    if is_total or not _is_one_call(expression):
        return ""
    if function in _HAS_GRAD_INPUT:
        return "grad_input"
    return "out" if function in _HAS_OUT_ARGUMENT else ""


def _is_one_call(expression: str) -> bool:
    depth = 0
    for position, character in enumerate(expression):
        depth += (character == "(") - (character == ")")
        if depth == 0 and character == ")":
            return position == len(expression) - 1
    return False
