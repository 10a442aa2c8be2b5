"""What ops on matrices and on parts at positions mean: rows of `oracles.ORACLES`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

MATRIX: dict[str, Callable[..., Any]] = {}


def oracle(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function as the meaning of the op of its name."""
    MATRIX[function.__name__] = function
    return function


def _part(shape, part, axes, starts) -> tuple[slice, ...]:
    index = [slice(None)] * len(shape)
    for axis, start in zip(axes, starts, strict=True):
        first = max(0, min(int(start), shape[axis] - part[axis]))
        index[axis] = slice(first, first + part[axis])
    return tuple(index)


@oracle
def dynamic_slice(op, x, *starts):
    part = dict(zip(op.axes, op.sizes, strict=True))
    shape = [part.get(axis, size) for axis, size in enumerate(x.shape)]
    return x[_part(x.shape, shape, op.axes, starts)]


@oracle
def dynamic_update_slice(op, x, update, *starts):
    result = x.copy()
    result[_part(x.shape, update.shape, op.axes, starts)] = update
    return result


def _matrices(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an oracle that applies a function of single matrices to each of a batch."""

    def meaning(op, *arrays):
        batch = arrays[0].shape[:-2]
        rows = [function(op, *(x[at] for x in arrays)) for at in np.ndindex(batch)]
        if not isinstance(rows[0], tuple):
            return np.array(rows).reshape((*batch, *np.shape(rows[0])))
        return tuple(
            np.array(parts).reshape(*batch, *parts[0].shape) for parts in zip(*rows, strict=True)
        )

    meaning.__name__ = function.__name__
    return oracle(meaning)


@_matrices
def cholesky(op, x):
    """Banachiewicz's recurrence."""
    x, lower = (x + x.T) / 2, np.zeros_like(x)
    for i, j in zip(*np.tril_indices(len(x)), strict=True):
        rest = x[i, j] - lower[i, :j] @ lower[j, :j]
        lower[i, j] = rest**0.5 if i == j else rest / lower[j, j]
    return lower


def _inverse(x):
    """Gauss and Jordan's elimination, the largest pivot first."""
    both, size = np.concatenate([x, np.eye(len(x))], axis=1), len(x)
    for i in range(size):
        pivot = i + np.abs(both[i:, i]).argmax()
        both[[i, pivot]] = both[[pivot, i]]
        both[i] /= both[i, i]
        for j in set(range(size)) - {i}:
            both[j] -= both[j, i] * both[i]
    return both[:, size:]


@_matrices
def inv(op, x):
    return _inverse(x)


@_matrices
def solve(op, a, b):
    return _inverse(a) @ b


@_matrices
def triangular_solve(op, a, b):
    read = np.tril(a) if op.lower else np.triu(a)
    if op.unit_diagonal:
        np.fill_diagonal(read, 1)
    return _inverse(read.T if op.transpose else read) @ b


@_matrices
def det(op, x):
    """Leibniz's sum over permutations."""
    size, total = len(x), 0.0
    for order in itertools.permutations(range(size)):
        turns = sum(a > b for a, b in itertools.combinations(order, 2))
        total += (-1) ** turns * np.prod(x[range(size), order])
    return np.float64(total)


@_matrices
def qr(op, x):
    """Gram and Schmidt's process."""
    q = np.zeros((len(x), min(x.shape)))
    for i in range(q.shape[1]):
        rest = x[:, i] - q @ (q.T @ x[:, i])
        q[:, i] = rest / (rest @ rest) ** 0.5
    return q, q.T @ x


def _positive(vectors):
    return vectors * np.sign(vectors[np.abs(vectors).argmax(0), range(vectors.shape[1])])


def _eigen(x):
    """Jacobi's rotations."""
    x, vectors = x.copy(), np.eye(len(x))
    for _ in range(30):
        for i, j in itertools.combinations(range(len(x)), 2):
            angle = 0.5 * np.arctan2(2 * x[i, j], x[j, j] - x[i, i])
            turn = np.eye(len(x))
            turn[[i, j], [i, j]] = np.cos(angle)
            turn[i, j], turn[j, i] = np.sin(angle), -np.sin(angle)
            x, vectors = turn.T @ x @ turn, vectors @ turn
    order = np.diag(x).argsort()
    return np.diag(x)[order], _positive(vectors[:, order])


@_matrices
def eigh(op, x):
    return _eigen((x + x.T) / 2)


@_matrices
def svd(op, x):
    """From the eigenvectors of x x^T."""
    least = min(x.shape)
    squares, u = _eigen(x @ x.T)
    s, u = squares[::-1][:least] ** 0.5, u[:, ::-1][:, :least]
    return u, s, (u.T @ x) / s[:, None]
