"""Whether PyTorch's compiler reads a function, instead of running it on numbers."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode


def is_traced() -> bool:
    """Return whether a graph is made of the ops that are called, for kernels of the compiler's."""
    return torch.compiler.is_compiling() or get_proxy_mode() is not None


__all__ = ["is_traced"]
