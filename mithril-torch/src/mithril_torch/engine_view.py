"""The engine as interop and ejected programs see it: devices, and where programs run."""

from __future__ import annotations

from typing import Protocol

from mithril.spi import DType, Handle, Mesh, Produce, Sharding, TensorType

from mithril_torch.executors.executor import Executor
from mithril_torch.program.codegen_options import CodegenOptions


class EngineView(Protocol):
    """What `mithril_torch.engine.TorchEngine` shows to the modules that it imports itself."""

    @property
    def name(self) -> str:
        """`torch`."""
        ...

    @property
    def mesh(self) -> Mesh:
        """The devices."""
        ...

    @property
    def device(self) -> str:
        """The kind of device: `cpu` or `cuda`."""
        ...

    @property
    def executor(self) -> Executor:
        """What holds tensors and runs programs."""
        ...

    @property
    def codegen(self) -> CodegenOptions:
        """How programs are written."""
        ...

    @property
    def dtypes(self) -> frozenset[DType]:
        """Element types that tensors may have."""
        ...

    @property
    def local_devices(self) -> tuple[int, ...]:
        """Flat indices of the devices whose parts this process can read."""
        ...

    def on(self, mesh: Mesh) -> EngineView:
        """Return the engine of the devices of a mesh: of all of them, or of a part."""
        ...

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> Handle:
        """Make a distributed array; see `mithril.spi.Engine.put`."""
        ...
