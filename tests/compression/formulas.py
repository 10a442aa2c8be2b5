"""What compressed sums are, on the terms of all devices, in NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np

CASTS = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}


def add_cast(terms: np.ndarray, form: str) -> np.ndarray:
    """Return the sum over the first dimension of what is cast for the way."""
    count = np.float32(len(terms) if form == "fp16" else 1)
    sent = (terms * (np.float32(1) / count)).astype(CASTS[form])
    return sent.astype(np.float32).sum(axis=0).astype(CASTS[form]).astype(np.float32) * count


def add_blocks(terms: np.ndarray, block: int, dimension: int | None = None) -> np.ndarray:
    """Return the sum of blocks of 8-bit integers.

    Args:
        terms: one for each device.
        block: how many numbers share a scale.
        dimension: along which each device keeps a part; None where all get the whole.
    """
    count, shape = len(terms), terms.shape[1:]
    if dimension is None:
        flat = terms.reshape(count, -1)
        padded = np.pad(flat, ((0, 0), (0, -flat.shape[1] % count)))
        parts = padded.reshape(count, count, -1)  # (from, to, elements)
    else:
        cut = np.stack(np.split(terms, count, axis=dimension + 1), axis=1)
        parts = cut.reshape(count, count, -1)
    total = quantise(parts, block).sum(axis=0)
    if dimension is None:
        whole = quantise(total, block).reshape(-1)
        return whole[: np.prod(shape, dtype=int)].reshape(shape)
    part = list(shape)
    part[dimension] //= count
    return np.concatenate([piece.reshape(part) for piece in total], axis=dimension)


def quantise(x: np.ndarray, block: int) -> np.ndarray:
    """Return what is read again of numbers sent as 8-bit integers with a scale for each block."""
    size = x.shape[-1]
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -size % block)])
    blocks = padded.reshape(*x.shape[:-1], -1, block)
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    ratio = np.where(scale > 0, blocks / np.where(scale > 0, scale, np.float32(1)), np.float32(0))
    read = np.round(ratio).astype(np.int8).astype(np.float32) * scale
    return read.reshape(*x.shape[:-1], -1)[..., :size]


def multiply_low_rank(
    terms: np.ndarray, factor: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the sum of matrices by one step of power iteration.

    Args:
        terms: (devices, rows, columns).
        factor: of the step before, (columns, rank).

    Returns:
        The sum, what each device lost, and the next factor.
    """
    left = orthonormalise((terms @ orthonormalise(factor)).sum(axis=0))
    right = (terms.transpose(0, 2, 1) @ left).sum(axis=0)
    total = left @ right.T
    return total, terms - total / np.float32(len(terms)), right


def orthonormalise(x: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of columns, by Gram and Schmidt."""
    columns: list[np.ndarray] = []
    for column in x.T:
        rest = column - sum((c * (c @ column) for c in columns), np.zeros_like(column))
        columns.append(rest / np.linalg.norm(rest))
    return np.stack(columns, axis=1)


def lose_cast(terms: np.ndarray, form: str) -> np.ndarray:
    """Return what each device loses by a cast for the way."""
    count = np.float32(len(terms) if form == "fp16" else 1)
    return terms - (terms * (np.float32(1) / count)).astype(CASTS[form]).astype(np.float32) * count


def lose_blocks(terms: np.ndarray, block: int, *, scatters: bool = False) -> np.ndarray:
    """Return what each device loses by 8-bit integers.

    Args:
        terms: one for each device.
        block: how many numbers share a scale.
        scatters: whether each device keeps a part of the first dimension; otherwise it has lost
            what is lost of the sum of its part, too, as that goes to all.
    """
    count, size = len(terms), terms[0].size
    padded = np.pad(terms.reshape(count, -1), ((0, 0), (0, -size % count)))
    parts = padded.reshape(count, count, -1)
    sent = quantise(parts, block)
    lost, total = parts - sent, sent.sum(axis=0)
    if not scatters:
        lost[np.arange(count), np.arange(count)] += total - quantise(total, block)
    return lost.reshape(count, -1)[:, :size].reshape(terms.shape)
