"""Kernels that plugins bring for ops of the core, given to a backend as it is opened.

A kernel's own module is imported when the kernel first runs, so that one which cannot be imported
harms only those who compute with it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from mithril.errors import OptionError, warn
from mithril.plugins.discover import is_strict
from mithril.plugins.extensions import PluginEntry, list_plugins, load_kernel, name_owner
from mithril.plugins.kernels import PluginKernel


def add_plugin_kernels(backend: str) -> None:
    """Give ops of the core those kernels on a backend that installed plugins bring.

    A kernel for an op that does not exist, or that cannot have another one, is left out with a
    warning: what one plugin brings keeps nobody from a backend.

    Args:
        backend: its name.

    Raises:
        OptionError: two plugins bring a kernel for one op; or, with `MITHRIL_STRICT=1`, a plugin
            brings one that cannot be used.
    """
    for entry in list_plugins():
        for kernel in entry.kernels:
            if kernel.backend == backend:
                add_kernel_of(entry, kernel)


def add_kernel_of(entry: PluginEntry, kernel: PluginKernel) -> None:
    """Give an op of the core a kernel that a plugin brings; raises as `add_plugin_kernels` does."""
    from mithril.ops.own_kernel import add_kernel, check_op  # with NumPy, which lists do without

    function, origin = _load_late(entry, kernel), name_owner(entry)
    try:
        check_op(kernel.op)
    except OptionError as error:
        if is_strict():
            raise
        warn(f"{origin} brings a kernel that is not used; {error}")
        return
    add_kernel(kernel.op, kernel.backend, function, entry.name, origin)


def _load_late(entry: PluginEntry, kernel: PluginKernel) -> Callable[..., Any]:
    @cache
    def load() -> Callable[..., Any]:
        function: Callable[..., Any] = load_kernel(entry, kernel)
        return function

    def run(*operands: Any, **attributes: Any) -> Any:
        return load()(*operands, **attributes)

    return run
