"""Those who hear of plans that are made and programs that run: plugins that implement the hooks.

They are looked for as a program of a user is made ready to run. One that raises is
dropped with a warning, and never takes a run with it; `MITHRIL_STRICT=1` raises its error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mithril.errors import warn
from mithril.plugins.discover import describe_fault, is_strict
from mithril.plugins.extensions import PluginEntry, list_plugins
from mithril.plugins.manager import ask

Tell = Callable[[Any], None]


class Audience:
    """The plugins that hear of one kind of event.

    Args:
        hook: the hook's name.
        plugins: those that implement it.
    """

    def __init__(self, hook: str, plugins: list[PluginEntry]) -> None:
        self._hook = hook
        self._plugins = plugins

    def __bool__(self) -> bool:
        return bool(self._plugins)

    def tell(self, event: object) -> None:
        """Tell every plugin of an event.

        Raises:
            Exception: what a plugin raises, with `MITHRIL_STRICT=1`.
        """
        for entry in tuple(self._plugins):
            try:
                ask(entry.plugin, self._hook, event=event)
            except Exception as error:
                if is_strict():
                    raise
                self._plugins.remove(entry)
                warn(
                    f"plugin '{entry.name}' of {entry.distribution} failed in {self._hook} and is "
                    f"told no more; {describe_fault(error)}"
                )


def find_audience(hook: str) -> Audience:
    """Return the plugins that implement a hook of an event; all plugins are loaded for it."""
    name = hook.removeprefix("mithril_")
    return Audience(hook, [entry for entry in list_plugins() if name in entry.observes])
