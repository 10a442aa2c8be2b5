"""Opens a backend by name: loads only that plugin, checks its options, and says what is wrong.

Whatever a plugin raises while it is loaded or opened arrives as a `BackendError` with the plugin's
own error as its cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING

from mithril.errors import BackendError, MithrilError, OptionError, kind_of, listing, nearest
from mithril.keywords import refuse_unknown
from mithril.plugins.discover import BackendEntry, Status, find, is_fault, names
from mithril.plugins.plugin_kernels import add_plugin_kernels
from mithril.plugins.published import PUBLISHED, install_command
from mithril.plugins.spec import BackendSpec

if TYPE_CHECKING:
    from mithril.engine import Engine
    from mithril.mesh import Mesh


def open_engine(
    name: str, mesh: Mesh, options: Mapping[str, object], common: Iterable[str] = ()
) -> Engine:
    """Open a backend on a mesh.

    Args:
        name: a backend name, as `mithril backends list` shows it.
        mesh: the devices to open it on.
        options: the backend's own options by name.
        common: names of options that every backend has, for messages.

    Raises:
        BackendError: there is no such backend, or it cannot be opened.
        OptionError: the backend does not have one of the options, or refuses its value.
    """
    return open_entry(require(name), mesh, options, common)


def require(name: str) -> BackendEntry:
    """Return the entry of a backend whatever its status.

    Raises:
        BackendError: no installed package offers it.
    """
    entry = find(name)
    if entry is not None:
        return entry
    if name in PUBLISHED:
        remedy = install_command([PUBLISHED[name]])
        raise BackendError(f"backend '{name}' is not installed; {remedy}")
    installed = names()
    hint = nearest(name, [*installed, *PUBLISHED])
    raise BackendError(f"backend '{name}' does not exist; installed: {listing(installed)}{hint}")


def open_entry(
    entry: BackendEntry, mesh: Mesh, options: Mapping[str, object], common: Iterable[str] = ()
) -> Engine:
    """Open a backend that was found; `open_engine` says what it raises."""
    import mithril.plugins.plugin_ops  # noqa: F401 - with NumPy; its plans may name ops of plugins

    spec = ready_spec(entry)
    instance = build_options(spec, options, common)
    add_plugin_kernels(entry.name)
    try:
        opened = spec.open(mesh, instance)
    except MithrilError:
        raise
    except BaseException as error:
        if not is_fault(error):
            raise
        raise BackendError(
            f"backend '{entry.name}' failed to open on {mesh}; {type(error).__name__}: {error}; "
            f"see `mithril backends info {entry.name}`"
        ) from error
    _check_engine(entry, opened, mesh)
    return opened


def ready_spec(entry: BackendEntry) -> BackendSpec:
    """Return what a backend says of itself, if it can be used.

    Raises:
        BackendError: it is not ready.
    """
    if entry.spec is None or entry.status is not Status.ready:
        raise BackendError(
            f"backend '{entry.name}' is {entry.status}; {entry.fact}; {entry.remedy}"
        ) from entry.error
    return entry.spec


def build_options(
    spec: BackendSpec, options: Mapping[str, object], common: Iterable[str] = ()
) -> object:
    """Return an instance of the backend's options dataclass, or None if it has no options.

    Raises:
        OptionError: an option is unknown, a required one is absent, or a value is refused.
    """
    declared = {option.name: option for option in fields(spec.options)} if spec.options else {}
    if not declared.keys() >= options.keys():
        refuse_unknown(f"backend '{spec.name}'", options, [*declared, *common])
    absent = [
        name for name, option in declared.items() if name not in options and _is_required(option)
    ]
    if absent:
        raise OptionError(f"backend '{spec.name}' needs option {listing(absent)}; give it a value")
    if spec.options is None:
        return None
    try:
        instance: object = spec.options(**options)
    except (TypeError, ValueError) as error:
        raise OptionError(f"backend '{spec.name}' refuses its options; {error}") from error
    return instance


def _check_engine(entry: BackendEntry, opened: object, mesh: Mesh) -> None:
    """Raise if a plugin opens something else than it has to.

    Raises:
        BackendError: it is no engine, or one that says of itself what cannot be.
    """
    # With NumPy, which the list of backends does without.
    from mithril.engine import Engine
    from mithril.engine.declared import check_declared

    if not isinstance(opened, Engine):
        raise BackendError(
            f"backend '{entry.name}' opens {kind_of(opened)}, which is no engine; have "
            f"BackendSpec.open return a mithril.spi.Engine"
        )
    try:
        check_declared(opened, entry.name, mesh)
    except MithrilError:
        raise
    except BaseException as error:
        if not is_fault(error):
            raise
        raise BackendError(
            f"engine of backend '{entry.name}' cannot say what it is; {type(error).__name__}: "
            f"{error}; mend its properties"
        ) from error


def list_options(name: str) -> frozenset[str]:
    """Return the names of a backend's own options; none of one that is not there or not ready."""
    entry = find(name)
    declared = None if entry is None or entry.spec is None else entry.spec.options
    return frozenset(option.name for option in fields(declared)) if declared else frozenset()


def _is_required(option: Field[object]) -> bool:
    return option.init and option.default is MISSING and option.default_factory is MISSING
