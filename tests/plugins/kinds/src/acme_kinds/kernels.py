"""Kernels for ops of the core."""

from typing import Any

import numpy as np


def hard_tanh(x: Any) -> Any:
    """-1 below -1, 1 above 1, a line between."""
    return np.clip(x, -1, 1)
