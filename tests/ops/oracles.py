"""What every op means, in plain NumPy: `ORACLES[name](op, *arrays)` gives the result or results."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.ops.oracles_fused import FUSED, erf
from tests.ops.oracles_matrix import MATRIX
from tests.ops.oracles_primitive import PRIMITIVE

ORACLES: dict[str, Callable[..., Any]] = {}


def oracle(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the meaning of ops."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        ORACLES.update(dict.fromkeys(names, function))
        return function

    return add


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / y,
    "maximum": lambda x, y: np.where(x > y, x, y),
    "minimum": lambda x, y: np.where(x < y, x, y),
    "negate": lambda x: 0 - x,
    "exp": lambda x: math.e**x,
    "log": lambda x: np.log1p(x - 1),
    "sqrt": lambda x: x**0.5,
    "rsqrt": lambda x: x**-0.5,
    "sin": lambda x: ((np.exp(1j * x) - np.exp(-1j * x)) / 2j).real,
    "cos": lambda x: np.exp(1j * x).real,
    "tanh": lambda x: 1 - 2 / (np.exp(2 * x) + 1),
    "erf": erf,
    "abs": lambda x: np.where(x < 0, -x, x),
    "sign": lambda x: np.where(x > 0, 1, np.where(x < 0, -1, 0)).astype(x.dtype),
    "relu": lambda x: np.where(x > 0, x, 0).astype(x.dtype),
    "equal": lambda x, y: ~((x < y) | (x > y)),
    "not_equal": lambda x, y: (x < y) | (x > y),
    "less": lambda x, y: ~(x >= y),
    "less_equal": lambda x, y: ~(x > y),
    "greater": lambda x, y: ~(x <= y),
    "greater_equal": lambda x, y: ~(x < y),
    "logical_and": lambda x, y: x & y,
    "logical_or": lambda x, y: x | y,
    "logical_not": lambda x: ~x,
    "after": lambda x, dependency: x,
    "where": lambda c, x, y: np.choose(c, [y, x]),
    "stop_gradient": lambda x: x.copy(),
}


def _without_op(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda op, *arrays: function(*arrays)


ORACLES.update({name: _without_op(function) for name, function in _ELEMENTWISE.items()})


@oracle("constant")
def constant(op):
    return np.full((), op.value, op.dtype.numpy)


@oracle("cast")
def cast(op, x):
    return x.astype(op.dtype.numpy)


# ------------------------------------------------------------------ movement


@oracle("reshape")
def reshape(op, x):
    return np.array(list(x.flat), x.dtype).reshape(op.shape)


@oracle("transpose")
def transpose(op, x):
    return np.moveaxis(x, op.order, range(x.ndim))


@oracle("broadcast")
def broadcast(op, x):
    return np.zeros(op.shape, x.dtype) + x


@oracle("slice")
def slice_(op, x):
    for axis, bounds in enumerate(zip(op.start, op.stop, op.step, strict=True)):
        x = np.take(x, range(*bounds), axis)
    return x


@oracle("pad")
def pad(op, x):
    for axis, size in enumerate(x.shape):
        gaps = np.repeat(np.arange(1, size), op.between[axis])
        x = np.insert(x, gaps, 0, axis)
        width = [(op.before[i], op.after[i]) if i == axis else (0, 0) for i in range(x.ndim)]
        x = np.pad(x, width)
    return x


@oracle("concatenate")
def concatenate(op, *parts):
    rows = [row for part in parts for row in np.moveaxis(part, op.axis, 0)]
    return np.stack(rows, op.axis)


@oracle("einsum")
def einsum(op, x, y):
    return np.einsum(op.equation, x, y)


# ------------------------------------------------------------------ reductions


def _reduced(op, x, function):
    kept = [i for i in range(x.ndim) if i not in op.axes]
    rows = x.transpose(*kept, *op.axes).reshape([*(x.shape[i] for i in kept), -1])
    y = np.apply_along_axis(function, -1, rows)
    return np.expand_dims(y, op.axes) if op.keepdims else y


@oracle("sum")
def sum_(op, x):
    small = x.dtype.itemsize < 4 and x.dtype.kind in "bi"
    dtype = np.int32 if small else x.dtype
    return _reduced(op, x, lambda row: sum(row.tolist())).astype(dtype)


@oracle("max", "min")
def extreme(op, x):
    return _reduced(op, x, lambda row: np.sort(row)[-1 if op.name == "max" else 0])


@oracle("any")
def any_(op, x):
    return _reduced(op, x, lambda row: True in row.tolist())


@oracle("all")
def all_(op, x):
    return _reduced(op, x, lambda row: False not in row.tolist())


@oracle("argmax", "argmin")
def arg_extreme(op, x):
    choose = max if op.name == "argmax" else min
    found = np.apply_along_axis(lambda row: row.tolist().index(choose(row.tolist())), op.axis, x)
    return found.astype(np.int32)


# ------------------------------------------------------------------ positions


@oracle("take")
def take(op, table, ids):
    rows = np.array([table[int(i)] for i in ids.flat], table.dtype)
    return rows.reshape(ids.shape + table.shape[1:])


@oracle("scatter_add")
def scatter_add(op, ids, updates):
    total = np.zeros((op.rows, *updates.shape[ids.ndim :]), updates.dtype)
    np.add.at(total, ids, updates)
    return total


@oracle("one_hot")
def one_hot(op, ids):
    result = np.zeros((*ids.shape, op.classes), op.dtype.numpy)
    for at, i in np.ndenumerate(ids):
        if 0 <= i < op.classes:
            result[(*at, i)] = 1
    return result


@oracle("iota")
def iota(op):
    return np.indices(op.shape)[op.axis].astype(op.dtype.numpy)


@oracle("random_bits")
def random_bits(op, seed):
    count = math.prod(op.shape)
    words = [_threefry((int(seed), op.salt), (i >> 32, i & 0xFFFFFFFF))[0] for i in range(count)]
    return np.array([w >> (32 - op.width) for w in words], np.uint32).reshape(op.shape)


def _threefry(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    """Threefry-2x32-20 as in Random123, one round after the other."""
    rotations, mask = (13, 15, 26, 6, 17, 29, 16, 24), 0xFFFFFFFF
    keys = (*key, 0x1BD11BDA ^ key[0] ^ key[1])
    x, y = (counter[0] + keys[0]) & mask, (counter[1] + keys[1]) & mask
    for number in range(20):
        x = (x + y) & mask
        r = rotations[number % 8]
        y = (((y << r) | (y >> (32 - r))) & mask) ^ x
        if number % 4 == 3:
            turn = number // 4 + 1
            x = (x + keys[turn % 3]) & mask
            y = (y + keys[(turn + 1) % 3] + turn) & mask
    return x, y


ORACLES.update(FUSED)
ORACLES.update(PRIMITIVE)
ORACLES.update(MATRIX)


# ------------------------------------------------------------------ convolutions


def _places(op, size, window, out, steps):
    """Yield (position of the result, element of the window, position of the input)."""
    for t in np.ndindex(*out):
        for k in np.ndindex(*window):
            at = [
                p * stride + i * step - before
                for p, i, stride, step, (before, _) in zip(
                    t, k, op.stride, steps, op.padding, strict=True
                )
            ]
            if all(0 <= i < n for i, n in zip(at, size, strict=True)):
                yield (*ALL, *t), (*ALL, *k), (*ALL, *at)


ALL = (slice(None), slice(None))


def _out(op, size, extents):
    return [
        (n + sum(pad) - extent) // stride + 1
        for n, pad, extent, stride in zip(size, op.padding, extents, op.stride, strict=True)
    ]


def _dense(op, w: np.ndarray) -> np.ndarray:
    """The weight of a grouped convolution, with zeros between channels of different groups."""
    out, per_group = w.shape[:2]
    dense = np.zeros((out, per_group * op.groups, *w.shape[2:]))
    for o in range(out):
        group = o // (out // op.groups)
        dense[o, group * per_group : (group + 1) * per_group] = w[o]
    return dense


def _sparse(op, dense: np.ndarray) -> np.ndarray:
    """The part of a dense weight that a grouped convolution has."""
    out, per_group = dense.shape[0], dense.shape[1] // op.groups
    starts = [o // (out // op.groups) * per_group for o in range(out)]
    return np.stack([dense[o, start : start + per_group] for o, start in enumerate(starts)])


@oracle("convolution")
def convolution(op, x, w):
    dense = _dense(op, w)
    extents = [d * (k - 1) + 1 for d, k in zip(op.dilation, w.shape[2:], strict=True)]
    out = _out(op, x.shape[2:], extents)
    y = np.zeros((x.shape[0], w.shape[0], *out))
    for t, k, at in _places(op, x.shape[2:], w.shape[2:], out, op.dilation):
        y[t] += x[at] @ dense[k].T
    return y


@oracle("convolution_input_gradient")
def convolution_input_gradient(op, dy, w):
    dense = _dense(op, w)
    dx = np.zeros((dy.shape[0], dense.shape[1], *op.size))
    for t, k, at in _places(op, op.size, w.shape[2:], dy.shape[2:], op.dilation):
        dx[at] += dy[t] @ dense[k]
    return dx


@oracle("convolution_weight_gradient")
def convolution_weight_gradient(op, x, dy):
    dense = np.zeros((dy.shape[1], x.shape[1], *op.size))
    for t, k, at in _places(op, x.shape[2:], op.size, dy.shape[2:], op.dilation):
        dense[k] += dy[t].T @ x[at]
    return _sparse(op, dense)


@oracle("max_pool")
def max_pool(op, x):
    out = _out(op, x.shape[2:], op.window)
    lowest = -math.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    y = np.full((*x.shape[:2], *out), lowest, x.dtype)
    for t, _, at in _places(op, x.shape[2:], op.window, out, [1] * len(out)):
        y[t] = np.where(x[at] > y[t], x[at], y[t])
    return y


@oracle("max_pool_gradient")
def max_pool_gradient(op, x, y, dy):
    best, winner = np.full(y.shape, -math.inf), np.empty(y.shape, object)
    for t, _, at in _places(op, x.shape[2:], op.window, y.shape[2:], [1] * len(op.window)):
        for b, c in np.ndindex(*x.shape[:2]):
            if x[(b, c, *at[2:])] > best[(b, c, *t[2:])]:
                best[(b, c, *t[2:])] = x[(b, c, *at[2:])]
                winner[(b, c, *t[2:])] = (b, c, *at[2:])
    dx = np.zeros(x.shape)
    for place, given in np.ndenumerate(dy):
        dx[winner[place]] += given
    return dx
