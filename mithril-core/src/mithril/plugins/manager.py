"""The one manager of plugins: modules of entry points are loaded into it one by one, and checked.

A module whose hooks are wrong is taken out again before its error is raised, and each plugin is
asked by itself, so that what one raises never reaches another.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint
from typing import Any

import pluggy

from mithril.plugins import hookspecs


@cache
def open_manager() -> pluggy.PluginManager:
    """Return the manager of all plugins of this process."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def load(point: EntryPoint) -> Any:
    """Return the module of an entry point, registered.

    Raises:
        Exception: whatever the plugin raises as it is imported, or pluggy of its hooks.
    """
    return register(point.load(), f"{point.group}:{point.name}={point.value}")


def register(plugin: Any, name: str) -> Any:
    """Register a module, or another object with hooks, and return it.

    Args:
        plugin: what implements hooks.
        name: of it in the manager; what had the name before is taken out.

    Raises:
        pluggy.PluginValidationError: a hook does not exist, or takes other arguments.
    """
    manager = open_manager()
    if manager.is_registered(plugin):  # as one module of several entry points is
        return plugin
    before = manager.get_plugin(name)
    if before is not None:  # a notebook, or a test, has imported the module again
        manager.unregister(before)
    try:
        manager.register(plugin, name)
        manager.check_pending()  # pluggy accepts a misspelt hook until it is asked
    except Exception:
        unregister(plugin)
        raise
    return plugin


def unregister(plugin: Any) -> None:
    """Take a plugin out of the manager, if it is in it."""
    if open_manager().is_registered(plugin):
        open_manager().unregister(plugin)


def ask(plugin: Any, hook: str, **arguments: object) -> list[Any]:
    """Return what one plugin answers to a hook: nothing, where it does not implement it.

    Args:
        plugin: as `load` returned it.
        hook: its name.
        arguments: of the hook.

    Raises:
        Exception: whatever the plugin raises.
    """
    manager = open_manager()
    others = [other for other in manager.get_plugins() if other is not plugin]
    return list(manager.subset_hook_caller(hook, others)(**arguments))


def implements(plugin: Any, hook: str) -> bool:
    """Return whether a plugin implements a hook."""
    callers = open_manager().get_hookcallers(plugin) or ()
    return any(caller.name == hook for caller in callers)
