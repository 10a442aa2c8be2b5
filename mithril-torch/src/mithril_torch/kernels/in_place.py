"""Results that are written over an operand; see `mithril_torch.program.in_place`."""

from __future__ import annotations

from collections.abc import Mapping

from mithril.spi import Op, Types, ops

from mithril_torch.kernels.table import EXPRESSIONS, kernel, same
from mithril_torch.program.buffers import write_into
from mithril_torch.program.in_place import InPlace, ReluGradient

same({ReluGradient: "aten.threshold_backward({1}, {0}, 0)"})

METHODS: Mapping[type[Op], str] = {ops.Add: "add_", ops.Multiply: "mul_"}
"""They are called faster than functions that are told where to write."""


@kernel(InPlace)
def in_place(op: InPlace, types: Types) -> str:
    """PyTorch's own functions of this kind."""
    method = METHODS.get(type(op.of))
    if method is not None:
        return f"{{{op.operand}}}.{method}({{{1 - op.operand}}})"
    if isinstance(op.of, ops.Relu):
        return "torch.relu_({0})"
    if isinstance(op.of, ops.CrossEntropyGradient):
        return "cross_entropy_gradient({0}, {1}, {2}, {3}, over=True)"
    if isinstance(op.of, ops.BatchNormGradient):
        return "batch_norm_gradient({0}, {1}, {2}, {3}, {4}, over=True)"
    return write_into(f"{{{op.operand}}}", EXPRESSIONS[op.of.name](op.of, types))


__all__ = ["in_place"]
