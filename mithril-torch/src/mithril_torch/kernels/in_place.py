"""Results that are written over an operand; see `mithril_torch.program.in_place`."""

from __future__ import annotations

from mithril.spi import Types, ops

from mithril_torch.kernels.table import kernel, same
from mithril_torch.program.in_place import InPlace, ReluGradient

same({ReluGradient: "aten.threshold_backward({1}, {0}, 0)"})


@kernel(InPlace)
def in_place(op: InPlace, types: Types) -> str:
    """PyTorch's own functions of this kind."""
    if isinstance(op.of, ops.Relu):
        return "torch.relu_({0})"
    if isinstance(op.of, ReluGradient):
        return "aten.threshold_backward({1}, {0}, 0, grad_input={1})"
    if isinstance(op.of, ops.CrossEntropyGradient):
        return "cross_entropy_gradient({0}, {1}, {2}, {3}, over=True)"
    return "{0}.add_({1})" if op.operand == 0 else "{1}.add_({0})"
