"""Which device gives which how much: a matrix of bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class DeviceGraph:
    """How many bytes go from device to device.

    Args:
        matrix: bytes that each device (row) gives each other one (column); square, of integers.
            Devices are flat indices in the mesh.
    """

    matrix: np.ndarray
