"""What work and communication cost, as plain formulas over hardware profiles."""

from mithril.cost.communication import collective_seconds
from mithril.cost.hardware import SIMULATED, Hardware, hardware_of

__all__ = ["SIMULATED", "Hardware", "collective_seconds", "hardware_of"]
