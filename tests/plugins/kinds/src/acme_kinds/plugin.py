"""Says what the package brings; each thing is imported when it is asked for."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from mithril.spi import Compiled, Evaluated, PluginKernel, hookimpl

EVENTS: list[Compiled | Evaluated] = []
"""What the observer heard."""


@hookimpl
def mithril_ops() -> Mapping[str, str]:
    """An activation with kernels for four backends."""
    return {"swish": "acme_kinds.ops:swish"}


@hookimpl
def mithril_layers() -> Mapping[str, str]:
    """Layers on that activation, one a function and one a class."""
    return {"Swish": "acme_kinds.layers:Swish", "SwishGlu": "acme_kinds.layers:SwishGlu"}


@hookimpl
def mithril_kernels() -> Sequence[PluginKernel]:
    """A hard tanh in the place of the exact one, for NumPy alone."""
    return [PluginKernel(op="tanh", backend="numpy", function="acme_kinds.kernels:hard_tanh")]


@hookimpl
def mithril_hardware() -> Sequence[Path]:
    """A card of ours."""
    return [Path(__file__).parent / "acme-npu.toml"]


@hookimpl
def mithril_schedules() -> Mapping[str, str]:
    """GPipe with the backwards of the last micro-batch first."""
    return {"last-first": "acme_kinds.schedules:last_first"}


@hookimpl
def mithril_graph_passes() -> Mapping[str, str]:
    """Negations of negations are left out."""
    return {"fold": "acme_kinds.passes:fold_negations"}


@hookimpl
def mithril_program_passes() -> Mapping[str, str]:
    """Relu as a maximum with zero."""
    return {"plain-relu": "acme_kinds.passes:spell_relu"}


@hookimpl
def mithril_commands() -> Mapping[str, str]:
    """A command that counts the nodes of a layer's plan."""
    return {"count": "acme_kinds.commands:count"}


@hookimpl
def mithril_compiled(event: Compiled) -> None:
    """Remember the event."""
    EVENTS.append(event)


@hookimpl
def mithril_evaluated(event: Evaluated) -> None:
    """Remember the event."""
    EVENTS.append(event)
