"""What more primitive ops mean, in plain NumPy: rows of `oracles.ORACLES`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

PRIMITIVE: dict[str, Callable[..., Any]] = {}


def oracle(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function as the meaning of the op of its name."""
    PRIMITIVE[function.__name__] = function
    return function


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an oracle that applies a function of Python numbers element by element."""

    def meaning(op, *arrays):
        parts = np.broadcast_arrays(*arrays)
        found = [
            function(*(x.item() for x in row)) for row in zip(*(p.flat for p in parts), strict=True)
        ]
        return np.array(found, arrays[0].dtype).reshape(parts[0].shape)

    return meaning


def _truth(function: Callable[..., bool]) -> Callable[..., Any]:
    return lambda op, *arrays: np.array(
        [function(*row) for row in zip(*(a.flat for a in arrays), strict=True)]
    ).reshape(arrays[0].shape)


def _int_power(x: int | float, y: int | float) -> int | float:
    if isinstance(x, float) or y >= 0:
        return x**y
    return 0 if x == 0 else math.trunc(1 / x**-y)


PRIMITIVE.update(
    sigmoid=_each(lambda x: 1 / (1 + math.exp(-x))),
    expm1=_each(lambda x: math.exp(x) - 1),
    log1p=_each(lambda x: math.log(1 + x)),
    tan=_each(lambda x: math.sin(x) / math.cos(x)),
    arctan=_each(math.atan),
    sinh=_each(lambda x: (math.exp(x) - math.exp(-x)) / 2),
    cosh=_each(lambda x: (math.exp(x) + math.exp(-x)) / 2),
    floor=_each(math.floor),
    ceil=_each(math.ceil),
    round=_each(round),
    trunc=_each(math.trunc),
    floor_divide=_each(lambda x, y: math.floor(x / y)),
    remainder=_each(lambda x, y: x - y * math.floor(x / y)),
    power=_each(_int_power),
    bitwise_and=_each(lambda x, y: x & y),
    bitwise_or=_each(lambda x, y: x | y),
    bitwise_xor=_each(lambda x, y: x ^ y),
    bitwise_invert=_each(lambda x: -x - 1),
    bitwise_left_shift=_each(lambda x, y: x * 2**y),
    bitwise_right_shift=_each(lambda x, y: x // 2**y),
    logical_xor=_truth(lambda x, y: x != y),
    isnan=_truth(lambda x: not (x < 0 or x >= 0)),
    isinf=_truth(lambda x: abs(x) == math.inf),
    isfinite=_truth(lambda x: abs(x) < math.inf),
)


@oracle
def prod(op, x):
    result = np.exp(np.log(np.abs(x) + (x == 0)).sum(op.axes, keepdims=op.keepdims))
    odd = (x < 0).sum(op.axes, keepdims=op.keepdims) % 2
    result = np.where((x == 0).any(op.axes, keepdims=op.keepdims), 0, result * (1 - 2 * odd))
    return np.round(result).astype(x.dtype) if x.dtype.kind == "i" else result


@oracle
def cumsum(op, x):
    rows = np.moveaxis(x, op.axis, -1)
    size = rows.shape[-1]
    mask = np.tril(np.ones((size, size), x.dtype))
    return np.moveaxis(rows @ (mask if op.reverse else mask.T), -1, op.axis)


@oracle
def cumprod(op, x):
    rows = np.moveaxis(x, op.axis, -1)
    size, result = rows.shape[-1], np.empty_like(rows)
    for i in range(size):
        result[..., i] = np.prod(rows[..., i:] if op.reverse else rows[..., : i + 1], -1)
    return np.moveaxis(result, -1, op.axis)


def _ordered(op, x, descending: bool) -> np.ndarray:
    """Positions by Python's stable sort, row by row."""
    rows = np.moveaxis(x, op.axis, -1)
    found = np.empty(rows.shape, np.int32)
    for at in np.ndindex(rows.shape[:-1]):
        row = rows[at].tolist()
        found[at] = sorted(range(len(row)), key=lambda i: -row[i] if descending else row[i])
    return np.moveaxis(found, -1, op.axis)


