"""The options of the MLX backend; this module imports no framework.

An option either has an effect or is refused with what is there instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from mithril.spi import MEMORY_FORMATS, OptionError, check_choice, check_flag, check_seconds

DEVICES = ("cpu", "gpu")
EXECUTORS = ("auto", "lockstep")
LIBRARIES = ("jaccl", "mpi", "ring")


@dataclass(frozen=True)
class MLXOptions:
    """Options of `ml.MLXBackend` besides mesh and dtypes.

    Args:
        device: `cpu` or `gpu`; MLX's default device if left out.
        distributed_backend: what exchanges data between the processes of a job: `ring`, `mpi` or
            `jaccl`; what the job was started for if left out.
        executor: `lockstep` runs all devices of a mesh in this process, in a job too; `auto` is
            lockstep outside a job.
        jit: compile programs with `mx.compile`; if left out, on Metal only.
        memory_format: `channels_last` (or `channel_last`) keeps images in the layout of MLX's
            convolutions from one to the next; `channels_first` is as the model is written.
        timeout: seconds for which a process waits for the others where they compare a plan.

    Raises:
        OptionError: a value is refused.
    """

    device: str | None = None
    distributed_backend: str | None = None
    executor: str = "auto"
    jit: bool | None = None
    memory_format: str = "channels_first"
    timeout: float = 300.0

    def __post_init__(self) -> None:
        if self.device is not None:
            check_choice("device", self.device, DEVICES)
        if self.distributed_backend is not None:
            check_choice("distributed_backend", self.distributed_backend, LIBRARIES)
        check_choice("executor", self.executor, EXECUTORS)
        check_choice("memory_format", self.memory_format, MEMORY_FORMATS)
        if self.jit is not None:
            check_flag("jit", self.jit)
        object.__setattr__(self, "timeout", check_seconds("timeout", self.timeout))
        if self.executor == "lockstep" and self.distributed_backend is not None:
            raise OptionError(
                f"distributed_backend={self.distributed_backend!r} does not go with "
                f"executor='lockstep', which runs all devices in this process; leave one of them "
                f"out"
            )

    @property
    def channels_last(self) -> bool:
        """Whether images keep the layout of MLX's convolutions."""
        return self.memory_format != "channels_first"
