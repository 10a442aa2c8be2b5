"""The PyTorch backend as a plugin; PyTorch is imported when the backend is opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mithril.spi import BackendSpec, hookimpl

from mithril_torch.launch.command import commands
from mithril_torch.options import TorchOptions

if TYPE_CHECKING:
    from mithril.spi import Engine, Mesh


@hookimpl
def mithril_backends() -> Sequence[BackendSpec]:
    """Describe the PyTorch backend."""
    return [
        BackendSpec(
            name="torch",
            open=_open,
            api=(2, 5),
            requires=("torch>=2.13",),
            options=TorchOptions,
            summary="PyTorch: explicit programs, one process a device, or under torchrun",
            url="https://pytorch.org/docs",
            launch=commands,
            methods=("torch", "as_module", "code", "eject"),
            planning={"executor": "lockstep"},
        )
    ]


def _open(mesh: Mesh, options: object) -> Engine:
    from mithril_torch.engine import open_engine

    assert isinstance(options, TorchOptions), "the options that the spec declares"
    return open_engine(mesh, options)
