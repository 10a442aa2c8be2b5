"""Random bits by Threefry-2x32 with 20 rounds (Salmon et al. 2011), on signed words of 32 bits.

PyTorch has no arithmetic for unsigned words. Signed ones wrap around in the same way; a rotation is
a shift down whose upper bits are masked, and the word times a power of two added to it.
"""

from __future__ import annotations

import math

import torch

from mithril_torch.program.runtime_library.tracing import is_traced

PARITY = 0x1BD11BDA
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
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
    apart = seed.device.type == "cpu" and not is_traced()
    step = BLOCK if apart else max(1, len(index))
    rotations = as_operands([32 - by for by in ROTATIONS] + [(1 << by) - 1 for by in ROTATIONS])
    keys = key_words(seed.view(torch.int32), salt)
    for part, made in zip(index.split(step), bits.split(step), strict=True):
        threefry(rotations, keys, part, made)
        if width < 32:
            made.bitwise_right_shift_(32 - width).bitwise_and_((1 << width) - 1)
    return bits.view(shape).view(torch.uint32)


def as_operands(numbers: list[int]) -> list[torch.Tensor | int]:
    """Return words as scalars on the CPU, with which a call takes half as long as with numbers."""
    if is_traced():
        return [*numbers]
    return [*torch.tensor(numbers, dtype=torch.int32, device="cpu").unbind()]


def key_words(key: torch.Tensor, salt: int) -> list[tuple[torch.Tensor | int, ...]]:
    """Return what is added to both words before, and after each group of four rounds."""
    last = key.bitwise_xor(as_word(PARITY ^ salt))
    first, fourth = as_operands([as_word(salt), as_word(salt + 3)])
    return [
        (key, first),
        (first, last.add(1)),
        (last, key.add(2)),
        (key, fourth),
        (first, last.add(4)),
        (last,),
    ]


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


def threefry(
    rotations: list[torch.Tensor | int],
    keys: list[tuple[torch.Tensor | int, ...]],
    index: torch.Tensor,
    x: torch.Tensor,
) -> None:
    """Write the first word of the encrypted indices into x; 32-bit indices are overwritten."""
    (key, salt), *added = keys
    if index.dtype == torch.int32:
        y = index.add_(salt)
        torch.add(y, key, out=x)
    else:
        y = index.to(torch.int32).add_(salt)
        torch.add((index >> 32).to(torch.int32).add_(key), y, out=x)
    other = torch.empty_like(y)
    for number in range(20):
        if number:
            x.add_(y)
        if number < 19:  # nobody needs the second word of the last round
            turn = number % 8
            torch.bitwise_right_shift(y, rotations[turn], out=other)
            other.bitwise_and_(rotations[turn + 8]).add_(y, alpha=1 << ROTATIONS[turn])
            y, other = other.bitwise_xor_(x), y
        if number % 4 == 3:
            for word, more in zip((x, y), added[number // 4], strict=False):
                word.add_(more)


def as_word(number: int) -> int:
    """Return the signed number of the same 32 bits."""
    return (number + 0x80000000) % 0x100000000 - 0x80000000


__all__ = ["random_bits"]
