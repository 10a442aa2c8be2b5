"""Random bits by Threefry-2x32 with 20 rounds (Salmon et al. 2011), on signed words of 32 bits.

PyTorch has no arithmetic for unsigned words. Signed ones wrap around in the same way; a rotation is
a shift down whose upper bits are masked, and the word times a power of two added to it.
"""

from __future__ import annotations

import math

import torch

PARITY = 0x1BD11BDA
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
BLOCK = 65536  # words worked on at a time: they stay in a processor's cache


def random_bits(
    seed: torch.Tensor,
    salt: int,
    width: int,
    shape: tuple[int, ...],
    whole: tuple[int, ...],
    *offsets: torch.Tensor,
) -> torch.Tensor:
    """Return the high `width` of the 32 random bits of each element, by its index in the whole."""
    index = global_index(shape, whole, offsets, seed.device)
    bits = torch.empty(index.shape, dtype=torch.int32, device=seed.device)
    apart = seed.device.type == "cpu" and not torch.compiler.is_compiling()
    step = BLOCK if apart else max(1, len(index))
    for part, made in zip(index.split(step), bits.split(step), strict=True):
        threefry(seed.view(torch.int32), as_word(salt), part, made)
        if width < 32:
            made.bitwise_right_shift_(32 - width).bitwise_and_((1 << width) - 1)
    return bits.view(shape).view(torch.uint32)


def global_index(
    shape: tuple[int, ...],
    whole: tuple[int, ...],
    offsets: tuple[torch.Tensor, ...],
    device: torch.device,
) -> torch.Tensor:
    """Return the row-major index in the whole of each element of a part, flat and new.

    It is counted in 32 bits, and wraps around, where the whole has no more elements than that.
    """
    dtype = torch.int32 if math.prod(whole) <= 1 << 32 else torch.int64
    if not offsets and math.prod(whole) < 1 << 31:
        return torch.arange(math.prod(shape), dtype=dtype, device=device)
    total = torch.zeros((), dtype=dtype, device=device)
    for dimension, size in enumerate(shape):
        along = torch.arange(size, dtype=dtype, device=device)
        if offsets:
            along = along + offsets[dimension].to(dtype)
        stride = math.prod(whole[dimension + 1 :])
        along = along * (as_word(stride) if dtype == torch.int32 else stride)
        total = total.unsqueeze(-1) + along
    return total.reshape(-1)


def threefry(key: torch.Tensor, salt: int, index: torch.Tensor, x: torch.Tensor) -> None:
    """Write the first word of the encrypted indices into x; 32-bit indices are overwritten."""
    last = key.bitwise_xor(as_word(PARITY ^ salt))
    if index.dtype == torch.int32:
        y = index.add_(salt)
        torch.add(y, key, out=x)
    else:
        y = index.to(torch.int32).add_(salt)
        torch.add((index >> 32).to(torch.int32).add_(key), y, out=x)
    # The words of the key that are added after each group of four rounds.
    added: list[tuple[torch.Tensor | int, torch.Tensor | int | None]] = [
        (salt, last.add(1)),
        (last, key.add(2)),
        (key, as_word(salt + 3)),
        (salt, last.add(4)),
        (last, None),
    ]
    other = torch.empty_like(y)
    for group, (first, second) in enumerate(added):
        for turn, by in enumerate(ROTATIONS[group % 2]):
            if group or turn:
                x.add_(y)
            if second is None and turn == 3:
                break  # nobody needs the second word of the last round
            torch.bitwise_right_shift(y, 32 - by, out=other)
            other.bitwise_and_((1 << by) - 1).add_(y, alpha=1 << by).bitwise_xor_(x)
            y, other = other, y
        x.add_(first)
        if second is not None:
            y.add_(second)


def as_word(number: int) -> int:
    """Return the signed number of the same 32 bits."""
    return (number + 0x80000000) % 0x100000000 - 0x80000000
