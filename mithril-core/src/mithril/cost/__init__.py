"""What work and communication cost, as plain formulas over hardware profiles."""

from mithril.cost.communication import (
    collective_seconds,
    emulated,
    relayed,
    transfer_seconds,
)
from mithril.cost.hardware import (
    SIMULATED,
    Hardware,
    hardware_of,
    hardware_under,
    hardware_within,
)

__all__ = [
    "SIMULATED", "Hardware", "collective_seconds", "emulated", "hardware_of", "hardware_under",
    "hardware_within", "relayed", "transfer_seconds",
]  # fmt: skip
