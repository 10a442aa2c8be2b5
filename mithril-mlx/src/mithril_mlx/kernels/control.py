"""The kernel of `after`: what keeps a value from being computed before another."""

from __future__ import annotations

import mlx.core as mx
from mithril.spi.ops import After

from mithril_mlx.kernels.table import same

same({After: mx.depends})
