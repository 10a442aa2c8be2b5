"""What the fused ops mean, in plain NumPy: rows of `oracles.ORACLES`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.ops.rope_formulas import speeds_of

FUSED: dict[str, Callable[..., Any]] = {}
erf = np.vectorize(math.erf, otypes=[np.float64])


def oracle(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function as the meaning of the op of its name."""
    FUSED[function.__name__] = function
    return function


def _softmax(x: np.ndarray, axis: int) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)


@oracle
def softmax(op, x):
    return _softmax(x, op.axis)


@oracle
def log_softmax(op, x):
    return np.log(_softmax(x, op.axis))


@oracle
def softmax_gradient(op, y, g):
    """The Jacobian diag(y) - y y^T of every row times the cotangent."""
    rows, given = np.moveaxis(y, op.axis, -1), np.moveaxis(g, op.axis, -1)
    result = np.empty_like(rows)
    for at in np.ndindex(rows.shape[:-1]):
        row = rows[at]
        result[at] = (np.diag(row) - np.outer(row, row)) @ given[at]
    return np.moveaxis(result, -1, op.axis)


# ------------------------------------------------------------------ activations


def _normal(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + erf(x / math.sqrt(2)))


def _tanh_gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@oracle
def gelu(op, x):
    return _tanh_gelu(x) if op.approximate else x * _normal(x)


@oracle
def gelu_gradient(op, x, g):
    """Through a complex step, or the density for the exact form."""
    if op.approximate:
        return g * (_tanh_gelu(x + 1e-20j).imag / 1e-20)
    return g * (_normal(x) + x * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi))


@oracle
def silu(op, x):
    return x * np.exp(x) / (np.exp(x) + 1)


@oracle
def silu_gradient(op, x, g):
    """Through a complex step."""
    return g * (silu(op, x + 1e-20j).imag / 1e-20)


# ------------------------------------------------------------------ normalisation


@oracle
def layer_norm(op, x, gain, bias):
    average = x.mean(-1)
    scale = 1 / np.sqrt(x.var(-1) + op.epsilon)
    return (x - average[..., None]) * scale[..., None] * gain + bias, average, scale


@oracle
def layer_norm_gradient(op, x, gain, average, scale, g):
    """The Jacobian of every row, one column of it per element."""
    n = x.shape[-1]
    normal = (x - average[..., None]) * scale[..., None]
    dx = np.empty_like(x)
    for at in np.ndindex(x.shape[:-1]):
        row = normal[at]
        jacobian = scale[at] * (np.eye(n) - 1 / n - np.outer(row, row) / n)
        dx[at] = jacobian @ (g[at] * gain)
    flat = (-1, n)
    return dx, (g * normal).reshape(flat).sum(0), g.reshape(flat).sum(0)


@oracle
def channel_moments(op, x):
    rows = [x[:, c].ravel() for c in range(x.shape[1])]
    return np.array([r.mean() for r in rows]), np.array([r.var() for r in rows])


@oracle
def normalize_channels(op, x, gain, bias, average, variance):
    y = np.empty_like(x)
    for c in range(x.shape[1]):
        y[:, c] = (x[:, c] - average[c]) / np.sqrt(variance[c] + op.epsilon) * gain[c] + bias[c]
    return y


@oracle
def batch_norm(op, x, gain, bias):
    average, variance = channel_moments(op, x)
    y = normalize_channels(op, x, gain, bias, average, variance)
    return y, average, variance, 1 / np.sqrt(variance + op.epsilon)


@oracle
def channel_sums(op, x, average, g):
    sums = [(g[:, c].sum(), np.vdot(g[:, c], x[:, c] - average[c])) for c in range(x.shape[1])]
    return np.array(sums).T


@oracle
def batch_norm_gradient(op, x, gain, average, scale, g):
    """The rows of layer_norm_gradient are the channels here, and gain is a number of each."""
    channels = range(x.shape[1])
    rows = [np.moveaxis(a, 1, 0).reshape(len(channels), -1) for a in (x, g)]
    dx, _, _ = layer_norm_gradient(op, rows[0], np.ones(rows[0].shape[1]), average, scale, rows[1])
    moved = np.moveaxis((dx * gain[:, None]).reshape(np.moveaxis(x, 1, 0).shape), 0, 1)
    total, along = channel_sums(op, x, average, g)
    return moved, along * scale, total


