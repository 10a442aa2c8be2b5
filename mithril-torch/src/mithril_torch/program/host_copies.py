"""Functions that copy between a device and the host arena.

On CUDA the arena is pinned memory, and copies run on a stream of their own: what is on its way back
is waited for where it is first used. Elsewhere it is memory that PyTorch's allocator knows nothing
of, and a copy is made where it is first used.
"""

from __future__ import annotations

from functools import cache

import torch

__all__ = ["fetch", "to_host"]


def to_host(x: torch.Tensor, where: str) -> torch.Tensor:
    """Return a copy of x in the arena, whose elements keep their order in memory."""
    if not x.is_cuda:
        held = allocate_like(x, where)
        return held.copy_(x)
    stream = copy_stream(x.device)
    stream.wait_stream(torch.cuda.current_stream(x.device))
    if where == "memory":
        held = torch.empty_like(x, device="cpu", pin_memory=True)
    else:
        held = allocate_like(x, where)
    with torch.cuda.stream(stream):
        held.copy_(x, non_blocking=True)
    x.record_stream(stream)  # its memory is used again only when it is copied
    return held


def fetch(held: torch.Tensor, device: str | torch.device) -> Fetch:
    """Begin to copy a tensor from the arena to the device."""
    return Fetch(held, torch.device(device))


class Fetch:
    """A copy from the arena on its way to the device."""

    def __init__(self, held: torch.Tensor, device: torch.device) -> None:
        self.held, self.device = held, device
        self.made: torch.Tensor | None = None
        if device.type == "cuda":
            with torch.cuda.stream(copy_stream(device)):
                self.made = held.to(device, non_blocking=True)

    def wait(self) -> torch.Tensor:
        """Return the copy, which what comes from now on may use."""
        if self.made is None:
            return self.held.to(self.device, copy=True)
        current = torch.cuda.current_stream(self.made.device)
        current.wait_stream(copy_stream(self.made.device))
        self.made.record_stream(current)
        return self.made


def allocate_like(x: torch.Tensor, where: str) -> torch.Tensor:
    """Return memory of the arena of this process for a tensor like x, in the same order."""
    from mithril.spi import host_arena

    strides = x.stride()
    major = sorted(range(x.dim()), key=lambda dimension: -strides[dimension])
    block = torch.from_numpy(host_arena(where).allocate(x.numel() * x.element_size()))
    held = block.view(x.dtype).view([x.shape[dimension] for dimension in major])
    order = sorted(range(x.dim()), key=major.__getitem__)
    return held.permute(order)


@cache
def copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of a device on which everything is copied, in order."""
    return torch.cuda.Stream(device)
