"""Which results of a program PyTorch writes into memory that is given, and may lie in an arena.

Others are made anew by their functions, which take no such memory: to copy them into the arena
would cost time and save none.
"""

from __future__ import annotations

from collections.abc import Sequence

from mithril.spi import Node, Value, makes_anew, ops
from mithril.spi.ops import AxisIndex, Constant, Repeat, UserOp, Wait

from mithril_torch.kernels import EXPRESSIONS
from mithril_torch.program.buffers import is_written_into
from mithril_torch.program.fusing import EinsumAdd

IN_ARENA = tuple(
    op.name
    for op in (
        ops.Abs, ops.Add, ops.Arctan, ops.BitwiseAnd, ops.BitwiseInvert, ops.BitwiseOr,
        ops.BitwiseXor, ops.Cast, ops.Ceil, ops.Concatenate, ops.Cos, ops.Cosh, ops.Cumprod,
        ops.Cumsum, ops.Divide, ops.Einsum, ops.Equal, ops.Erf, ops.Exp, ops.Expm1, ops.Floor,
        ops.Gelu, ops.GeluGradient,
        ops.Greater, ops.GreaterEqual, ops.LeftShift, ops.Less, ops.LessEqual, ops.Log, ops.Log1p,
        ops.LogSoftmax, ops.LogicalAnd, ops.LogicalNot, ops.LogicalOr, ops.LogicalXor, ops.Max,
        ops.Maximum, ops.Min, ops.Minimum, ops.Multiply, ops.Negate, ops.NotEqual, ops.Power,
        ops.Relu, Repeat, ops.RightShift, ops.Round, ops.Rsqrt, ops.Sigmoid, ops.Silu,
        ops.SiluGradient, ops.Sin, ops.Sinh, ops.Softmax, ops.SoftmaxGradient, ops.Sqrt,
        ops.Subtract, ops.Sum, ops.Tan, ops.Tanh, ops.Trunc, ops.Where,
    )
)  # fmt: skip
"""Names of the ops whose results lie in an arena, as far as that is known of an op by its name."""


def list_written(node: Node) -> Sequence[Value]:
    """Return the results of a node that are written into memory that is given."""
    if node.op.bodies:
        return node.stacks
    is_special = node.op.is_collective or isinstance(node.op, Constant | AxisIndex | UserOp | Wait)
    if is_special or len(node.outputs) != 1:
        return ()
    types = [value.type for value in node.inputs]
    expression = EXPRESSIONS[node.op.name](node.op, types).format(*("x" for _ in types))
    return node.outputs if is_written_into(expression) else ()


def is_anew(node: Node) -> bool:
    """Return whether the results of a node share no memory with its operands."""
    return isinstance(node.op, EinsumAdd) or makes_anew(node)