@oracle
def channel_gradient(op, x, gain, average, scale, g, sums):
    share = (sums / op.count).T
    dx = np.empty_like(x)
    for c in range(x.shape[1]):
        away = (x[:, c] - average[c]) * scale[c] ** 2
        dx[:, c] = (g[:, c] - share[c, 0] - away * share[c, 1]) * gain[c] * scale[c]
    return dx


@oracle
def group_norm(op, x, *rows):
    """The rows of layer_norm are groups of a sample here."""
    apart = x.reshape(x.shape[0], op.groups, -1)
    one = np.ones(apart.shape[-1])
    y, average, scale = layer_norm(op, apart, one, 0 * one)
    y = np.moveaxis(y.reshape(x.shape), 1, -1)
    gain, bias = rows or (1, 0)
    return np.moveaxis(y * gain + bias, -1, 1), average, scale


@oracle
def group_norm_gradient(op, x, average, scale, g, *gains):
    groups = (x.shape[0], op.groups, -1)
    inner = np.moveaxis(np.moveaxis(g, 1, -1) * gains[0], -1, 1) if gains else g
    apart = x.reshape(groups)
    one = np.ones(apart.shape[-1])
    dx, _, _ = layer_norm_gradient(op, apart, one, average, scale, inner.reshape(groups))
    if not gains:
        return dx.reshape(x.shape)
    normal = ((apart - average[..., None]) * scale[..., None]).reshape(x.shape)
    pairs = [(np.vdot(g[:, c], normal[:, c]), g[:, c].sum()) for c in range(x.shape[1])]
    return dx.reshape(x.shape), *np.array(pairs).T


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


@oracle
def lstm(op, x, input_weight, weight, hidden, cell, *biases):
    """Sample by sample, and gate by gate."""
    made = np.empty((*x.shape[:2], hidden.shape[1]))
    hidden, cell = hidden.copy(), cell.copy()
    for t in range(len(x))[:: -1 if op.reverse else 1]:
        for b in range(x.shape[1]):
            i, f, g, o = (
                input_weight[n] @ x[t, b] + weight[n] @ hidden[b] + sum(bias[n] for bias in biases)
                for n in range(4)
            )
            cell[b] = _sigmoid(f) * cell[b] + _sigmoid(i) * np.tanh(g)
            made[t, b] = hidden[b] = _sigmoid(o) * np.tanh(cell[b])
    return made, hidden, cell


@oracle
def lstm_gradient(op, x, input_weight, weight, hidden, cell, y, dy, dhidden, dcell, *biases):
    """By central differences of the forward over four points, whose error is of the fourth order.

    So the step may be large, and few digits cancel.
    """
    operands = [x, input_weight, weight, hidden, cell, *biases]
    cotangents = [np.asarray(g, np.float64) for g in (dy, dhidden, dcell)]

    def weigh(operand, at, value):
        held, operand[at] = operand[at], value
        total = sum(np.vdot(g, made) for g, made in zip(cotangents, lstm(op, *wide), strict=True))
        operand[at] = held
        return total

    wide, found, step = [np.array(one, np.float64) for one in operands], [], 1e-3
    for operand in wide[:6]:
        slopes = np.empty(operand.shape)
        for at in np.ndindex(operand.shape):
            near, far = (
                weigh(operand, at, operand[at] + h) - weigh(operand, at, operand[at] - h)
                for h in (step, 2 * step)
            )
            slopes[at] = (8 * near - far) / (12 * step)
        found.append(slopes)
    return tuple(found)


@oracle
def rms_norm(op, x, gain):
    root = np.sqrt(np.array([np.dot(r, r) for r in x.reshape(-1, x.shape[-1])]) / x.shape[-1])
    scale = (root**2 + op.epsilon).reshape(x.shape[:-1]) ** -0.5
    return gain * (x * np.expand_dims(scale, -1)), scale


