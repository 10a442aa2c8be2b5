"""What work and communication cost, as plain formulas over hardware profiles."""

from mithril.cost.communication import collective_seconds, emulated
from mithril.cost.hardware import SIMULATED, Hardware, hardware_of, hardware_under

__all__ = [
    "SIMULATED", "Hardware", "collective_seconds", "emulated", "hardware_of", "hardware_under",
]  # fmt: skip
