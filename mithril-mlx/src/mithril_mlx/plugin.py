"""The MLX backend as a plugin; MLX is imported when the backend is opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mithril.spi import BackendSpec, hookimpl

from mithril_mlx.launch import commands
from mithril_mlx.options import MLXOptions

if TYPE_CHECKING:
    from mithril.spi import Engine, Mesh


@hookimpl
def mithril_backends() -> Sequence[BackendSpec]:
    """Describe the MLX backend."""
    return [
        BackendSpec(
            name="mlx",
            open=_open,
            api=(2, 5),
            requires=("mlx>=0.32",),
            options=MLXOptions,
            summary="MLX: all devices of a mesh in one process, or one of several processes",
            url="https://ml-explore.github.io/mlx",
            launch=commands,
            methods=("mlx",),
        )
    ]


def _open(mesh: Mesh, options: object) -> Engine:
    from mithril_mlx.engine import open_engine

    assert isinstance(options, MLXOptions), "the options that the spec declares"
    return open_engine(mesh, options)
