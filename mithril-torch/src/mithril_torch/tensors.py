"""NumPy arrays as tensors and back, without copies where memory can be shared."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from mithril.spi import DType, as_dtype
from torch.utils import dlpack


def torch_dtype(dtype: DType) -> torch.dtype:
    """Return PyTorch's dtype of the same meaning."""
    found: torch.dtype = getattr(torch, dtype.value)
    return found


def dtype_of(tensor: torch.Tensor) -> DType:
    """Return Mithril's dtype of the same meaning.

    Raises:
        ShapeError: there is none.
    """
    return as_dtype(str(tensor.dtype).removeprefix("torch."))


def to_normal_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same memory that autograd may use; what programs return it may not."""
    return dlpack.from_dlpack(torch._C._to_dlpack(tensor)) if tensor.is_inference() else tensor


def disable_autocast(device: str) -> AbstractContextManager[Any]:
    """Return the context in which ops keep the dtypes that a program gives them."""
    kind = device.partition(":")[0]
    is_cast = torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if is_cast else nullcontext()


def to_tensor(array: np.ndarray, device: str = "cpu") -> torch.Tensor:
    """Return an array as a tensor on a device; on the host it shares memory that may be written."""
    is_bfloat16 = array.dtype.name == "bfloat16"
    plain = array.view(np.int16) if is_bfloat16 else array
    if not (plain.flags.writeable and plain.flags.c_contiguous):
        plain = np.array(plain, order="C")  # PyTorch has no tensors that cannot be written
    tensor = torch.from_numpy(plain)
    return (tensor.view(torch.bfloat16) if is_bfloat16 else tensor).to(device)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor as an array on the host, sharing memory where it lies there."""
    host = tensor.detach().cpu()
    if host.dtype != torch.bfloat16:
        return host.numpy()
    return host.contiguous().view(torch.int16).numpy().view(DType.bfloat16.numpy)
