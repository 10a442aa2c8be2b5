"""Ops that belong to no other family: constants and what passes a value on."""

from __future__ import annotations

from mithril import ops
from mithril.ir import Constant
from mithril.ops.control import After

from mithril_torch.kernels.registry import Types, dtype, kernel, number, same

same({ops.StopGradient: "{0}", After: "{0}"})


@kernel(Constant)
def constant(op: Constant, types: Types) -> str:
    """A scalar; programs make it once, when they are loaded."""
    return f"torch.full((), {number(op.value)}, dtype={dtype(op.dtype)}, device=device)"
