"""How a backend, or anything else, joins Mithril: what its author writes stands here, and is light.

A backend is a distribution with one entry point in the group `mithril.backends`; its key is the
backend's name, its value a module that imports no framework and implements `mithril_backends`.
Ops, kernels, layers, hardware profiles, schedules, passes, commands and observers come from entry
points in the group `mithril.plugins`; `hookspecs` lists the hooks.
"""

from typing import TYPE_CHECKING, Any

from mithril.plugins.events import Compiled, Evaluated
from mithril.plugins.hookspecs import hookimpl
from mithril.plugins.kernels import PluginKernel
from mithril.plugins.launch import Command, LaunchRequest, free_port
from mithril.plugins.passes import PassTarget
from mithril.plugins.spec import BACKEND_API, BackendSpec

if TYPE_CHECKING:
    from mithril.plugins.extensions import register_plugin, unregister_plugin

__all__ = [
    "BACKEND_API", "BackendSpec", "Command", "Compiled", "Evaluated", "LaunchRequest",
    "PassTarget", "PluginKernel", "free_port", "hookimpl", "register_plugin", "unregister_plugin",
]  # fmt: skip


def __getattr__(name: str) -> Any:  # later: what looks for plugins imports this module
    if name in ("register_plugin", "unregister_plugin"):
        from mithril.plugins import extensions

        return getattr(extensions, name)
    raise AttributeError(f"module 'mithril.plugins' has no attribute '{name}'")
