"""Tensor parallelism after Megatron by hand on PyTorch (Shoeybi et al., 2019).

Each rank has the columns of the layers that widen, and the rows of those that come back; activations
are whole in between, and their gradients are summed where they enter.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional


class _Enter(torch.autograd.Function):
    """Leave activations as they are, and sum their gradients over ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor, None]:
        slope = slope.contiguous()
        dist.all_reduce(slope, group=ctx.group)
        return slope, None


class _Leave(torch.autograd.Function):
    """Sum activations over ranks, and leave their gradients as they are."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.mark_dirty(x)
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor, None]:
        return slope, None


class Rows(nn.Module):
    """A linear layer whose inputs are split over ranks."""

    def __init__(self, whole: nn.Linear, mesh: DeviceMesh) -> None:
        super().__init__()
        self.weight = nn.Parameter(_part(whole.weight, 1, mesh))
        self.bias = None if whole.bias is None else nn.Parameter(whole.bias.detach().clone())
        self._group = mesh.get_group()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = _Leave.apply(functional.linear(x, self.weight), self._group)
        return y if self.bias is None else y + self.bias


def _part(x: torch.Tensor, axis: int, mesh: DeviceMesh) -> torch.Tensor:
    return x.detach().chunk(mesh.size(), axis)[mesh.get_local_rank()].clone()


def keep_columns(linear: nn.Linear, mesh: DeviceMesh) -> None:
    """Keep a rank's outputs of a linear layer."""
    linear.weight = nn.Parameter(_part(linear.weight, 0, mesh))
    if linear.bias is not None:
        linear.bias = nn.Parameter(_part(linear.bias, 0, mesh))


def sum_gradients(module: nn.Module, mesh: DeviceMesh) -> None:
    """Have the gradients of a module's input summed over ranks, once for all who read it."""
    group = mesh.get_group()
    module.register_forward_pre_hook(lambda _, given: (_Enter.apply(given[0], group),))


def split_block(block: Any, mesh: DeviceMesh) -> None:
    """Split a block of a GPT or a Llama over ranks."""
    for part, wide, back in ((block.attn, "qkv", "o"), (block.mlp, ("gate", "up"), "down")):
        sum_gradients(part, mesh)
        for name in wide:
            if hasattr(part, name):
                keep_columns(getattr(part, name), mesh)
        setattr(part, back, Rows(getattr(part, back), mesh))
