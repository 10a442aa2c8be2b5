"""Convolution of images [batch, *spatial, channels] and its gradients, as MLX lays them out.

MLX's own convolutions are products of matrices on CPU for one group and no dilation, and slow loops
otherwise; their gradients are such loops for any step above 1. Here columns are made and multiplied
where MLX would loop, or multiply in the slower way of its library, and the gradient of an input is
made of convolutions with step 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import mlx.core as mx
from mithril.spi import DType, Shape
from mithril.spi.ops import Convolving, Padding

from mithril_mlx.blas import keep_transposed, prefers_rows
from mithril_mlx.kernels.precision import on_gpu
from mithril_mlx.kernels.taps import shift

Product = Callable[[mx.array, mx.array], mx.array]


@dataclass(frozen=True)
class Geometry:
    """What a convolution does along the spatial dimensions.

    Args:
        size: spatial sizes of the input.
        window: those of the weight.
        out: those of the result.
    """

    size: Shape
    window: Shape
    out: Shape
    stride: Shape
    padding: Padding
    dilation: Shape
    groups: int
    dtype: DType

    @property
    def rank(self) -> int:
        """How many spatial dimensions there are."""
        return len(self.size)

    def forward(self) -> Product:
        """Return the function (x, w) -> y; w is [out, *window, in / groups]."""
        if not self._is_native():
            return self._multiply()
        padding = ([before for before, _ in self.padding], [after for _, after in self.padding])
        stride, dilation, groups = self.stride, self.dilation, self.groups
        return lambda x, w: mx.conv_general(x, w, stride, padding, dilation, 1, groups)

    def _is_native(self) -> bool:
        """Whether MLX's convolution is a product of matrices, or a kernel of the GPU.

        It computes float64 in float32.
        """
        if on_gpu():
            return self.rank <= 2 + (self.groups == 1)
        is_plain = self.groups == 1 and max(self.dilation) == 1 and not prefers_rows()
        return is_plain and self.rank <= 3 and self.dtype != DType.float64

    def _multiply(self) -> Product:
        groups, columns, out = self.groups, self._columns, self.out
        keep = keep_transposed(math.prod(out))

        def run(x: mx.array, w: mx.array) -> mx.array:
            weight = w.reshape(groups, w.shape[0] // groups, -1).swapaxes(1, 2)
            y = columns(x) @ keep(weight)  # [groups, positions, out / groups]
            return y.swapaxes(0, 1).reshape(x.shape[0], *out, w.shape[0])

        return run

    def weight_gradient(self) -> Product:
        """Return the function (x, dy) -> dw: the gradient times the columns, over all positions."""
        groups, columns, window = self.groups, self._columns, self.window

        def run(x: mx.array, dy: mx.array) -> mx.array:
            out = dy.shape[-1]
            dy = dy.reshape(-1, groups, out // groups).transpose(1, 2, 0)
            return (dy @ columns(x)).reshape(out, *window, x.shape[-1] // groups)

        return run

    def _columns(self, x: mx.array) -> mx.array:
        """Return what each position sees, [groups, positions, window x channels / groups]."""
        for axis, (before, after) in enumerate(self.padding, 1):
            x = shift(x, axis, before, after)
        batch, *size, channels = x.shape
        steps = [channels * math.prod(size[i + 1 :]) for i in range(self.rank)]
        some = channels // self.groups
        shape = (self.groups, batch, *self.out, *self.window, some)
        down = [step * n for step, n in zip(steps, self.stride, strict=True)]
        across = [step * n for step, n in zip(steps, self.dilation, strict=True)]
        strides = (some, channels * math.prod(size), *down, *across, 1)
        positions, width = batch * math.prod(self.out), math.prod(self.window) * some
        x = mx.contiguous(x)
        return mx.as_strided(x, shape, strides).reshape(self.groups, positions, width)

    def input_gradient(self) -> Product:
        """Return the function (dy, w) -> dx."""
        if max(self.stride) == 1:
            return self._full()
        if max(self.dilation) > 1:
            return self._without_dilation()
        return self._by_phases()

    def _full(self) -> Product:
        """With step 1: the convolution of dy, padded, with the weight turned round."""
        reach = [d * (k - 1) for d, k in zip(self.dilation, self.window, strict=True)]
        before = [n - first for n, (first, _) in zip(reach, self.padding, strict=True)]
        after = [
            size + n - first - out
            for size, n, first, out in zip(self.size, reach, before, self.out, strict=True)
        ]
        pads = tuple(zip(before, after, strict=True))
        inner = tuple((max(0, first), max(0, last)) for first, last in pads)
        back = replace(self, size=self.out, out=self.size, padding=inner)
        run, groups, rank = back.forward(), self.groups, self.rank

        def full(dy: mx.array, w: mx.array) -> mx.array:
            for axis, (first, last) in enumerate(pads, 1):
                dy = shift(dy, axis, min(0, first), min(0, last))
            return run(dy, _flip_kernel(w, groups, rank))

        return full

    def _without_dilation(self) -> Product:
        """The same with a weight that has zeros between its elements."""
        window = tuple(d * (k - 1) + 1 for d, k in zip(self.dilation, self.window, strict=True))
        run = replace(self, window=window, dilation=(1,) * self.rank).input_gradient()
        every = (slice(None), *(slice(None, None, d) for d in self.dilation))

        def spread(dy: mx.array, w: mx.array) -> mx.array:
            wide = mx.zeros((w.shape[0], *window, w.shape[-1]), dtype=w.dtype)
            wide[every] = w
            return run(dy, wide)

        return spread

    def _by_phases(self) -> Product:
        """With larger steps: elements equal modulo the step see every so manieth weight only."""
        rank, rows = self.rank, self._rows()
        phases = [self._phase(first) for first in itertools.product(*map(range, self.stride))]
        order = [axis for i in range(rank) for axis in (rank + 1 + i, i)]
        whole = [n * step for n, step in zip(rows, self.stride, strict=True)]

        def run(dy: mx.array, w: mx.array) -> mx.array:
            batch, channels = dy.shape[0], w.shape[-1] * self.groups
            empty = mx.zeros((batch, *rows, channels), dtype=dy.dtype)
            found = mx.stack([empty if f is None else f(dy, w) for f in phases])
            found = found.reshape(*self.stride, batch, *rows, channels)
            dx = found.transpose(rank, *order, 2 * rank + 1).reshape(batch, *whole, channels)
            for axis, ((before, _), size) in enumerate(
                zip(self.padding, self.size, strict=True), 1
            ):
                dx = shift(dx, axis, -before, before + size - dx.shape[axis])
            return dx

        return run

    def _rows(self) -> Shape:
        """Return how many elements of each phase there are, from that at `-before` on."""
        return tuple(
            -(-(before + size) // step)
            for (before, _), size, step in zip(self.padding, self.size, self.stride, strict=True)
        )

    def _phase(self, first: Shape) -> Product | None:
        """Return the gradient of every so manieth element; None where no weight meets it."""
        steps = tuple(slice(r, None, step) for r, step in zip(first, self.stride, strict=True))
        window = tuple(len(range(k)[at]) for k, at in zip(self.window, steps, strict=True))
        if not all(window):
            return None
        ones, none = (1,) * self.rank, ((0, 0),) * self.rank
        run = replace(self, size=self._rows(), window=window, stride=ones, padding=none)._full()
        return lambda dy, w: run(dy, w[(slice(None), *steps)])


def geometry(op: Convolving, sizes: tuple[Shape, Shape, Shape], dtype: DType) -> Geometry:
    """Return what an op of the core does along the spatial dimensions.

    Args:
        op: any of the three ops of a convolution.
        sizes: spatial sizes of the input, the weight and the result.
        dtype: what it computes in.
    """
    return Geometry(*sizes, op.stride, op.padding, op.dilation, op.groups, dtype)


def _flip_kernel(w: mx.array, groups: int, rank: int) -> mx.array:
    """Return the weight with in and out exchanged in each group, back to front."""
    out, *window, some = w.shape
    w = w[(slice(None), *(slice(None, None, -1) for _ in range(rank)))]
    if groups == 1:
        return w.swapaxes(0, -1)
    w = w.reshape(groups, out // groups, *window, some).swapaxes(1, -1)
    return w.reshape(groups * some, *window, out // groups)
