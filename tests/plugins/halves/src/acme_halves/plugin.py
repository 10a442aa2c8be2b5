"""Names modules that are not there."""

from collections.abc import Mapping, Sequence

from mithril.spi import Evaluated, PluginKernel, hookimpl


@hookimpl
def mithril_ops() -> Mapping[str, str]:
    """An op in a module that does not exist."""
    return {"half": "acme_halves.ops:half"}


@hookimpl
def mithril_kernels() -> Sequence[PluginKernel]:
    """A kernel in a module that does not exist."""
    return [PluginKernel(op="erf", backend="numpy", function="acme_halves.kernels:erf")]


@hookimpl
def mithril_evaluated(event: Evaluated) -> None:
    """Fail."""
    raise RuntimeError("nobody is listening")
