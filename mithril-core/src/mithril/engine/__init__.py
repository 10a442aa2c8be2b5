"""What a backend plugin implements, and the parts it may reuse.

`protocol` says what an engine is; `kernels` are the array kernels of all ops; `lockstep` runs a
program on all devices of a mesh in one process, for any array namespace; `numpy_engine` is the
reference engine.
"""

from mithril.engine.protocol import (
    Capability,
    Engine,
    Executable,
    Handle,
    KernelNames,
    Observer,
)

__all__ = ["Capability", "Engine", "Executable", "KernelNames", "Observer", "Handle"]
