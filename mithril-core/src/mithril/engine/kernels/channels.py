"""Kernels of batch_norm, its pieces, and group_norm; temporaries are reused in place."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from mithril import ops
from mithril.engine.kernels.precision import accumulator
from mithril.engine.kernels.registry import Run, Types, kernel


@kernel(ops.ChannelMoments)
def channel_moments(op: ops.ChannelMoments, types: Types, xp: ModuleType) -> Run:
    """Two passes: mean, then variance of what is centred."""
    of = _Channels(types, xp)
    return lambda x: of.center(of.widen(x))[1:]


@kernel(ops.BatchNorm)
def batch_norm(op: ops.BatchNorm, types: Types, xp: ModuleType) -> Run:
    """The moments, then all in place of what is centred."""
    of, epsilon = _Channels(types, xp), op.epsilon

    def run(x: Any, gain: Any, bias: Any) -> Any:
        away, average, variance = of.center(of.widen(x))
        scale = 1 / xp.sqrt(variance + epsilon)
        away *= of.column(scale * gain)
        away += of.column(bias)
        return xp.asarray(away, dtype=of.dtype), average, variance, scale

    return run


@kernel(ops.NormalizeChannels)
def normalize_channels(op: ops.NormalizeChannels, types: Types, xp: ModuleType) -> Run:
    """The definition."""
    of, epsilon = _Channels(types, xp), op.epsilon

    def run(x: Any, gain: Any, bias: Any, average: Any, variance: Any) -> Any:
        away = of.widen(x) - of.column(average)
        away *= of.column(gain / xp.sqrt(variance + epsilon))
        away += of.column(bias)
        return xp.asarray(away, dtype=of.dtype)

    return run


@kernel(ops.ChannelSums)
def channel_sums(op: ops.ChannelSums, types: Types, xp: ModuleType) -> Run:
    """The definition."""
    of = _Channels(types, xp)

    def run(x: Any, average: Any, g: Any) -> Any:
        return xp.stack(of.sums(of.widen(x) - of.column(average), of.widen(g)))

    return run


@kernel(ops.ChannelGradient)
def channel_gradient(op: ops.ChannelGradient, types: Types, xp: ModuleType) -> Run:
    """The closed form."""
    of, count = _Channels(types, xp), op.count

    def run(x: Any, gain: Any, average: Any, scale: Any, g: Any, sums: Any) -> Any:
        away = of.widen(x) - of.column(average)
        return of.slope(away, of.widen(g), gain, scale, sums, count)

    return run


@kernel(ops.BatchNormGradient)
def batch_norm_gradient(op: ops.BatchNormGradient, types: Types, xp: ModuleType) -> Run:
    """The sums, then the closed form."""
    of = _Channels(types, xp)
    count = types[0].size // max(1, types[0].shape[1])

    def run(x: Any, gain: Any, average: Any, scale: Any, g: Any) -> Any:
        away, g = of.widen(x) - of.column(average), of.widen(g)
        total, along = of.sums(away, g)
        dx = of.slope(away, g, gain, scale, (total, along), count)
        rows = (xp.asarray(row, dtype=of.dtype) for row in (along * scale, total))
        return dx, *rows

    return run


@kernel(ops.GroupNorm)
def group_norm(op: ops.GroupNorm, types: Types, xp: ModuleType) -> Run:
    """Two passes over each group; scaled and shifted in place of what is centred."""
    of, epsilon, size = _Channels(types, xp), op.epsilon, _size_of_group(op, types)
    groups = (types[0].shape[0], op.groups, size)

    def run(x: Any, *rows: Any) -> Any:
        wide = of.widen(x).reshape(groups)
        average = wide.sum(-1) / size
        away = wide - average[..., None]
        scale = 1 / xp.sqrt((away * away).sum(-1) / size + epsilon)
        away *= scale[..., None]
        y = away.reshape(types[0].shape)
        if rows:
            gain, bias = rows
            y *= of.column(gain)
            y += of.column(bias)
        return xp.asarray(y, dtype=of.dtype), average, scale

    return run


@kernel(ops.GroupNormGradient)
def group_norm_gradient(op: ops.GroupNormGradient, types: Types, xp: ModuleType) -> Run:
    """The closed form."""
    of, size, shape = _Channels(types, xp), _size_of_group(op, types), types[0].shape
    groups = (shape[0], op.groups, size)

    def run(x: Any, average: Any, scale: Any, g: Any, *gains: Any) -> Any:
        normal = of.widen(x).reshape(groups) - average[..., None]
        normal *= scale[..., None]
        g = of.widen(g)
        rows = of.sums(normal.reshape(shape), g)[::-1] if gains else ()
        inner = (g * of.column(gains[0]) if gains else g).reshape(groups)
        dx = inner - inner.sum(-1)[..., None] / size
        normal *= (inner * normal).sum(-1)[..., None] / size
        dx -= normal
        dx *= scale[..., None]
        found = tuple(xp.asarray(t, dtype=of.dtype) for t in (dx.reshape(shape), *rows))
        return found if gains else found[0]

    return run


class _Channels:
    """What all kernels here do with tensors whose second dimension are channels.

    Args:
        types: of the operands; the first has channels.
        xp: the arrays' own namespace.
    """

    def __init__(self, types: Types, xp: ModuleType) -> None:
        x, self._xp = types[0], xp
        self._wide, self.dtype = accumulator(x.dtype), x.dtype.numpy
        self._over = (0, *range(2, x.rank))
        self._column = (-1, *(1 for _ in x.shape[2:]))
        self._count = max(1, x.size // max(1, x.shape[1]))

    def widen(self, x: Any) -> Any:
        """Return x as it is computed with."""
        return self._xp.asarray(x, dtype=self._wide)

    def column(self, row: Any) -> Any:
        """Return numbers of channels so that they meet the channels of a tensor."""
        return self.widen(row).reshape(self._column)

    def sums(self, away: Any, g: Any) -> tuple[Any, Any]:
        """Return of each channel the sum of g, and of g times another tensor."""
        return g.sum(self._over), (g * away).sum(self._over)

    def center(self, x: Any) -> tuple[Any, Any, Any]:
        """Return x less its means, these, and the variances, of each channel."""
        average = x.sum(self._over) / self._count
        away = x - self.column(average)
        return away, average, (away * away).sum(self._over) / self._count

    def slope(self, away: Any, g: Any, gain: Any, scale: Any, sums: Any, count: int) -> Any:
        """Return the gradient of x, written over what is centred."""
        away *= self.column(sums[1] * (scale * scale / -count))
        away += g
        away -= self.column(sums[0] / count)
        away *= self.column(scale * gain)
        return self._xp.asarray(away, dtype=self.dtype)


def _size_of_group(op: ops.GroupNorm | ops.GroupNormGradient, types: Types) -> int:
    return math.prod(types[0].shape[1:]) // op.groups
