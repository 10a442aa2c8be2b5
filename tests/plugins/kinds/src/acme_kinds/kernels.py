"""Kernels for ops of the core."""

from typing import Any

import numpy as np


def hard_sigmoid(x: Any) -> Any:
    """0 below -3, 1 above 3, a line between."""
    return np.clip(x / 6 + 0.5, 0, 1).astype(x.dtype)
