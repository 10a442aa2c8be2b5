"""Layers on the op of this package."""

import mithril as ml
from mithril.spi import Tensor

from acme_kinds.ops import swish


@ml.layer
def Swish(input: Tensor, *, beta: float = 1.0) -> Tensor:  # noqa: N802 - layers are named as classes are
    """x * sigmoid(beta x)."""
    return swish(input, beta=beta)


@ml.layer
class SwishGlu:
    """A value, gated by the swish of another one (Shazeer 2020)."""

    beta: float = 1.0

    def apply(self, input: Tensor, gate: Tensor) -> Tensor:
        """Return input * swish(gate)."""
        return input * swish(gate, beta=self.beta)
