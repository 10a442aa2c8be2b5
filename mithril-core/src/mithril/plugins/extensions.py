"""What plugins of the group `mithril.plugins` bring, by kind and name.

The key of the entry point is the plugin's namespace: one or several words, next to each other, of
its distribution's name, so that `acme.swish` says whose it is (`acme` or `acme_ops` of `acme-ops`).
Who asks for `acme.swish` has that one plugin loaded and no other. Where two distributions claim one
namespace, neither is used until the user chooses; both are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import EntryPoint
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

from mithril.errors import BackendError, OptionError, kind_of, listing, nearest
from mithril.plugins.discover import (
    PLUGINS,
    Entry,
    Status,
    describe_fault,
    find_in,
    guard,
    is_fault,
    judge_all,
    judge_metadata,
    list_points,
    names,
    package_of,
    say_origin,
)
from mithril.plugins.hardware import HardwareFile, list_paths
from mithril.plugins.kernels import PluginKernel
from mithril.plugins.manager import ask, implements, load, register, unregister

_NAME = re.compile(r"[A-Za-z]\w*([_-]\w+)*")
_REFERENCE = re.compile(r"[\w.]+:[\w.]+")


class Kind(StrEnum):
    """What a plugin brings by name: the end of the hook's name, too."""

    op = "ops"
    layer = "layers"
    schedule = "schedules"
    graph_pass = "graph_passes"
    program_pass = "program_passes"
    command = "commands"


OBSERVERS = ("mithril_compiled", "mithril_evaluated")
_REGISTERED: dict[str, PluginEntry] = {}
KERNELS, HARDWARE, OBSERVERS_KIND = "kernels", "hardware", "observers"


