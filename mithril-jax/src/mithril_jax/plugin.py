"""The JAX backend as a plugin; JAX is imported when the backend is opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mithril.spi import BackendSpec, hookimpl

from mithril_jax.options import JaxOptions
from mithril_jax.processes import commands

if TYPE_CHECKING:
    from mithril.spi import Engine, Mesh


@hookimpl
def mithril_backends() -> Sequence[BackendSpec]:
    """Describe the JAX backend."""
    return [
        BackendSpec(
            name="jax",
            open=_open,
            api=(2, 5),
            requires=("jax>=0.8",),
            options=JaxOptions,
            summary="JAX: one jitted XLA program on CPUs, GPUs or TPUs",
            url="https://docs.jax.dev",
            launch=commands,
            methods=("jax", "as_jax"),
        )
    ]


def _open(mesh: Mesh, options: object) -> Engine:
    from mithril_jax.engine import open_engine

    assert isinstance(options, JaxOptions), "the options that the spec declares"
    return open_engine(mesh, options)
