"""The table of JAX kernels by op name, and the one over it for CPU devices.

A factory is called once when a program is lowered; the function that it returns is traced.
Functions bind `lax` primitives where they are called often: tracing `jax.numpy` takes two to ten
times as long.
"""

from __future__ import annotations

from mithril.spi import Kernel, KernelTable

KERNELS: KernelTable[Kernel] = KernelTable()
CPU_KERNELS: KernelTable[Kernel] = KernelTable(KERNELS)
"""What runs on CPU devices: XLA:CPU has costs of its own."""
kernel, same = KERNELS.register, KERNELS.register_same


def kernels_on(platform: str) -> KernelTable[Kernel]:
    """Return the kernels for devices of a platform."""
    return CPU_KERNELS if platform == "cpu" else KERNELS
