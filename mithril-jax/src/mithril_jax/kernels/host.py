"""Kernels of copies to the host arena and back, as they are on a device by itself."""

from __future__ import annotations

from mithril.spi import KernelRun, Types
from mithril.spi.ops import FromHost, ToHost

from mithril_jax.host import copy_from_host, copy_to_host
from mithril_jax.kernels.table import CPU_KERNELS, kernel


@kernel(ToHost)
def to_host(op: ToHost, types: Types) -> KernelRun:
    """A copy in pinned memory of the host."""
    return copy_to_host(op, "accelerator")


@kernel(FromHost)
def from_host(op: FromHost, types: Types) -> KernelRun:
    """A copy on the device; what it waits for is put in when a whole program is lowered."""
    run = copy_from_host(op, types[0], "accelerator")
    return lambda x, *dependencies: run(x)


@CPU_KERNELS.register(ToHost)
def to_host_on_cpu(op: ToHost, types: Types) -> KernelRun:
    """A copy in an arena of the core."""
    return copy_to_host(op, "cpu")


@CPU_KERNELS.register(FromHost)
def from_host_on_cpu(op: FromHost, types: Types) -> KernelRun:
    """A copy from that arena."""
    run = copy_from_host(op, types[0], "cpu")
    return lambda x, *dependencies: run(x)
