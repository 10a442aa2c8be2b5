"""Ops that plugins bring, defined when a plan or graph that is read from JSON names one."""

from __future__ import annotations

from mithril.ir.serialize import OP_FINDERS
from mithril.plugins.extensions import Kind, find_extension, list_namespaces, require_plugin
from mithril.plugins.plugin_kernels import add_kernel_of


def define_plugin_op(name: str) -> None:
    """Define the op of a name, with the plugin that has the namespace; without one do nothing.

    Args:
        name: as plans print it: of an op that the plugin brings, or of one of the core that it has
            a kernel for.

    Raises:
        BackendError: the plugin cannot be used.
        OptionError: it brings nothing of the name.
    """
    namespace, _, op = name.partition(".")
    if namespace not in list_namespaces():
        return
    entry = require_plugin(namespace)
    kernels = [kernel for kernel in entry.kernels if kernel.op == op]
    for kernel in kernels:
        add_kernel_of(entry, kernel)
    if not kernels:
        find_extension(name, Kind.op).load()


OP_FINDERS.append(define_plugin_op)
