"""The options of the JAX backend; this module imports no framework.

An option either has an effect or is refused with what is there instead: JAX itself has dropped some
of what older guides name (`xmap`), and some values name what Mithril always does on JAX.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mithril.errors import OptionError, listing, nearest

PLATFORMS = ("cpu", "cuda", "gpu", "rocm", "tpu")
STRATEGIES = ("auto", "gspmd", "shard_map")


@dataclass(frozen=True)
class JaxOptions:
    """Options of `ml.JaxBackend` besides mesh and dtypes.

    Args:
        platform: `cpu`, `gpu`, `cuda`, `rocm` or `tpu`; JAX's default if left out.
        backend: another name of `platform`.
        topology: sizes of the TPU slice, such as `2x4`; checked against the devices.
        memory_optimization: order the program for least memory rather than for speed; on CPU.
        pjit_mesh: only True: programs always run under one `jit` over the whole mesh.
        spmd_mode: only True: every device runs the same program.
        mesh_context: only `spmd`.
        xmap_mesh: only False: JAX has removed `xmap`.
        pjit_lowering_strategy: `shard_map` runs the plan's own collectives, `gspmd` hands XLA the
            whole graph with the plan's shardings as constraints; `auto` is `shard_map`.
        spmd_mesh_shape: shape of the mesh, checked against `device_mesh`.
        spmd_partition_dims: number of mesh dimensions, checked against `device_mesh`.
        collective_ops: refused: XLA chooses the library.
        collective_optimization: refused: XLA optimises collectives by itself.

    Raises:
        OptionError: a value is refused.
    """

    platform: str | None = None
    backend: str | None = None
    topology: str | None = None
    memory_optimization: bool = False
    pjit_mesh: bool = True
    spmd_mode: bool = True
    mesh_context: str = "spmd"
    xmap_mesh: bool = False
    pjit_lowering_strategy: str = "auto"
    spmd_mesh_shape: tuple[int, ...] | None = None
    spmd_partition_dims: int | None = None
    collective_ops: Any = None
    collective_optimization: Any = None

    def __post_init__(self) -> None:
        self._check_fixed()
        self._check_platforms()
        _check_choice("pjit_lowering_strategy", self.pjit_lowering_strategy, STRATEGIES)
        if not isinstance(self.memory_optimization, bool):
            raise OptionError(
                f"memory_optimization={self.memory_optimization!r} is neither True nor False; give "
                f"one of them"
            )
        for name in ("collective_ops", "collective_optimization"):
            if (value := getattr(self, name)) is not None:
                raise OptionError(
                    f"option {name}={value!r} is not available on JAX; XLA chooses and optimises "
                    f"the library of its collectives by itself (NCCL on NVIDIA GPUs); leave it out"
                )

    @property
    def wanted_platform(self) -> str | None:
        """The platform asked for, under either name."""
        return self.platform or self.backend

    def check_platform(self, found: str) -> None:
        """Raise unless the options fit the platform that was found.

        Raises:
            OptionError: one of them is for another platform.
        """
        if self.topology is not None and found != "tpu":
            raise OptionError(
                f"topology={self.topology!r} describes a TPU slice; the devices are of platform "
                f"'{found}'; leave it out"
            )
        if self.memory_optimization and found != "cpu":
            raise OptionError(
                f"memory_optimization=True is available on CPU only; on '{found}' XLA schedules "
                f"for memory by itself; leave it out"
            )

    def check_mesh(self, shape: tuple[int, ...]) -> None:
        """Raise unless the options that speak of the mesh agree with it.

        Raises:
            OptionError: one does not.
        """
        if self.spmd_mesh_shape is not None and tuple(self.spmd_mesh_shape) != shape:
            raise OptionError(
                f"spmd_mesh_shape={tuple(self.spmd_mesh_shape)} differs from device_mesh={shape}; "
                f"give one shape"
            )
        if self.spmd_partition_dims not in (None, len(shape)):
            raise OptionError(
                f"spmd_partition_dims={self.spmd_partition_dims} differs from the {len(shape)} "
                f"dimensions of device_mesh={shape}; every mesh dimension may split tensors"
            )

    def compiler_options(self, platform: str) -> dict[str, str] | None:
        """Return what XLA is told besides the program."""
        if self.memory_optimization and platform == "cpu":
            return {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
        return None

    def _check_fixed(self) -> None:
        for name, only, why in (
            ("pjit_mesh", True, "programs always run under one jit over the whole mesh"),
            ("spmd_mode", True, "every device runs the same program"),
            ("mesh_context", "spmd", "every device runs the same program"),
            ("xmap_mesh", False, "JAX has removed xmap"),
        ):
            if (value := getattr(self, name)) != only:
                raise OptionError(f"{name}={value!r} is not available; {why}; use {only!r}")

    def _check_platforms(self) -> None:
        for name in ("platform", "backend"):
            if (value := getattr(self, name)) is not None:
                _check_choice(name, value, PLATFORMS)
        if self.platform and self.backend and self.platform != self.backend:
            raise OptionError(
                f"platform={self.platform!r} and backend={self.backend!r} are two names of one "
                f"option and differ; give one of them"
            )


def _check_choice(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OptionError(
            f"{name}={value!r} does not exist{nearest(str(value), known)}; known: {listing(known)}"
        )
