"""Describes a backend that needs a package nobody has."""

from collections.abc import Sequence

from mithril.plugins import BackendSpec, hookimpl


def _open(mesh: object, options: object) -> object:
    raise AssertionError("a backend without its framework was opened")


@hookimpl
def mithril_backends() -> Sequence[BackendSpec]:
    """Describe the backend."""
    return [
        BackendSpec(
            name="quantum",
            open=_open,
            api=(2, 0),
            requires=("acme-quantum-framework>=3.1",),
            summary="A framework that is not installed",
        )
    ]
