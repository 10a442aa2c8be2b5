"""`after`: a value as it is, once another one is there."""

from __future__ import annotations

from mithril.spi.ops import After

from mithril_torch.kernels.table import same

same({After: "{0}"})
