"""What a backend plugin implements, and the parts it may reuse.

`base` has the class that engines derive from; `interop` is what they offer to users of their
framework; `kernels` are the array kernels of all ops; `lockstep` runs a program on all devices of a
mesh in one process, for any array namespace; `numpy_engine` is the reference engine.
"""

from mithril.engine.base import Engine
from mithril.engine.protocol import (
    Executable,
    Handle,
    KernelNames,
    Observer,
)
from mithril.engine.recording import EngineProfiler, Recorder

__all__ = [
    "Engine", "EngineProfiler", "Executable", "Handle", "KernelNames", "Observer", "Recorder",
]  # fmt: skip
