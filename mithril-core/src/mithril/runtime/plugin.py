"""open_plugin: the ops and layers that a plugin brings, as attributes."""

from __future__ import annotations

from typing import Any

from mithril.errors import BackendError, kind_of, listing, nearest
from mithril.ir import registry
from mithril.keywords import checked_keywords
from mithril.models import Layer
from mithril.plugins.extensions import Extension, Kind, PluginEntry, require_plugin


class Plugin:
    """The ops and layers of a plugin: attributes of the names that it gives them.

    A module of the plugin is imported when the first thing in it is asked for.
    """

    def __init__(self, entry: PluginEntry) -> None:
        self._entry = entry
        self._known = {
            extension.name.partition(".")[2]: extension
            for extension in entry.extensions
            if extension.kind in (Kind.op, Kind.layer)
        }

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        extension = self._known.get(name)
        if extension is None:
            entry = self._entry
            raise AttributeError(
                f"plugin '{entry.name}' of {entry.distribution} has no op or layer '{name}'"
                f"{nearest(name, self._known)}; it has {listing(self._known)}"
            )
        found = _check(extension, extension.load())
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        return sorted(self._known)

    def __repr__(self) -> str:
        return f"<plugin '{self._entry.name}' of {self._entry.distribution}>"


@checked_keywords()
def open_plugin(name: str) -> Plugin:
    """Return the ops and layers that an installed plugin brings.

    Args:
        name: the plugin's namespace, as `mithril plugins list` shows it.

    Raises:
        BackendError: there is no such plugin, or it cannot be used.

    What is returned has them as attributes: `ml.open_plugin("acme").swish(x)`.
    """
    if not isinstance(name, str):
        raise BackendError(f"plugin name {name!r} is not a string; give one, such as 'acme'")
    return Plugin(require_plugin(name))


def _check(extension: Extension, found: Any) -> Any:
    """Return what a plugin brings, if it is what it says.

    Raises:
        BackendError: it is something else.
    """
    if extension.kind is Kind.op and not (callable(found) and extension.name in registry()):
        raise BackendError(
            f"op '{extension.name}' of {extension.package} is {kind_of(found)} that no op of this "
            f"name belongs to; the plugin has to return what "
            f"ml.define_op('{extension.name}', …) does"
        )
    is_layer = isinstance(found, type) and issubclass(found, Layer)
    if extension.kind is Kind.layer and not is_layer:
        raise BackendError(
            f"layer '{extension.name}' of {extension.package} is {kind_of(found)}; the plugin has "
            f"to return a function, or a class, under ml.layer"
        )
    return found
