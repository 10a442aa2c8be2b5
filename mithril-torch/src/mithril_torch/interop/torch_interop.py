"""PyTorch's own tensors and modules, and Mithril's: each may be used with the other.

Tensors and DTensors are taken as they are, Mithril's arrays are given out as tensors, and a
compiled model becomes a module that PyTorch's optimizers train.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from mithril.spi import (
    Adopted,
    ArrayMethods,
    ArrayView,
    BackendError,
    Interop,
    ModelMethods,
    Sharding,
    TensorType,
)
from torch._subclasses.fake_tensor import FakeTensor

from mithril_torch.eject.program_file import code, eject
from mithril_torch.engine_view import EngineView
from mithril_torch.executors.local import LocalExecutor
from mithril_torch.interop.dtensors import is_dtensor, unwrap
from mithril_torch.interop.modules import as_module
from mithril_torch.interop.tensor_conversion import to_handle, to_tensors
from mithril_torch.tensors import dtype_of, to_numpy


@dataclass(frozen=True, eq=False)
class TorchInterop(Interop):
    """What the PyTorch engine offers; see `mithril.spi.Interop`."""

    engine: EngineView

    @property
    def array_methods(self) -> ArrayMethods:
        """`x.torch()`, and DLPack for other libraries."""
        return {"torch": _torch, "__dlpack__": _dlpack, "__dlpack_device__": _dlpack_device}

    @property
    def model_methods(self) -> ModelMethods:
        """`compiled.as_module()`, `compiled.code()`, `compiled.eject(path)`."""
        return {"as_module": as_module, "code": code, "eject": eject}

    def adopt(self, x: object) -> Adopted | None:
        """Return a tensor replicated, or a DTensor as it lies; gradients do not flow back.

        Raises:
            BackendError: it has no values, no dtype of Mithril's, or lies on other ranks.
        """
        if not isinstance(x, torch.Tensor):
            return None
        self._check(x)
        mesh, sharding, whole = self.engine.mesh, None, x
        if is_dtensor(x):
            whole, sharding = unwrap(x, mesh, self.engine.executor)
        type = TensorType(tuple(x.shape), dtype_of(x))
        lying = sharding or Sharding.replicated(mesh, type.rank)
        shards = to_handle(self.engine, whole, type, lying, is_part=sharding is not None)
        return Adopted(type, lying, shards, is_placed=sharding is not None)

    def host(self, x: object) -> np.ndarray | None:
        """Return a tensor of the host as NumPy's."""
        if not isinstance(x, torch.Tensor) or is_dtensor(x):
            return None
        self._check(x)
        return to_numpy(x.resolve_neg()) if x.device.type == "cpu" else None

    def _check(self, x: torch.Tensor) -> None:
        if x.is_meta or _is_traced(x):
            raise BackendError(
                f"tensor {x.dtype}{list(x.shape)} has no values: it is on device 'meta', or traced "
                f"by torch.func or torch.compile; pass it in outside of them"
            )
        if x.layout is not torch.strided:
            raise BackendError(
                f"tensor {x.dtype}{list(x.shape)} has layout {x.layout}, and Mithril's arrays are "
                f"dense; pass in x.to_dense()"
            )
        if dtype_of(x) not in self.engine.dtypes:
            raise BackendError(
                f"tensor has dtype {dtype_of(x)}, in which PyTorch cannot compute; pass in "
                f"x.to(torch.int64)"
            )


def _is_traced(x: torch.Tensor) -> bool:
    return isinstance(x, FakeTensor) or torch._C._functorch.is_functorch_wrapped_tensor(x)


def _torch(x: ArrayView[EngineView]) -> torch.Tensor:
    """Return what this process sees of an array as a tensor.

    That is the whole of it in a script, and the part of this rank under torchrun. On one device it
    is the same memory.
    """
    found = x.type, x.sharding
    return to_tensors(x.backend.engine, [(x.shards, *found)])[0]


def _dlpack(x: ArrayView[EngineView], **options: Any) -> Any:
    return _torch(x).__dlpack__(**options)


def _dlpack_device(x: ArrayView[EngineView]) -> Any:
    lies_here = isinstance(x.backend.engine.executor, LocalExecutor)
    return (x.shards if lies_here else torch.empty(0, device="cpu")).__dlpack_device__()
