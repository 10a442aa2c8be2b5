"""The hooks a plugin may implement. Every implementation is checked against this page.

A hook with an unknown name or an unknown argument makes its plugin `broken`, never silently unused.

`mithril_backends` is for the entry-point group `mithril.backends`, `mithril_hardware` for both, all
others for `mithril.plugins`. What a hook offers by name is called `NAMESPACE.NAME` by users, where
the namespace is the key of the entry point. What stands for it is the thing itself, or a text
`"module:attribute"`: that module is imported when somebody asks for the name, so that the module of
the entry point stays light.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pluggy

from mithril.plugins.events import Compiled, Evaluated
from mithril.plugins.kernels import PluginKernel
from mithril.plugins.spec import BackendSpec

PROJECT = "mithril"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

Named = Mapping[str, Any]
"""Things by name, or texts `"module:attribute"` of where they are."""


_SPECIFICATION = "a hook specification is not called; implement it with @hookimpl"


@hookspec
def mithril_backends() -> Sequence[BackendSpec]:
    """Describe the backends a module offers. It must not import a framework."""
    raise NotImplementedError(_SPECIFICATION)


@hookspec
def mithril_hardware() -> Sequence[str | Path]:
    """Return paths of hardware profiles: TOML files, each named as its profile.

    Since backend API 2.1. Modules of the entry-point groups `mithril.plugins` and
    `mithril.backends` may implement it.
    """
    raise NotImplementedError(_SPECIFICATION)


@hookspec
def mithril_ops() -> Named:
    """Return ops by name: what `ml.define_op("NAMESPACE.NAME", …)` returned.

    Users write `ml.open_plugin("NAMESPACE").NAME(x)`. An op has kernels for as many backends as its
    author likes; where it has none, its expansion runs.
    """
    raise NotImplementedError(_SPECIFICATION)


@hookspec
def mithril_kernels() -> Sequence[PluginKernel]:
    """Return kernels for ops of the core on backends that exist, as `ml.define_kernel` takes them.

    They are used in every plan that is made for their backend while the plugin is installed.
    """
    raise NotImplementedError(_SPECIFICATION)


@hookspec
def mithril_layers() -> Named:
    """Return layers by name: functions or classes under `ml.layer`.

    Users write `ml.open_plugin("NAMESPACE").NAME(…)`.
    """
    raise NotImplementedError(_SPECIFICATION)


@hookspec
def mithril_schedules() -> Named:
    """Return pipeline schedules by name: functions of devices, micro-batches and chunks.

    Such a function returns the lines of a table, one for each device, such as `"0F0,0F1,0B0,0B1"`.
    Users write `pipeline_schedule="NAMESPACE.NAME"`; the table is checked as one of a file is.
    """
    raise NotImplementedError(_SPECIFICATION)


@hookspec
def mithril_graph_passes() -> Named:
    """Return passes over the graph of a model on whole tensors, by name.

    A pass is a function `(graph, target) -> graph`. It sees the forward computation alone, before
    gradients are added; they follow from what it returns. Users write `passes=["NAMESPACE.NAME"]`.
    """
    raise NotImplementedError(_SPECIFICATION)


@hookspec
def mithril_program_passes() -> Named:
    """Return passes over the programs of a plan's stages, by name.

    A pass is a function `(program, target) -> program`. It runs after all passes of the core over
    the program of each stage. Users write `passes=["NAMESPACE.NAME"]`.
    """
    raise NotImplementedError(_SPECIFICATION)


@hookspec
def mithril_commands() -> Mapping[str, Callable[..., None] | str]:
    """Return commands by name: functions as Typer takes them.

    Users type `mithril NAMESPACE NAME`; what a command is told on the command line follows from the
    annotations of its function.
    """
    raise NotImplementedError(_SPECIFICATION)


@hookspec
def mithril_compiled(event: Compiled) -> None:
    """Hear that a plan was made and turned into something that runs."""
    raise NotImplementedError(_SPECIFICATION)


@hookspec
def mithril_evaluated(event: Evaluated) -> None:
    """Hear that a compiled model, a train step or a function ran."""
    raise NotImplementedError(_SPECIFICATION)
