"""Kernels of copies between a device and the host arena, for arrays of NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from mithril.engine.host_arena import host_arena
from mithril.engine.kernels.registry import Run, kernel
from mithril.ops.host import FromHost, ToHost
from mithril.types import TensorType


@kernel(ToHost)
def to_host(op: ToHost, types: Sequence[TensorType], xp: ModuleType) -> Run:
    """A copy in a block of the arena."""
    arena = host_arena(op.arena)
    return lambda x: arena.hold(np.asarray(x))


@kernel(FromHost)
def from_host(op: FromHost, types: Sequence[TensorType], xp: ModuleType) -> Run:
    """A copy that belongs to the program."""

    def run(x: Any, *dependencies: Any) -> Any:
        return xp.asarray(np.array(x, subok=False))

    return run
