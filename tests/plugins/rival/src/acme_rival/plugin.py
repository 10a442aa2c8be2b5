"""Describes another backend named tpu-sim."""

from collections.abc import Sequence

from mithril.plugins import BackendSpec, hookimpl


def _open(mesh: object, options: object) -> object:
    raise AssertionError("the rival was opened")


@hookimpl
def mithril_backends() -> Sequence[BackendSpec]:
    """Describe the backend."""
    return [BackendSpec(name="tpu-sim", open=_open, api=(2, 0), summary="The rival")]
