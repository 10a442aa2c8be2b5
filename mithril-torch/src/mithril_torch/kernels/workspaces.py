"""What kernels on CPU take while they run, besides operands and results.

Multiples of the largest of these, as PyTorch's own profiler counts them
(`tests/torch/test_memory.py`). Convolutions lay out images anew for oneDNN.
"""

from __future__ import annotations

from mithril.spi import ops
from mithril.spi.ops import Attention, AttentionGradient

WORKSPACES: tuple[tuple[str, float], ...] = (
    (ops.Convolution.name, 1.0),
    (ops.ConvolutionInputGradient.name, 1.0),
    (ops.ConvolutionWeightGradient.name, 2.0),
    (ops.Where.name, 2.0),
)

ORDERED: tuple[tuple[str, tuple[str, ...]], ...] = (
    (Attention.name, ("rows", "rows", "rows")),
    (AttentionGradient.name, ("rows", "rows", "rows", "rows", "", "all")),
)
"""What of operands has to lie in order for PyTorch's flash kernel, which gets copies otherwise."""
