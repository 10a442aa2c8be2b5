"""How a backend joins Mithril: what its author writes stands here and imports nothing heavy.

A backend is a distribution with one entry point in the group `mithril.backends`; its key is the
backend's name, its value a module that imports no framework and implements `mithril_backends`.
"""

from mithril.plugins.hookspecs import hookimpl
from mithril.plugins.launch import Command, LaunchRequest, free_port
from mithril.plugins.spec import BACKEND_API, BackendSpec

__all__ = ["BACKEND_API", "BackendSpec", "Command", "LaunchRequest", "free_port", "hookimpl"]
