"""The options of the PyTorch backend; this module imports no framework.

An option either has an effect or is refused with what is there instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from mithril.spi import MEMORY_FORMATS, OptionError, check_choice, check_flag, check_seconds

DEVICES = ("cpu", "cuda")
EXECUTORS = ("auto", "lockstep", "workers")
FLAGS = (
    "cross_memory", "cuda_graphs", "gradient_as_bucket_view", "find_unused_parameters",
    "use_module_hooks", "trace_module_partitioning",
)  # fmt: skip
AUTO = "auto"
LIBRARIES = {"cpu": "gloo", "cuda": "nccl"}
"""What exchanges data between the processes, by device."""


@dataclass(frozen=True)
class TorchOptions:
    """Options of `ml.TorchBackend` besides mesh and dtypes.

    Args:
        device: `cpu` or `cuda`; if left out, CUDA where it has enough devices.
        distributed_backend: `gloo` on CPUs, `nccl` on CUDA; what is meant if left out.
        executor: `workers` is one process a device, `lockstep` runs all devices of a mesh in turn
            in this process, to debug; `auto` is workers where there are several devices.
        jit: `True` compiles programs with `torch.compile`; `"auto"` has PyTorch's compiler make
            kernels where they save memory traffic, of elementwise ops and reductions that read each
            other, and leaves products, convolutions, attention and collectives as they are.
        cross_memory: whether processes of one host read each other's memory where they exchange
            arrays on CPUs, instead of sending them over the loopback device. They do so where Linux
            lets them, and `tc` does not limit that device; Gloo carries what they cannot.
        cuda_graphs: replay the programs of one CUDA device as CUDA graphs: one launch a call.
        timeout: seconds after which a process that does not answer counts as lost.
        allow_tf32: whether matrix products of float32 may round their operands to TensorFloat-32
            where the hardware can; as PyTorch is set if left out.
        memory_format: `channels_last` (or `channel_last`) lays the images of convolutions out with
            their channels last, as fast convolutions want them; shapes stay what they are. `auto`
            does so inside of programs, on a CPU and without `jit=True`: what they return lies in
            order, but for what an update makes, or what takes the place of a donated array.
        gradient_as_bucket_view: whether gradients stay where their all_reduce left them, in one
            buffer; otherwise each gets memory of its own.
        find_unused_parameters: only False: a plan knows which parameters are used.
        partition_policy: only `parameters`: tensors without a sharding of their own follow those
            of parameters and inputs.
        use_module_hooks: put every collective into a range of `torch.profiler` that names it, its
            mesh axes and its layer.
        trace_module_partitioning: log, as `mithril.torch`, how the inputs of each program lie and
            why it exchanges data.

    Raises:
        OptionError: a value is refused.
    """

    device: str | None = None
    distributed_backend: str | None = None
    executor: str = "auto"
    jit: bool | str = False
    cross_memory: bool = True
    cuda_graphs: bool = False
    timeout: float = 300.0
    allow_tf32: bool | None = None
    memory_format: str = AUTO
    gradient_as_bucket_view: bool = True
    find_unused_parameters: bool = False
    partition_policy: str | None = None
    use_module_hooks: bool = False
    trace_module_partitioning: bool = False

    def __post_init__(self) -> None:
        if self.device is not None:
            check_choice("device", self.device, DEVICES)
        check_choice("executor", self.executor, EXECUTORS)
        for name in FLAGS:
            check_flag(name, getattr(self, name))
        if not (isinstance(self.jit, bool) or self.jit == AUTO):
            raise OptionError(
                f"jit={self.jit!r} is neither True, False nor '{AUTO}'; give one of them"
            )
        if self.allow_tf32 is not None:
            check_flag("allow_tf32", self.allow_tf32)
        if self.find_unused_parameters:
            raise OptionError(
                "find_unused_parameters=True is not available; a plan knows which parameters are "
                "used, and the others need no search; leave it out"
            )
        if self.partition_policy not in (None, "parameters"):
            raise OptionError(
                f"partition_policy={self.partition_policy!r} is not available; tensors without a "
                f"sharding follow those of parameters and inputs; use 'parameters'"
            )
        check_choice("memory_format", self.memory_format, (AUTO, *MEMORY_FORMATS))
        self._check_together()
        object.__setattr__(self, "timeout", check_seconds("timeout", self.timeout))

    def lays_out_images(self, device: str) -> bool:
        """Return whether images have their channels last inside of programs for a kind of device.

        With `auto` that is so on CPUs, whose convolutions, oneDNN's, otherwise lay out anew what
        they read and what they make.
        """
        if self.memory_format == AUTO:
            return device == "cpu" and self.jit is not True
        return self.memory_format != "channels_first"

    def check_graphs(self, device: str, devices: int) -> None:
        """Raise if programs shall be CUDA graphs where there are none.

        Args:
            device: `cpu` or `cuda`.
            devices: how many there are, in all processes.

        Raises:
            OptionError: they shall.
        """
        if self.cuda_graphs and device != "cuda":
            raise OptionError(
                f"cuda_graphs=True needs a CUDA device, and programs run on {device}; leave it "
                f"out, or choose device='cuda'"
            )
        if self.cuda_graphs and devices > 1:
            raise OptionError(
                f"cuda_graphs=True is for one device, and the mesh has {devices}, which exchange "
                f"data; leave it out"
            )

    def check_ranges(self, option: str) -> None:
        """Raise if programs run in a way that leaves no ranges of the profiler.

        Args:
            option: what asks for ranges.

        Raises:
            OptionError: they do.
        """
        if self.jit is True:
            raise OptionError(
                f"{option}=True does not go with jit=True; torch.compile leaves no ranges in a "
                f"program; leave one of them out"
            )
        self._check_codegen(option, True)

    def check_arena(self) -> None:
        """Raise if programs run in a way that leaves no say in where results lie.

        Raises:
            OptionError: they do.
        """
        if self.jit:
            raise OptionError(
                f"memory_planning='greedy' does not go with jit={self.jit!r}; PyTorch's compiler "
                f"lays out memory by itself; leave one of them out"
            )
        self._check_codegen("memory_planning", "greedy")

    def _check_together(self) -> None:
        if self.cuda_graphs:
            self._check_codegen("cuda_graphs", True)
            for name in ("jit", "use_module_hooks"):
                if value := getattr(self, name):
                    raise OptionError(
                        f"{name}={value!r} does not go with cuda_graphs=True; a graph has no more "
                        f"than its launches; leave one of them out"
                    )
        if self.use_module_hooks:
            self.check_ranges("use_module_hooks")
        if self.jit:
            self._check_codegen("jit", self.jit)
        if self.allow_tf32 is not None:
            self._check_codegen("allow_tf32", self.allow_tf32)
        if self.memory_format not in (AUTO, "channels_first"):
            self._check_codegen("memory_format", self.memory_format)
        if not self.gradient_as_bucket_view:
            self._check_codegen("gradient_as_bucket_view", False)
            if self.jit is True:
                raise OptionError(
                    "gradient_as_bucket_view=False does not go with jit=True; torch.compile lays "
                    "out memory, and a program has no buckets of its own; leave one of them out"
                )
        if self.distributed_backend is not None:
            self._check_codegen("distributed_backend", self.distributed_backend)

    def _check_codegen(self, option: str, value: object) -> None:
        if self.executor == "lockstep":
            raise OptionError(
                f"{option}={value!r} does not go with executor='lockstep', which runs ops one by "
                f"one in this process; leave one of them out"
            )

    def library(self, device: str) -> str:
        """Return what exchanges data between processes on a kind of device.

        Raises:
            OptionError: the one asked for does not go with it.
        """
        fitting = LIBRARIES[device]
        if self.distributed_backend not in (None, fitting):
            needs = " needs CUDA devices and" if self.distributed_backend == "nccl" else ""
            raise OptionError(
                f"distributed_backend={self.distributed_backend!r}{needs} is not available on "
                f"device '{device}'; there it is '{fitting}'; leave it out"
            )
        return fitting
