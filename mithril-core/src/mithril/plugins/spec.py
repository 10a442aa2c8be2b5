"""What a backend says about itself before anything heavy is imported: plain data, checked here.

Specs that pass `check_specs` can be judged (API, requirements) and opened without surprises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import TYPE_CHECKING

from mithril.errors import BackendError
from mithril.plugins.launch import Command, LaunchRequest
from mithril.plugins.requirements import Requirement

if TYPE_CHECKING:
    from mithril.engine import Engine
    from mithril.mesh import Mesh

BACKEND_API = (2, 5)
"""The backend API this Mithril speaks: a new major number breaks, a new minor number adds."""


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """Describes one backend.

    Args:
        name: the backend's name, equal to the key of its entry point.
        open: makes an engine on a mesh; the second argument is an instance of `options`, or None
            where the backend has none. The framework is imported here and not earlier.
        api: the backend API the plugin is written for, such as `(2, 0)`.
        requires: packages it needs, as PEP 508 writes them; the first one is the framework.
        options: a dataclass of the backend's own options; unknown ones are refused.
        summary: one line for `mithril backends info`.
        url: where to read more.
        launch: says which commands `mithril launch` shall run on this machine; None where a script
            needs no more than one process.
        methods: names of the methods that its framework adds to arrays and compiled models, without
            those that start with `_`; messages on other backends say that this one has them.
        planning: options with which it opens on a mesh whose devices are not there, so that
            `mithril eject` can have it write programs; None where it writes none.
        known_gaps: reasons by the id of a check of `mithril backends check` that it is known to
            fail, such as `ops/svd`, or by a pattern of ids; one that passes is an error.
    """

    name: str
    open: Callable[[Mesh, object], Engine]
    api: tuple[int, int]
    requires: tuple[str, ...] = ()
    options: type | None = None
    summary: str = ""
    url: str = ""
    launch: Callable[[LaunchRequest], Sequence[Command]] | None = None
    methods: tuple[str, ...] = ()
    planning: Mapping[str, object] | None = None
    known_gaps: Mapping[str, str] = field(default_factory=dict)


def check_specs(offered: object) -> list[BackendSpec]:
    """Return what a plugin offers if it is a list of specs that keep to what their fields promise.

    Raises:
        BackendError: it is something else, or a field is not what it has to be.
    """
    if not isinstance(offered, list | tuple):
        raise BackendError(
            f"mithril_backends returned a {type(offered).__name__}; return a list of BackendSpec"
        )
    return [_check_spec(spec) for spec in offered]


def _check_spec(spec: object) -> BackendSpec:
    if not isinstance(spec, BackendSpec):
        raise BackendError(
            f"mithril_backends offers a {type(spec).__name__}; return a list of BackendSpec"
        )
    if not callable(spec.open):
        raise BackendError(f"BackendSpec.open is {spec.open!r}; give a function (mesh, options)")
    if spec.launch is not None and not callable(spec.launch):
        raise BackendError(f"BackendSpec.launch is {spec.launch!r}; give a function (request)")
    if spec.planning is not None and not isinstance(spec.planning, Mapping):
        raise BackendError(f"BackendSpec.planning is {spec.planning!r}; give a mapping of options")
    if not isinstance(spec.known_gaps, Mapping):
        raise BackendError(
            f"BackendSpec.known_gaps is {spec.known_gaps!r}; give reasons by the id of a check"
        )
    if not _is_version(spec.api):
        raise BackendError(f"BackendSpec.api is {spec.api!r}; give two integers, such as (2, 0)")
    if not isinstance(spec.methods, tuple | list):
        raise BackendError(f"BackendSpec.methods is {spec.methods!r}; give a tuple of names")
    if spec.options is not None and not _is_dataclass_type(spec.options):
        raise BackendError(f"BackendSpec.options is {spec.options!r}; give a dataclass, or None")
    if not isinstance(spec.requires, tuple | list):
        raise BackendError(f"BackendSpec.requires is {spec.requires!r}; give a tuple of strings")
    for text in spec.requires:
        Requirement.parse(text)
    return spec


def _is_version(api: object) -> bool:
    return isinstance(api, tuple) and [type(number) for number in api] == [int, int]


def _is_dataclass_type(options: object) -> bool:
    return isinstance(options, type) and is_dataclass(options)
