"""Long short-term memory and its gradient."""

from __future__ import annotations

from mithril.spi import Types
from mithril.spi.ops import Lstm, LstmGradient

from mithril_torch.kernels.table import kernel
from mithril_torch.program.kept_states import LstmGradientOfKept, LstmKeeping


@kernel(Lstm)
def lstm(op: Lstm, types: Types) -> str:
    """(hidden states, the last one, the last cell)."""
    return _call("lstm", op, types)


@kernel(LstmGradient)
def lstm_gradient(op: LstmGradient, types: Types) -> str:
    """The gradients of the operands, of both biases one."""
    return _call("lstm_gradient", op, types)


@kernel(LstmKeeping)
def lstm_keeping(op: LstmKeeping, types: Types) -> str:
    """The results of the layer, and what its gradient needs."""
    return _call("lstm_keeping", op.of, types)


@kernel(LstmGradientOfKept)
def lstm_gradient_of_kept(op: LstmGradientOfKept, types: Types) -> str:
    """The gradients, by what was kept."""
    return _call("lstm_gradient_of_kept", op.of, types)


def _call(function: str, op: Lstm | LstmGradient, types: Types) -> str:
    operands = ", ".join(f"{{{number}}}" for number in range(len(types)))
    return f"{function}({op.reverse}, {operands})"
