"""Kernels of copies to the host arena and back; what is copied is computed then."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from mithril.spi import KernelRun, Types, host_arena
from mithril.spi.ops import FromHost, ToHost

from mithril_mlx.kernels.table import kernel
from mithril_mlx.tensors import to_mlx, to_numpy


@kernel(ToHost)
def to_host(op: ToHost, types: Types) -> KernelRun:
    """A copy in an arena of the core, which MLX knows nothing of."""
    arena = host_arena(op.arena)
    return lambda x: arena.hold(to_numpy(x))


@kernel(FromHost)
def from_host(op: FromHost, types: Types) -> KernelRun:
    """A copy of MLX's."""

    def run(x: Any, *dependencies: mx.array) -> mx.array:
        return to_mlx(x) if isinstance(x, np.ndarray) else x

    return run
