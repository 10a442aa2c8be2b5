"""MLX's own arrays, and Mithril's: each may be used with the other."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from mithril.spi import (
    Adopted,
    ArrayMethods,
    ArrayView,
    BackendError,
    Interop,
    Mesh,
    Sharding,
    TensorType,
)

from mithril_mlx.tensors import dtype_of, to_mlx, to_numpy


@dataclass(frozen=True, eq=False)
class MLXInterop(Interop):
    """What the MLX engine offers; see `mithril.spi.Interop`.

    Args:
        mesh: the devices of the engine.
        rank: of this process in its job; None where it has all devices.
        count: how many of the devices it has.
    """

    mesh: Mesh
    rank: int | None
    count: int

    @property
    def array_methods(self) -> ArrayMethods:
        """`x.mlx()`."""
        return {"mlx": self._to_mlx}

    def host(self, x: object) -> np.ndarray | None:
        """Return an MLX array as NumPy's: its memory is the host's."""
        return to_numpy(x) if isinstance(x, mx.array) else None

    def adopt(self, x: object) -> Adopted | None:
        """Return an MLX array, replicated: every device has the same."""
        if not isinstance(x, mx.array):
            return None
        type = TensorType(tuple(x.shape), dtype_of(x))
        parts = [_apart(x)] * self.count
        return Adopted(type, Sharding.replicated(self.mesh, type.rank), parts)

    def _to_mlx(self, x: ArrayView[object]) -> mx.array:
        """Return what this process sees of an array as MLX's.

        That is the whole of it in a script, and the part of this rank in a job. On one device it is
        the same memory.

        Raises:
            BackendError: it lies on other ranks of the job.
        """
        if not x.shards:
            ranks = ", ".join(map(str, x.sharding.mesh.flat))
            raise BackendError(
                f"array {x.type} lies on ranks {ranks}, not on this one ({self.rank}); reshard it "
                f"to P() first"
            )
        if self.mesh.size == 1 or self.rank is not None or x.sharding.is_replicated:
            return _apart(x.shards[0])
        return to_mlx(x.numpy())


def _apart(x: mx.array | np.ndarray) -> mx.array:
    """Return another array of the same memory.

    Writing to an array of MLX in place (`x += 1`, `x[0] = 1`) gives that very object other values,
    wherever it is held; the memory stays as it is.
    """
    return to_mlx(x) if isinstance(x, np.ndarray) else x.view(x.dtype)
