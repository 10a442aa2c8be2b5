"""MLX's own arrays, and Mithril's: each may be used with the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np
from mithril.engine.interop import Adopted, ArrayMethods, ArrayView, Interop
from mithril.errors import BackendError
from mithril.mesh import Sharding
from mithril.types import TensorType

from mithril_mlx.tensors import dtype_of, to_mlx, to_numpy

if TYPE_CHECKING:
    from mithril_mlx.engine import MLXEngine


@dataclass(frozen=True, eq=False)
class MLXInterop(Interop):
    """What the MLX engine offers; see `mithril.engine.interop`."""

    engine: MLXEngine

    @property
    def array_methods(self) -> ArrayMethods:
        """`x.mlx()`."""
        return {"mlx": _mlx}

    def host(self, x: object) -> np.ndarray | None:
        """Return an MLX array as NumPy's: its memory is the host's."""
        return to_numpy(x) if isinstance(x, mx.array) else None

    def adopt(self, x: object) -> Adopted | None:
        """Return an MLX array, replicated: every device has the same."""
        if not isinstance(x, mx.array):
            return None
        type = TensorType(tuple(x.shape), dtype_of(x))
        count = len(self.engine.local_devices)
        return Adopted(type, Sharding.replicated(self.engine.mesh, type.rank), [_apart(x)] * count)


def _mlx(x: ArrayView[MLXEngine]) -> mx.array:
    """Return what this process sees of an array as MLX's.

    That is the whole of it in a script, and the part of this rank in a job. On one device it is the
    same memory.

    Raises:
        BackendError: it lies on other ranks of the job.
    """
    engine = x.backend.engine
    if not x.shards:
        assert engine.job is not None, "one process has a part of everything"
        ranks = ", ".join(map(str, x.sharding.mesh.flat))
        raise BackendError(
            f"array {x.type} lies on ranks {ranks}, not on this one ({engine.job.rank}); reshard "
            f"it to P() first"
        )
    if engine.mesh.size == 1 or engine.job is not None or x.sharding.is_replicated:
        return _apart(x.shards[0])
    return to_mlx(x.numpy())


def _apart(x: mx.array) -> mx.array:
    """Return another array of the same memory.

    Writing to an array of MLX in place (`x += 1`, `x[0] = 1`) gives that very object other values,
    wherever it is held; the memory stays as it is.
    """
    return x.view(x.dtype)
