"""Describes another backend named numpy."""

from collections.abc import Sequence

from mithril.plugins import BackendSpec, hookimpl


def _open(mesh: object, options: object) -> object:
    raise AssertionError("the duplicate was opened")


@hookimpl
def mithril_backends() -> Sequence[BackendSpec]:
    """Describe the backend."""
    return [BackendSpec(name="numpy", open=_open, api=(2, 0), summary="Not the numpy you know")]
