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
    Level,
    Link,
)
from mithril.cost.profiles import find_hardware
from mithril.cost.target import Target
from mithril.cost.work import kernel_seconds, op_seconds, product_dtype, work_seconds

__all__ = [
    "SIMULATED", "Hardware", "Level", "Link", "Target", "collective_seconds", "describe_emulation",
    "describe_relay", "find_hardware", "kernel_seconds", "op_seconds", "product_dtype",
    "transfer_seconds", "work_seconds",
]  # fmt: skip
