"""Target: what an engine is to the compiler."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mithril.cost.hardware import Hardware, hardware_within
from mithril.cost.profiles import SIMULATED, find_hardware
from mithril.engine import Engine, KernelNames
from mithril.mesh import Mesh
from mithril.ops.collective import collectives
from mithril.ops.own_kernel import list_kernels
from mithril.plan import Execution
from mithril.types import DType


@dataclass(frozen=True, slots=True)
class Target:
    """Where a plan will run, as far as planning has to know.

    Args:
        backend: name of the backend, for messages.
        mesh: the devices.
        kernels: names of the ops it runs itself; others are expanded.
        capabilities: the kinds of collectives it offers.
        hardware: the profile that prices choices.
        dtypes: the element types it can hold.
    """

    backend: str
    mesh: Mesh
    kernels: frozenset[str]
    capabilities: frozenset[str] = frozenset(collectives())
    hardware: Hardware = SIMULATED
    dtypes: frozenset[DType] = frozenset(DType)

    @staticmethod
    def of(engine: Engine, hardware: Hardware | None = None) -> Target:
        """Return the target that an engine is.

        Args:
            engine: where the plan will run.
            hardware: the profile to price with, as it was found for the backend; by default that
                of the engine's devices.
        """
        profile = find_hardware(engine) if hardware is None else _run_on(engine, hardware)
        kernels = engine.kernels.union(list_kernels(engine.name))
        return Target(
            engine.name, engine.mesh, kernels, engine.capabilities, profile, engine.dtypes
        )

    @property
    def kernel_names(self) -> KernelNames:
        """The ops it runs itself, and who they are of."""
        return KernelNames(self.backend, self.kernels)

    def within(self, mesh: Mesh) -> Target:
        """Return the target that some of the devices are."""
        hardware = hardware_within(self.hardware, mesh.flat)
        return replace(self, mesh=mesh, hardware=hardware)


def _run_on(engine: Engine, found: Hardware) -> Hardware:
    """Return a profile with how an engine carries data and runs programs; its devices stay.

    Simulated devices are nobody's, and each has a processor of its own.
    """
    placed = Execution() if found.name == SIMULATED.name else found.execution
    return found.run_by(engine.transport, engine.execution, placed)
