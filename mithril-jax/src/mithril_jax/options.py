"""The options of the JAX backend; this module imports no framework.

An option either has an effect or is refused with what is there instead: JAX itself has dropped some
of what older guides name (`xmap`), and some values name what Mithril always does on JAX.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from mithril.spi import OptionError, check_choice, check_flag, check_seconds, choose_name

PLATFORMS = ("cpu", "cuda", "gpu", "rocm", "tpu")
STRATEGIES = ("auto", "gspmd", "shard_map")
_TOPOLOGY = re.compile(r"[1-9][0-9]*(x[1-9][0-9]*)*")


@dataclass(frozen=True)
class JaxOptions:
    """Options of `ml.JaxBackend` besides mesh and dtypes.

    Args:
        platform: `cpu`, `gpu`, `cuda`, `rocm` or `tpu`; JAX's default if left out.
        backend: another name of `platform`.
        topology: sizes of the TPU slice, such as `2x4`; checked against where the devices lie.
        memory_optimization: order the program for least memory rather than for speed; on CPU.
        pjit_mesh: only True: programs always run under one `jit` over the whole mesh.
        spmd_mode: only True: every device runs the same program.
        mesh_context: only `spmd`.
        xmap_mesh: only False: JAX has removed `xmap`.
        pjit_lowering_strategy: `shard_map` runs the plan's own collectives, `gspmd` hands XLA the
            whole graph with the plan's shardings as constraints; `auto` is `shard_map`.
        spmd_mesh_shape: shape of the mesh, checked against `device_mesh`.
        spmd_partition_dims: number of mesh dimensions, checked against `device_mesh`.
        timeout: seconds for which a process waits for the others where they compare a plan.

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
    timeout: float = 300.0

    def __post_init__(self) -> None:
        self._check_fixed()
        self._check_platforms()
        self._check_shapes()
        check_choice("pjit_lowering_strategy", self.pjit_lowering_strategy, STRATEGIES)
        check_flag("memory_optimization", self.memory_optimization)
        object.__setattr__(self, "timeout", check_seconds("timeout", self.timeout))

    @property
    def wanted_platform(self) -> str | None:
        """The platform asked for, under either name."""
        return self.platform or self.backend

    def check_devices(self, found: Sequence[Any]) -> None:
        """Raise unless the options fit the devices that were found.

        Args:
            found: all of JAX's devices of one platform.

        Raises:
            OptionError: an option is for another platform, or another slice.
        """
        platform = found[0].platform
        if self.topology is not None:
            _check_topology(self.topology, platform, found)
        if self.memory_optimization and platform != "cpu":
            raise OptionError(
                f"memory_optimization=True is available on CPU only; on '{platform}' XLA schedules "
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
                f"spmd_partition_dims={self.spmd_partition_dims!r} differs from the {len(shape)} "
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

    def _check_shapes(self) -> None:
        shape = self.spmd_mesh_shape
        if shape is not None and not isinstance(shape, tuple | list):
            raise OptionError(
                f"spmd_mesh_shape={shape!r} is not a tuple of sizes; give that of device_mesh, "
                f"such as (4, 2)"
            )
        topology = self.topology
        if topology is not None and not (
            isinstance(topology, str) and _TOPOLOGY.fullmatch(topology)
        ):
            raise OptionError(
                f"topology={topology!r} is not written as sizes; write them as topology='2x4'"
            )

    def _check_platforms(self) -> None:
        for name in ("platform", "backend"):
            if (value := getattr(self, name)) is not None:
                check_choice(name, value, PLATFORMS)
        choose_name({"platform": self.platform, "backend": self.backend})


def _check_topology(topology: str, platform: str, found: Sequence[Any]) -> None:
    if platform != "tpu":
        raise OptionError(
            f"topology={topology!r} describes a TPU slice; the devices are of platform "
            f"'{platform}'; leave it out"
        )
    along = list(zip(*(device.coords for device in found), strict=True))
    sizes = [max(places) - min(places) + 1 for places in along]
    asked = map(int, topology.split("x"))
    if any(a != b for a, b in zip_longest(asked, sizes, fillvalue=1)):  # 2x4 is 2x4x1
        raise OptionError(
            f"topology={topology!r} differs from the slice of {'x'.join(map(str, sizes))} that "
            f"JAX has; give that, or leave it out"
        )