@oracle
def rms_norm_gradient(op, x, gain, scale, g):
    """The Jacobian of every row, one column of it per element."""
    n = x.shape[-1]
    dx, dgain = np.empty_like(x), np.zeros(n)
    for at in np.ndindex(x.shape[:-1]):
        normal = x[at] * scale[at]
        jacobian = scale[at] * (np.eye(n) - np.outer(normal, normal) / n)
        dx[at] = jacobian @ (g[at] * gain)
        dgain += g[at] * normal
    return dx, dgain


# ------------------------------------------------------------------ cross-entropy


@oracle
def cross_entropy(op, logits, targets):
    loss = np.empty(targets.shape)
    for at, target in np.ndenumerate(targets):
        loss[at] = -math.log(_softmax(logits[at], 0)[target])
    return loss, np.log(np.exp(logits).sum(-1))


@oracle
def cross_entropy_gradient(op, logits, targets, total, g):
    slope = _softmax(logits, -1)
    for at, target in np.ndenumerate(targets):
        slope[(*at, target)] -= 1
    return slope * g[..., None]


# ------------------------------------------------------------------ attention


def _heads(op, q, k, v, masks):
    """Yield per batch entry and head of q: its place, that of its keys, weights, normaliser."""
    (b, s, h, _), (_, t, groups, _) = q.shape, k.shape
    mask = np.broadcast_to(masks[0] if masks else True, (b, h, s, t))
    for n, m in itertools.product(range(b), range(h)):
        at, keys = (n, slice(None), m), (n, slice(None), m * groups // h)
        weights = np.exp(op.scale * q[at] @ k[keys].T + (mask[n, m] if mask.dtype != bool else 0))
        for i, j in itertools.product(range(s), range(t)):
            hidden = mask.dtype == bool and not mask[n, m, i, j]
            if hidden or (op.causal and j > i + t - s):
                weights[i, j] = 0
        total = weights.sum(-1)
        yield at, keys, weights / np.where(total > 0, total, 1)[:, None], total


@oracle
def attention(op, q, k, v, *masks):
    b, s, h, _ = q.shape
    out, statistic = np.empty((b, s, h, v.shape[3])), np.empty((b, h, s))
    for at, keys, weights, total in _heads(op, q, k, v, masks):
        out[at] = weights @ v[keys]
        statistic[at[0], at[2]] = np.log(np.where(total > 0, total, 1))
    return out, statistic


@oracle
def attention_gradient(op, q, k, v, out, total, g, *masks):
    dq, dk, dv = np.empty_like(q), np.zeros_like(k), np.zeros_like(v)
    for at, keys, weights, _ in _heads(op, q, k, v, masks):
        dv[keys] += weights.T @ g[at]
        through = g[at] @ v[keys].T
        scores = np.stack(
            [(np.diag(w) - np.outer(w, w)) @ t for w, t in zip(weights, through, strict=True)]
        )
        dq[at] = op.scale * scores @ k[keys]
        dk[keys] += op.scale * scores.T @ q[at]
    return dq, dk, dv


# ------------------------------------------------------------------ optimisers


@oracle
def adamw_step(op, p, g, m, v, rate, count):
    """Kingma and Ba (2015), algorithm 1, with the decay of Loshchilov and Hutter (2019)."""
    m = op.b1 * m + (1 - op.b1) * g
    v = op.b2 * v + (1 - op.b2) * g**2
    step = m / (1 - op.b1**count) / (np.sqrt(v / (1 - op.b2**count)) + op.eps)
    return p - rate * (step + op.weight_decay * p), m, v


# ------------------------------------------------------------------ positions


@oracle
def rope(op, x, positions=0):
    """A rotation of the complex plane for every pair."""
    b, s, h, d = x.shape
    at = np.broadcast_to(np.arange(s) + positions if np.ndim(positions) == 0 else positions, (b, s))
    y, speeds = np.empty_like(x), speeds_of(op.base, d, op.scaling)
    for n, p, m, i in np.ndindex(b, s, h, d // 2):
        pair = [2 * i, 2 * i + 1] if op.interleaved else [i, i + d // 2]
        angle = (at[n, p] + op.offset) * speeds[i]
        number = complex(*x[n, p, m, pair]) * np.exp((-1j if op.inverse else 1j) * angle)
        y[n, p, m, pair] = number.real, number.imag
    return y
