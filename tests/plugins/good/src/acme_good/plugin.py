"""Describes the backend; the framework it simulates is imported when it is opened."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mithril.plugins import BackendSpec, hookimpl

if TYPE_CHECKING:
    from mithril.engine import Engine
    from mithril.mesh import Mesh


@dataclass(frozen=True, slots=True)
class SimulatorOptions:
    """Options of the simulated machine."""

    chips: int = 8

    def __post_init__(self) -> None:
        if self.chips < 1:
            raise ValueError(f"chips is {self.chips}; give at least 1")


@hookimpl
def mithril_backends() -> Sequence[BackendSpec]:
    """Describe the backend."""
    return [
        BackendSpec(
            name="tpu-sim",
            open=_open,
            api=(2, 0),
            requires=("numpy>=2.0",),
            options=SimulatorOptions,
            summary="A simulated accelerator",
            url="https://example.org/tpu-sim",
        )
    ]


def _open(mesh: "Mesh", options: object) -> "Engine":
    from acme_good.framework import SimulatedEngine

    if not isinstance(options, SimulatorOptions):
        raise TypeError(f"options are {options!r}, not SimulatorOptions")
    if mesh.size > options.chips:
        raise RuntimeError(f"{mesh} needs {mesh.size} chips, the machine has {options.chips}")
    return SimulatedEngine(mesh)