@oracle
def argsort(op, x):
    return _ordered(op, x, op.descending)


@oracle
def sort(op, x):
    return take_along(op, x, _ordered(op, x, op.descending))


@oracle
def top_k(op, x):
    order = np.take(_ordered(op, x, descending=True), range(op.k), op.axis)
    return take_along(op, x, order), order


@oracle
def flip(op, x):
    index = [slice(None, None, -1) if i in op.axes else slice(None) for i in range(x.ndim)]
    return x[tuple(index)]


@oracle
def take_along(op, x, indices):
    result = np.empty(indices.shape, x.dtype)
    for at in np.ndindex(indices.shape):
        source = list(at)
        source[op.axis] = indices[at]
        result[at] = x[tuple(source)]
    return result


@oracle
def scatter_along(op, indices, updates):
    shape = list(updates.shape)
    shape[op.axis] = op.size
    result = np.zeros(shape, updates.dtype)
    for at in np.ndindex(indices.shape):
        target = list(at)
        target[op.axis] = indices[at]
        result[tuple(target)] += updates[at]
    return result


@oracle
def moe_dispatch(op, x, ids, back):
    result = np.zeros((*ids.shape, x.shape[2]), x.dtype)
    for group, place in np.ndindex(ids.shape):
        if ids[group, place] >= 0:
            result[group, place] = x[group, ids[group, place]]
    return result


@oracle
def moe_combine(op, x, ids, back):
    result = np.zeros((x.shape[0], op.rows, x.shape[2]), x.dtype)
    for group, entry in np.ndindex(ids.shape):
        if ids[group, entry] >= 0:
            result[group, entry % op.rows] += x[group, ids[group, entry]]
    return result


@oracle
def grouped_matmul(op, x, ids, stack):
    matrices = stack if op.transposed else stack.swapaxes(1, 2)
    result = np.zeros((*x.shape[:3], matrices.shape[2]), x.dtype)
    for at in np.ndindex(ids.shape):
        if 0 <= ids[at] < len(stack):
            result[at] = x[at] @ matrices[ids[at]]
    return result


@oracle
def grouped_outer(op, left, right, ids):
    result = np.zeros((op.entries, left.shape[3], right.shape[3]), left.dtype)
    for at in np.ndindex(ids.shape):
        if 0 <= ids[at] < op.entries:
            result[ids[at]] += left[at].T @ right[at]
    return result


def _windows(op, spatial, out):
    """Yield each place of the result, and the elements and size of its window."""
    for at in itertools.product(*map(range, out)):
        ranges = [
            range(i * s - before, i * s - before + w)
            for i, s, w, (before, _) in zip(at, op.stride, op.window, op.padding, strict=True)
        ]
        inside = [
            point
            for point in itertools.product(*ranges)
            if all(0 <= p < n for p, n in zip(point, spatial, strict=True))
        ]
        yield at, inside, math.prod(op.window) if op.count_padding else len(inside)


@oracle
def avg_pool(op, x):
    out = [
        (n + sum(pad) - w) // s + 1
        for n, pad, w, s in zip(x.shape[2:], op.padding, op.window, op.stride, strict=True)
    ]
    y = np.zeros((*x.shape[:2], *out), x.dtype)
    for at, inside, count in _windows(op, x.shape[2:], out):
        y[(..., *at)] = sum(x[(..., *point)] for point in inside) / count
    return y


@oracle
def avg_pool_gradient(op, dy):
    dx = np.zeros((*dy.shape[:2], *op.size), dy.dtype)
    for at, inside, count in _windows(op, op.size, dy.shape[2:]):
        for point in inside:
            dx[(..., *point)] += dy[(..., *at)] / count
    return dx
