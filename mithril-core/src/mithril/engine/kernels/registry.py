"""The table of NumPy: kernels that are fast there, and the shared ones where it has none better.

Their factories take the namespace, too; it is NumPy. The kernels for any other library are in
`mithril.engine.standard`.
"""

from __future__ import annotations

from mithril.engine.kernel_table import (
    Kernel,
    KernelTable,
    NamespaceKernel,
    Run,
    Types,
    on_namespace,
)
from mithril.engine.standard import SHARED_KERNELS

KERNELS: KernelTable[NamespaceKernel] = KernelTable(SHARED_KERNELS)
kernel = KERNELS.register

__all__ = [
    "KERNELS", "Kernel", "KernelTable", "NamespaceKernel", "Run", "Types", "kernel", "on_namespace",
]  # fmt: skip
