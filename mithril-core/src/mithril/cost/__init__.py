"""What work and communication cost, as plain formulas over hardware profiles."""

from mithril.cost.analysis import HardwareAnalyst
from mithril.cost.communication import (
    collective_seconds,
    describe_emulation,
    describe_relay,
    find_bucket_bytes,
    find_start_up,
    price_collective,
    transfer_seconds,
)
from mithril.cost.hardware import Hardware
from mithril.cost.kernels import graph_seconds
from mithril.cost.levels import Level, Link
from mithril.cost.memory import PlanMemory, predict_memory
from mithril.cost.plan_timeline import PlanTimeline, predict_timeline
from mithril.cost.profiles import SIMULATED, as_hardware, find_hardware
from mithril.cost.target import Target
from mithril.cost.work import kernel_seconds, op_seconds, product_dtype, work_seconds

__all__ = [
    "SIMULATED", "Hardware", "HardwareAnalyst", "Level", "Link", "PlanMemory", "PlanTimeline",
    "Target", "as_hardware", "collective_seconds", "describe_emulation", "describe_relay",
    "find_bucket_bytes", "find_hardware", "find_start_up", "graph_seconds", "kernel_seconds",
    "op_seconds", "predict_memory", "predict_timeline", "price_collective", "product_dtype",
    "transfer_seconds", "work_seconds",
]  # fmt: skip
