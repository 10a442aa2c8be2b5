"""The table of MLX kernels by op name.

A factory is called once when a program is lowered; the function that it returns builds a few nodes
of MLX's lazy graph.
"""

from __future__ import annotations

from mithril.spi import Kernel, KernelTable

KERNELS: KernelTable[Kernel] = KernelTable()
kernel, same = KERNELS.register, KERNELS.register_same
