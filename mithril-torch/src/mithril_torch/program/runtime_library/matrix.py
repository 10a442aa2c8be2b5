"""Factorisations and linear equations, with the same signs everywhere.

Where there is no result it is NaN.
"""

from __future__ import annotations

import torch


def cholesky(x: torch.Tensor) -> torch.Tensor:
    """Return the lower factor of the symmetric part of x."""
    found = torch.linalg.cholesky_ex((x + x.mT) * 0.5)
    return fill_failed(found.L, found.info)


def solve(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the x for which a x is b."""
    found = torch.linalg.solve_ex(a, b)
    return fill_failed(found.result, found.info)


def inverse(x: torch.Tensor) -> torch.Tensor:
    """Return the inverses."""
    found = torch.linalg.inv_ex(x)
    return fill_failed(found.inverse, found.info)


def fill_failed(found: torch.Tensor, info: torch.Tensor) -> torch.Tensor:
    """Return results with NaN where LAPACK says that it failed."""
    return found.masked_fill((info != 0)[..., None, None], torch.nan)


def qr(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return Q and R, with no negative number on the diagonal of R."""
    q, r = torch.linalg.qr(x)
    diagonal = torch.diagonal(r, 0, -2, -1)
    signs = torch.where(diagonal < 0, -1, 1).to(x.dtype)
    return q * signs[..., None, :], r * signs[..., :, None]


def svd(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return U, S and V^T; columns of U are positive where they are largest."""
    x, is_bad = replace_non_finite(x)
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    signs = column_signs(u)
    u, vh = u * signs, vh * signs.mT
    return (
        u.masked_fill(is_bad, torch.nan),
        s.masked_fill(is_bad.squeeze(-1), torch.nan),
        vh.masked_fill(is_bad, torch.nan),
    )


def eigh(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return eigenvalues and eigenvectors, which are positive where they are largest."""
    x, is_bad = replace_non_finite((x + x.mT) * 0.5)
    values, vectors = torch.linalg.eigh(x)
    vectors = vectors * column_signs(vectors)
    return (
        values.masked_fill(is_bad.squeeze(-1), torch.nan),
        vectors.masked_fill(is_bad, torch.nan),
    )


def column_signs(x: torch.Tensor) -> torch.Tensor:
    """Return 1 or -1 for each column: the sign of its largest number."""
    at = x.abs().argmax(-2, keepdim=True)
    return torch.where(torch.gather(x, -2, at) < 0, -1, 1).to(x.dtype)


def replace_non_finite(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return matrices with zeros in place of those that PyTorch refuses, and which they are."""
    is_bad = x.isfinite().logical_not_().any(-1, keepdim=True).any(-2, keepdim=True)
    return x.masked_fill(is_bad, 0), is_bad


def round_to(results: tuple[torch.Tensor, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Return several results in a dtype."""
    return tuple(x.to(dtype) for x in results)


__all__ = ["cholesky", "eigh", "inverse", "qr", "round_to", "solve", "svd"]
