"""Functions of numbers as NumPy has them, where PyTorch answers differently."""

from __future__ import annotations

import torch


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