@dataclass(frozen=True, slots=True)
class Extension:
    """A thing that a plugin brings by name.

    Args:
        kind: what it is.
        name: as users write it, with the namespace.
        package: the distribution that brings it, with its version.
        value: the thing, or a text `"module:attribute"` of where it is.
    """

    kind: Kind
    name: str
    package: str
    value: Any

    def load(self) -> Any:
        """Return the thing; its module is imported now.

        Raises:
            BackendError: the module raises, or has no such attribute.
        """
        return _resolve(self.value, f"'{self.name}' of {self.package}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginEntry(Entry):
    """A plugin and the judgement on it.

    `extensions` is what it brings by name, `kernels` and `hardware` what it brings besides, and
    `observes` which events it hears; all are empty where it could not be loaded.
    """

    extensions: tuple[Extension, ...] = ()
    kernels: tuple[PluginKernel, ...] = ()
    hardware: tuple[str, ...] = ()
    observes: tuple[str, ...] = ()
    plugin: Any = field(default=None, repr=False)

    @property
    def distribution(self) -> str:
        """The distribution that offers it, with its version."""
        return say_origin(self.point)

    @property
    def brings(self) -> Mapping[str, tuple[str, ...]]:
        """The names of what it brings, by kind; kinds of which there is nothing are left out."""
        found = {
            str(kind): tuple(e.name for e in self.extensions if e.kind is kind) for kind in Kind
        }
        found[KERNELS] = tuple(f"{kernel.op} on {kernel.backend}" for kernel in self.kernels)
        found[HARDWARE] = self.hardware
        found[OBSERVERS_KIND] = self.observes
        return {kind: brought for kind, brought in found.items() if brought}


def list_plugins() -> tuple[PluginEntry, ...]:
    """Return every plugin of the group `mithril.plugins`, loaded and judged, sorted by name."""
    return (*judge_all(PLUGINS, _judge, PluginEntry), *_REGISTERED.values())


def find_plugin(namespace: str) -> PluginEntry | None:
    """Return the plugin of a namespace, judged, or None; no other plugin is loaded."""
    if namespace in _REGISTERED:
        return _REGISTERED[namespace]
    return find_in(PLUGINS, namespace, _judge, PluginEntry)


def list_namespaces() -> list[str]:
    """Return the names of all plugins; nothing is loaded."""
    return [*names(PLUGINS), *_REGISTERED]


def register_plugin(namespace: str, *hooks: Any) -> None:
    """Use a plugin in this process that is not installed, to try it or to test it.

    Running it again, as notebooks do, replaces the plugin.

    Args:
        namespace: under which it is asked for, as the key of its entry point will be.
        hooks: functions under `@hookimpl`, or the module that has them.

    Raises:
        BackendError: an installed plugin has the namespace, or what this one offers is wrong, or is
            a backend, which is found by its entry point alone.
        pluggy.PluginValidationError: a hook does not exist, or takes other arguments.
        Exception: whatever a hook raises.

    >>> from mithril.plugins import hookimpl
    >>> @hookimpl
    ... def mithril_schedules():
    ...     return {"serial": lambda devices, microbatches, chunks: ["0F0,0B0"]}
    >>> register_plugin("mine", mithril_schedules)
    >>> find_extension("mine.serial", Kind.schedule).package
    'this process'
    >>> unregister_plugin("mine")
    """
    if namespace in names(PLUGINS):
        taken = listing(package_of(p) for p in list_points(PLUGINS) if p.name == namespace)
        raise BackendError(
            f"namespace '{namespace}' is that of the installed plugin of {taken}, and this process "
            f"registers another; choose another one"
        )
    plugin = hooks[0] if len(hooks) == 1 and isinstance(hooks[0], ModuleType) else _Hooks(hooks)
    point = EntryPoint(namespace, getattr(plugin, "__name__", "functions"), PLUGINS)
    unregister_plugin(namespace)
    try:
        entry = _describe(point, register(plugin, f"{PLUGINS}:{namespace}"))
        _refuse_backends(entry)
    except Exception:
        unregister(plugin)
        raise
    _REGISTERED[namespace] = entry


def _refuse_backends(entry: PluginEntry) -> None:
    if implements(entry.plugin, "mithril_backends"):
        raise BackendError(
            f"plugin '{entry.name}' of {entry.distribution} implements mithril_backends, and "
            f"backends are found by their entry points alone; install its package, with "
            f"pip install -e ."
        )


def list_registered_files() -> list[HardwareFile]:
    """Return the profiles of hardware that plugins of `register_plugin` offer."""
    return [
        HardwareFile(path, entry.distribution)
        for entry in _REGISTERED.values()
        if entry.hardware
        for path in list_paths(entry.plugin)
    ]


class _Hooks:
    """Functions as the attributes that a module has them as."""

    def __init__(self, functions: Sequence[Any]) -> None:
        for function in functions:
            setattr(self, function.__name__, function)


def unregister_plugin(namespace: str) -> None:
    """Forget a plugin that `register_plugin` was given, if there is one of the namespace.

    Kernels that it brought are taken back; plans that were made keep theirs.
    """
    entry = _REGISTERED.pop(namespace, None)
    if entry is None:
        return
    unregister(entry.plugin)
    if entry.kernels:
        _remove_kernels(entry)


def _remove_kernels(entry: PluginEntry) -> None:
    """Take the kernels that a plugin brought back, as far as they are in use."""
    from mithril.ops.own_kernel import list_kernels, remove_kernel  # with NumPy

    for kernel in entry.kernels:
        if list_kernels(kernel.backend).get(kernel.op) == name_owner(entry):
            remove_kernel(kernel.op, backend=kernel.backend)


def name_owner(entry: PluginEntry) -> str:
    """Return whose the kernels of a plugin are, for plans and messages."""
    return f"plugin '{entry.name}' of {entry.distribution}"


def require_plugin(namespace: str) -> PluginEntry:
    """Return the plugin of a namespace, which can be used.

    Raises:
        BackendError: there is none, or it cannot be used.
    """
    entry = find_plugin(namespace)
    if entry is None:
        known = list_namespaces()
        raise BackendError(
            f"plugin '{namespace}' does not exist; installed: {listing(known)}"
            f"{nearest(namespace, known)}"
        )
    if entry.status is not Status.ready:
        raise BackendError(
            f"plugin '{namespace}' of {entry.distribution} is {entry.status}; {entry.fact}; "
            f"{entry.remedy}"
        ) from entry.error
    return entry


def find_extension(name: str, *kinds: Kind) -> Extension:
    """Return what users call `NAMESPACE.NAME`, of one of some kinds.

    Args:
        name: as users write it.
        kinds: what it may be.

    Raises:
        BackendError: the plugin does not exist, or cannot be used.
        OptionError: it brings nothing of the name.
    """
    entry = require_plugin(name.partition(".")[0])
    found = [extension for extension in entry.extensions if extension.kind in kinds]
    for extension in found:
        if extension.name == name:
            return extension
    what = " or ".join(kind.replace("_", " ") for kind in kinds)
    known = [extension.name for extension in found]
    raise OptionError(
        f"plugin '{entry.name}' of {entry.distribution} brings no '{name}' among its {what}"
        f"{nearest(name, known)}; it brings {listing(known)}"
    )


def list_extensions(kind: Kind) -> tuple[Extension, ...]:
    """Return all things of a kind that plugins which can be used bring; all are loaded for it."""
    return tuple(e for entry in list_plugins() for e in entry.extensions if e.kind is kind)


def load_kernel(entry: PluginEntry, kernel: PluginKernel) -> Any:
    """Return the function of a kernel that a plugin brings; its module is imported now.

    Raises:
        BackendError: the module raises, or has no such attribute.
    """
    what = f"kernel of '{kernel.op}' on '{kernel.backend}' of {entry.distribution}"
    return _resolve(kernel.function, what)


# ------------------------------------------------------------------ judging


def _judge(point: EntryPoint) -> PluginEntry:
    return guard(point, _judge_unguarded, PluginEntry)


def _judge_unguarded(point: EntryPoint) -> PluginEntry:
    unmet = judge_metadata(point, PluginEntry)
    if unmet is not None:
        return unmet
    _check_namespace(point)
    return _describe(point, load(point))


def _describe(point: EntryPoint, plugin: Any) -> PluginEntry:
    package = say_origin(point)
    return PluginEntry(
        point=point,
        status=Status.ready,
        extensions=tuple(e for kind in Kind for e in _list(plugin, kind, point.name, package)),
        kernels=tuple(_list_kernels(plugin)),
        hardware=tuple(path.stem for path in list_paths(plugin)),
        observes=tuple(_list_observed(plugin)),
        plugin=plugin,
    )


def _list_observed(plugin: Any) -> Iterator[str]:
    return (hook.removeprefix("mithril_") for hook in OBSERVERS if implements(plugin, hook))


def _check_namespace(point: EntryPoint) -> None:
    words = re.split(r"[-_.]+", package_of(point).lower())
    own = re.split(r"[-_]+", point.name.lower())
    runs = (words[at : at + len(own)] for at in range(len(words)))
    if own not in runs or not _NAME.fullmatch(point.name):
        raise BackendError(
            f"entry point '{point.name}' is no part of the name of its distribution, "
            f"'{package_of(point)}'; names of what it brings begin with it: call it "
            f"'{'_'.join(words)}' or '{words[0]}'"
        )


def _list(plugin: Any, kind: Kind, namespace: str, package: str) -> Iterator[Extension]:
    hook = f"mithril_{kind}"
    for given in ask(plugin, hook):
        if not isinstance(given, Mapping):
            raise BackendError(f"{hook} returned {kind_of(given)}; return a dict of things by name")
        for name, value in given.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise BackendError(
                    f"{hook} offers the name {name!r}; give letters, digits, _ and -; the "
                    f"namespace '{namespace}' is put before it"
                )
            if isinstance(value, str) and not _REFERENCE.fullmatch(value):
                raise BackendError(
                    f"{hook} offers '{name}' as {value!r}; give 'module:attribute', or the thing"
                )
            yield Extension(kind, f"{namespace}.{name}", package, value)


def _list_kernels(plugin: Any) -> Iterator[PluginKernel]:
    for given in ask(plugin, "mithril_kernels"):
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise BackendError(
                f"mithril_kernels returned {kind_of(given)}; return a list of PluginKernel"
            )
        for kernel in given:
            if not isinstance(kernel, PluginKernel):
                raise BackendError(
                    f"mithril_kernels offers {kind_of(kernel)}; return a list of PluginKernel"
                )
            yield kernel


def _resolve(value: Any, what: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return resolve_name(value)
    except BaseException as error:
        if not is_fault(error):
            raise
        raise BackendError(
            f"{what} cannot be imported from '{value}'; {describe_fault(error)}; it is the "
            f"plugin's own fault: tell its author, or remove it"
        ) from error
