"""Cross-entropy and its gradient."""

from __future__ import annotations

from mithril.spi import ops

from mithril_torch.kernels.table import same

same({
    ops.CrossEntropy: "cross_entropy({0}, {1})",
    ops.CrossEntropyGradient: "cross_entropy_gradient({0}, {1}, {2}, {3})",
})  # fmt: skip
