"""The group of all commands: those of the core, and a group for each plugin that has commands.

A plugin is loaded when its commands are asked for, or when all commands are listed.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from mithril.errors import OptionError
from mithril.plugins.discover import Status
from mithril.plugins.extensions import (
    Extension,
    Kind,
    PluginEntry,
    list_namespaces,
    list_plugins,
    require_plugin,
)


class PluginGroup(TyperGroup):
    """Commands of the core, then those of plugins by their namespaces."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands; all plugins are loaded for it."""
        ready = (entry for entry in list_plugins() if entry.status is Status.ready)
        own = super().list_commands(ctx)
        return [*own, *(e.name for e in ready if _commands(e) and e.name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command of the core, or else the group of a plugin's commands."""
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name not in list_namespaces():
            return own
        entry = require_plugin(cmd_name)
        commands = _commands(entry)
        if not commands:
            raise OptionError(
                f"plugin '{entry.name}' of {entry.distribution} brings no commands; `mithril "
                f"plugins info {entry.name}` shows what it brings"
            )
        return _make_group(entry, commands)


def _commands(entry: PluginEntry) -> list[Extension]:
    return [extension for extension in entry.extensions if extension.kind is Kind.command]


def _make_group(entry: PluginEntry, commands: list[Extension]) -> TyperGroup:
    group = typer.Typer(
        name=entry.name,
        help=f"Commands of the plugin {entry.distribution}.",
        no_args_is_help=True,
        rich_markup_mode=None,
        callback=lambda: None,  # so that one command alone is a command of a group, too
    )
    for extension in commands:
        group.command(extension.name.partition(".")[2])(extension.load())
    return get_group(group)
