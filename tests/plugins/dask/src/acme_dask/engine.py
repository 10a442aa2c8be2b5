"""Simulated devices on Dask: kernels put a graph together, the end of a program computes it.

A handle is a list with the array of each device, in one chunk each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import dask
import numpy as np
from array_api_compat import numpy as numpy_namespace
from array_api_compat.dask import array as xp
from dask.array import from_delayed
from mithril.spi import (
    DType,
    Engine,
    Executable,
    Kernel,
    LockstepExecutable,
    Mesh,
    Observer,
    Produce,
    Program,
    Sharding,
    TensorType,
    Transfer,
    Types,
    bind_namespace,
    host_shards,
    move_shards,
)

dask.config.set(scheduler="synchronous")
SHARED = bind_namespace(xp)
ON_NUMPY = (
    "cholesky", "convolution", "convolution_input_gradient", "convolution_weight_gradient", "det",
    "eigh", "erf", "inv", "qr", "random_bits", "slogdet", "solve", "svd",
    "triangular_solve",
)  # fmt: skip
"""Ops that Dask does not have, or for two dimensions only; or that are hundreds of its tasks."""
DTYPES = frozenset(dtype for dtype in DType if hasattr(xp, dtype.value))


def _on_numpy(kernel: Kernel, op: Any, types: Types) -> Callable[..., Any]:
    """Return a kernel whose work is one task of the graph, in which NumPy does it."""
    run, results = kernel(op, types), op.infer(types)

    def put_off(*operands: Any) -> Any:
        made = dask.delayed(run, nout=len(results) if len(results) > 1 else None)(*operands)
        parts = made if len(results) > 1 else [made]
        arrays = [
            from_delayed(part, shape=type.shape, dtype=type.dtype.numpy)
            for part, type in zip(parts, results, strict=True)
        ]
        return arrays[0] if len(arrays) == 1 else tuple(arrays)

    return put_off


KERNELS: Mapping[str, Kernel] = {
    **SHARED,
    **{
        name: partial(_on_numpy, kernel)
        for name, kernel in bind_namespace(numpy_namespace).items()
        if name in ON_NUMPY
    },
}


@dataclass(frozen=True, slots=True)
class DaskEngine(Engine):
    """Dask arrays as the parts of tensors."""

    mesh: Mesh
    name = "dask"

    @property
    def platform(self) -> str:
        """`cpu`."""
        return "cpu"

    @property
    def devices(self) -> tuple[str, ...]:
        """A label for each device."""
        return tuple(f"dask {index}" for index in self.mesh.flat)

    @property
    def own_kernels(self) -> Mapping[str, Kernel]:
        """The shared kernels on Dask, and a few of them on NumPy."""
        return KERNELS

    @property
    def dtypes(self) -> frozenset[DType]:
        """Those of the array API."""
        return DTYPES

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> list[Any]:
        """Make an array of one chunk for each device."""
        return [to_array(part) for part in host_shards(type, sharding, produce)]

    def shard(self, shards: list[Any], sharding: Sharding, device: int) -> np.ndarray:
        """Compute what a device holds."""
        view = np.asarray(shards[device].compute()).view()
        view.flags.writeable = False
        return view

    def part(self, mesh: Mesh) -> Self:
        """Return the engine of some of the devices."""
        return replace(self, mesh=mesh)

    def lower_transfer(self, transfer: Transfer) -> Callable[[list[Any]], list[Any]]:
        """Return what brings a value from some devices to others."""
        return lambda shards: move_shards(shards, transfer, xp)

    def lower(self, program: Program, donate: Collection[int] = ()) -> Executable:
        """Turn a program into Python that puts a graph together and computes it."""
        run = LockstepExecutable(program, self.kernel_table, xp, checks=self.kernel_checks)
        return _Computed(run)


class _Computed:
    """A program whose results are computed when it ends."""

    def __init__(self, run: LockstepExecutable) -> None:
        self._run = run

    def __call__(self, inputs: Sequence[Any], observe: Observer | None = None) -> list[Any]:
        """Run once."""
        made = self._run(inputs, observe)
        computed = iter(dask.compute(*[part for shards in made for part in shards]))
        return [[to_array(np.asarray(next(computed))) for _ in shards] for shards in made]


def to_array(host: np.ndarray) -> Any:
    """Return an array of one chunk."""
    return xp.asarray(host.copy(), chunks=-1)
