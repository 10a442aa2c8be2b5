"""Functions of numbers: where PyTorch answers differently from NumPy, or slowly."""

from __future__ import annotations

import torch

from mithril_torch.program.runtime_library.tracing import is_traced


def sign(x: torch.Tensor) -> torch.Tensor:
    """Return the sign of floats; that of NaN is NaN."""
    return torch.sign(x).masked_fill_(torch.isnan(x), torch.nan)


def whole_floor_divide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the whole part of a quotient of integers; 0 by zero."""
    by_zero = torch.eq(y, 0)
    return torch.floor_divide(x, y.masked_fill(by_zero, 1)).masked_fill_(by_zero, 0)


def whole_remainder(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return what the division of integers leaves; 0 by zero."""
    return torch.remainder(x, y.masked_fill(torch.eq(y, 0), 1))


def choose(condition: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return x where a condition holds, else y, without a branch on each element.

    Processors cannot foresee a random condition; `torch.where` takes up to twenty times as long.
    """
    if condition.device.type != "cpu" or is_traced():
        return torch.where(condition, x, y)
    dtype, left, right = x.dtype, as_bits(x), as_bits(y)
    if right.dim() == 0 and right.item() == 0:
        return torch.bitwise_and(left, all_bits(condition, left.dtype)).view(dtype)
    if left.dim() == 0 and left.item() == 0:
        return torch.bitwise_and(right, none_of(condition, left.dtype)).view(dtype)
    apart = torch.bitwise_xor(left, right)
    chosen = torch.bitwise_and(apart, all_bits(condition, left.dtype))
    return chosen.bitwise_xor_(right).view(dtype)


def as_bits(x: torch.Tensor) -> torch.Tensor:
    """Return the same memory as integers."""
    sizes = (torch.int8, torch.int16, torch.int32, torch.int64)
    return x.view(sizes[x.element_size().bit_length() - 1])


def all_bits(condition: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return integers with all bits where a condition holds, else 0."""
    return torch.neg(condition.view(torch.int8)).to(dtype)


def none_of(condition: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return 0 where a condition holds, else integers with all bits."""
    return torch.sub(condition.view(torch.int8), 1).to(dtype)


__all__ = ["choose", "sign", "whole_floor_divide", "whole_remainder"]
