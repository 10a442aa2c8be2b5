"""The group of all commands: those of the core, and a group for each plugin that has commands.

A plugin is loaded when its commands are asked for, or when all commands are listed; a command's own
module when that command is asked for, or when the commands of its plugin are listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from mithril.errors import BackendError, OptionError, kind_of
from mithril.plugins.discover import Status, describe_fault, is_strict
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


class CommandGroup(TyperGroup):
    """Commands of one plugin: each is imported when it is asked for, or listed with its help.

    One that cannot be imported stands in the list as what it is, and harms no other.
    """

    offered: Mapping[str, Extension] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, without the namespace."""
        return list(self.offered)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or one that says what is wrong with it."""
        extension = self.offered.get(cmd_name)
        if extension is None:
            return None
        try:
            return _make_command(cmd_name, extension)
        except BackendError as error:
            if is_strict():
                raise
            return _make_refusal(cmd_name, error)


def _make_group(entry: PluginEntry, commands: list[Extension]) -> TyperGroup:
    app = typer.Typer(
        name=entry.name,
        cls=CommandGroup,
        help=f"Commands of the plugin {entry.distribution}.",
        no_args_is_help=True,
        rich_markup_mode=None,
        callback=lambda: None,  # so that one command alone is a command of a group, too
    )
    group = get_group(app)
    assert isinstance(group, CommandGroup)
    group.offered = {extension.name.partition(".")[2]: extension for extension in commands}
    return group


def _make_command(name: str, extension: Extension) -> Any:
    """Return the command of a function that a plugin brings.

    Raises:
        BackendError: it cannot be imported, is no function, or one that Typer cannot read.
    """
    function = extension.load()
    what = f"command '{extension.name}' of {extension.package}"
    if not callable(function):
        raise BackendError(f"{what} is {kind_of(function)}; the plugin has to return a function")
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name)(function)
    try:
        return get_command(app)
    except Exception as error:  # it has several, by what it finds in the annotations
        raise BackendError(
            f"{what} is no function that Typer can read; {describe_fault(error)}; it is the "
            f"plugin's own fault: tell its author, or remove it"
        ) from error


def _make_refusal(name: str, error: BackendError) -> Any:
    """Return a command that says what is wrong, whatever it is told."""

    def refuse() -> None:
        raise error

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(name, help=f"Cannot be used: {error}", context_settings=anything)(refuse)
    return get_command(app)
