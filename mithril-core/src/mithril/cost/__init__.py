"""What work and communication cost, as plain formulas over hardware profiles."""

from mithril.cost.communication import (
    collective_seconds,
    describe_emulation,
    describe_relay,
    transfer_seconds,
)
from mithril.cost.hardware import (
    SIMULATED,
    Hardware,
    Link,
    hardware_of,
)
from mithril.cost.target import Target

__all__ = [
    "SIMULATED", "Hardware", "Link", "Target", "collective_seconds", "describe_emulation",
    "describe_relay", "hardware_of", "transfer_seconds",
]  # fmt: skip
