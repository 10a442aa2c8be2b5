"""Describes a backend that this Mithril cannot speak to."""

from collections.abc import Sequence

from mithril.plugins import BackendSpec, hookimpl


def _open(mesh: object, options: object) -> object:
    raise AssertionError("an incompatible backend was opened")


@hookimpl
def mithril_backends() -> Sequence[BackendSpec]:
    """Describe the backend."""
    return [BackendSpec(name="npu", open=_open, api=(3, 0))]
