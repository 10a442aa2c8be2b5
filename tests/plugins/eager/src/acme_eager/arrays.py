"""Arrays of PyTorch: its functions under the names of the array API, its dtypes, the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from mithril.spi import DType

# All that PyTorch computes with; its bfloat16 needs more care on the way from the host.
DTYPES = frozenset(
    DType(name)
    for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "float32", "float64")
) | {DType.uint32}
"""What a device can hold: Mithril refuses anything else, with the user's layer and line."""


def to_array(host: np.ndarray) -> Any:
    """Return a copy of what a device shall hold."""
    return torch.from_numpy(host.copy())


def to_host(x: Any) -> np.ndarray:
    """Return what a device holds, as a view that cannot be written to."""
    view = x.numpy(force=True).view()
    view.flags.writeable = False
    return view
