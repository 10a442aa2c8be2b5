"""What work and communication cost, as plain formulas over hardware profiles."""

from mithril.cost.communication import collective_seconds
from mithril.cost.hardware import SIMULATED, Hardware

__all__ = ["SIMULATED", "Hardware", "collective_seconds"]
