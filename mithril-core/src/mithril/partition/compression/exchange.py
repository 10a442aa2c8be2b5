"""The forms in which a sum over devices is exchanged: cast to 16 bits, or blocks of 8-bit integers.

`fp16` divides by the number of devices before the cast, as PyTorch's `fp16_compress_hook` does, so
that a sum of numbers below the largest float16 does not overflow; the result is multiplied again.
`bf16` has the range of float32 and needs no division. One collective carries 16 bits, in which an
engine's library may add them up; a sum taken in float32 would need an all_to_all and an all_gather
of as many bytes.

`int8` needs sums in float32, because integers of 8 bits overflow. With q = round(x / s), s =
max|x| / 127 for each block, every device sends each other one the blocks of that one's part, adds
up what it gets, quantises the sum and gives it to all.

What a device loses of its term is the difference between that and what the others read of it. What
the second quantisation loses is lost by the device that has the sum, as in Tang et al.,
"DoubleSqueeze: Parallel Stochastic Gradient Descent with Double-pass Error-Compensated
Compression" (2019).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mithril.cost import Hardware
from mithril.cost.pairs import price_cause
from mithril.ir import Builder, Node, Tensor
from mithril.mesh import Mesh
from mithril.ops import Iota, cast, equal, matrix_transpose, max, qr, reshape, round, where
from mithril.ops.collective import (
    NARROW_FLOATS,
    AllGather,
    AllReduce,
    AllToAll,
    AxisIndex,
    Collective,
    ReduceScatter,
)
from mithril.ops.slicing import Pad
from mithril.options import GradientCompression
from mithril.types import DType, Shape

CASTS = {"fp16": DType.float16, "bf16": DType.bfloat16}
LARGEST = 127
"""The largest integer of a block."""
SCALE_BYTES = 4


class Summed(NamedTuple):
    """A sum over devices, and what this device lost of its term; None where nobody asks."""

    total: Tensor
    lost: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """One sum over devices that is taken otherwise.

    Args:
        builder: of the program.
        node: the collective that took it.
        axes: over which it is compressed.
        mesh: the devices.
        hardware: the profile that prices collectives.
        text: what is carried, for readers of the plan.
        keeps_error: whether somebody asks what is lost.
    """

    builder: Builder
    node: Node
    axes: tuple[str, ...]
    mesh: Mesh
    hardware: Hardware
    text: str = ""
    keeps_error: bool = False

    @property
    def group(self) -> int:
        """How many devices add up."""
        return self.mesh.product(self.axes)

    def issue(
        self, op: Collective, x: Tensor, text: str = "", plain: float = 0.0
    ) -> tuple[Tensor, ...]:
        """Append a collective with its cause."""
        cause = self.node.cause
        if cause is not None:
            nbytes = op.count_bytes([x.type])
            priced = price_cause(cause, op, nbytes, self.mesh, self.hardware)
            cause = replace(priced, compressed=text, plain_bytes=plain)
        with self.builder.at(cause=cause):
            return self.builder.apply(op, x)

    def count_plain(self, kind: type[Collective], x: Tensor) -> float:
        """Return the bytes that a device sends if x travels as it is."""
        return kind.traffic(x.type.nbytes, self.group).bytes

    def loses(self, x: Tensor) -> bool:
        """Return whether anything is lost of a term."""
        del x
        return True


@dataclass(frozen=True, slots=True)
class CastExchange(Exchange):
    """Sums of 16-bit floats."""

    dtype: DType = DType.float16

    def loses(self, x: Tensor) -> bool:
        """Return whether anything is lost of a term: nothing where it has 16 bits already."""
        return x.dtype not in NARROW_FLOATS

    def add(self, x: Tensor) -> Summed:
        """Return the sum of x over the group."""
        return self._exchange(x, AllReduce(self.axes, "sum"))

    def scatter(self, x: Tensor, dimension: int) -> Summed:
        """Return the own part, along a dimension, of the sum of x over the group."""
        return self._exchange(x, ReduceScatter(self.axes, "sum", dimension, self.group))

    def _exchange(self, x: Tensor, op: AllReduce | ReduceScatter) -> Summed:
        given, count = x.dtype, self.group
        plain = self.count_plain(type(op), x)
        if not self.loses(x):  # it travels as it is
            return Summed(self.issue(op, x, self.text, plain)[0])
        divides = self.dtype == DType.float16
        with self.builder.at():
            small = cast(x * (1.0 / count) if divides else x, self.dtype)
            lost = x - self._widen(small, given) if self.keeps_error else None
        (total,) = self.issue(op, small, self.text, plain)
        with self.builder.at():
            return Summed(self._widen(total, given), lost)

    def _widen(self, small: Any, dtype: DType) -> Any:
        wide = cast(small, dtype)
        return wide * float(self.group) if self.dtype == DType.float16 else wide


@dataclass(frozen=True, slots=True)
class BlockExchange(Exchange):
    """Sums in float32 of blocks of 8-bit integers."""

    block: int = 1

    def add(self, x: Tensor) -> Summed:
        """Return the sum of x over the group."""
        plain = self.count_plain(AllReduce, x)
        with self.builder.at():
            flat = _pad(reshape(x, (x.size,)), self.group)
            parts = self._cut(flat, 0)
        total, lost = self._add_parts(parts, plain)
        with self.builder.at():
            blocks, scales = self._quantise(total)
            if lost is not None:
                lost = self._add_to_own(lost, total - self._restore(blocks, scales))
        gather = AllGather(self.axes, 0, self.group)
        (blocks,) = self.issue(gather, blocks, self.text)
        (scales,) = self.issue(gather, scales, self.text)

        def give_form(parts: Any) -> Any:
            joined = self._join(reshape(parts, (self.group, -1)), flat.shape, 0)
            return cast(reshape(joined[: x.size], x.shape), x.dtype)

        with self.builder.at():
            whole = give_form(self._restore(blocks, scales))
            return Summed(whole, None if lost is None else give_form(lost))

    def scatter(self, x: Tensor, dimension: int) -> Summed:
        """Return the own part, along a dimension, of the sum of x over the group."""
        plain = self.count_plain(ReduceScatter, x)
        shape = list(x.shape)
        shape[dimension] //= self.group
        with self.builder.at():
            parts = self._cut(x, dimension)
        total, lost = self._add_parts(parts, plain)
        with self.builder.at():
            flat = reshape(total, (-1,))[: math.prod(shape)]
            part: Tensor = cast(reshape(flat, shape), x.dtype)
            if lost is None:
                return Summed(part)
            return Summed(part, self._join(reshape(lost, (self.group, -1)), x.shape, dimension))

    def _cut(self, x: Tensor, dimension: int) -> Tensor:
        """Return x as (device, blocks of its part, elements of a block), in float32."""
        before, size, after = x.shape[:dimension], x.shape[dimension], x.shape[dimension + 1 :]
        cut: Any = reshape(x, (*before, self.group, size // self.group, *after))
        order = (dimension, *(d for d in range(cut.ndim) if d != dimension))
        flat = reshape(cut.transpose(order), (self.group, x.size // self.group))
        missing = -flat.shape[1] % self.block
        if missing:
            (flat,) = self.builder.apply(Pad((0, 0), (0, missing), (0, 0)), flat)
        blocks: Tensor = cast(reshape(flat, (self.group, -1, self.block)), DType.float32)
        return blocks

    def _join(self, parts: Any, shape: Shape, dimension: int) -> Any:
        """Return what `_cut` cuts: of (device, elements) with padding a tensor of a shape."""
        size = math.prod(shape) // self.group
        before, after = shape[:dimension], shape[dimension + 1 :]
        cut = (self.group, *before, shape[dimension] // self.group, *after)
        order = (*range(1, dimension + 1), 0, *range(dimension + 1, len(cut)))
        return reshape(reshape(parts[:, :size], cut).transpose(order), shape)

    def _add_parts(self, parts: Tensor, plain: float) -> Summed:
        """Return the sum of the own parts of all devices: (blocks, elements of a block)."""
        with self.builder.at():
            blocks, scales = self._quantise(parts)
            lost = parts - self._restore(blocks, scales) if self.keeps_error else None
        swap = AllToAll(self.axes, 0, 0, self.group)
        (blocks,) = self.issue(swap, blocks, self.text, plain)
        (scales,) = self.issue(swap, scales, self.text)
        with self.builder.at():
            total: Tensor = self._restore(blocks, scales).sum(axis=0)
            return Summed(total, lost)

    def _add_to_own(self, parts: Any, more: Any) -> Any:
        """Return (device, blocks, elements of a block) with more in the part of this device."""
        (index,) = self.builder.apply(AxisIndex(self.axes))
        (numbers,) = self.builder.apply(Iota((self.group, 1, 1), 0, DType.int32))
        return parts + where(equal(numbers, index), reshape(more, (1, *more.shape)), 0.0)

    def _quantise(self, x: Any) -> tuple[Any, Any]:
        """Return integers, and the scale of each block; what is not finite makes that NaN."""
        scale = max(abs(x), axis=-1, keepdims=True) / float(LARGEST)
        is_usable = (scale > 0.0) & (scale < math.inf)
        ratio = where(is_usable, x / where(is_usable, scale, 1.0), 0.0)
        marked = where(scale < math.inf, scale, math.nan)
        return cast(round(ratio), DType.int8), marked

    def _restore(self, blocks: Any, scales: Any) -> Any:
        return cast(blocks, DType.float32) * scales


@dataclass(frozen=True, slots=True)
class LowRankExchange(Exchange):
    """Sums of matrices as products of two thin factors, by one step of power iteration.

    With M_i the term of device i, of n rows and m columns, and Q the factor of the step before
    (Vogels et al., 2019, algorithm 1; the hook of PyTorch orthonormalises Q, too):

        P = orthonormalised sum of M_i orthonormalised(Q),  Q = sum of M_i^T P,  the sum is P Q^T

    A column of Q that is zero, as all are of a gradient of zeros, would stay so for ever; the one
    before is kept instead.
    """

    rank: int = 1
    stacked: int = 0

    def shape(self, x: Tensor) -> tuple[int, int, int]:
        """Return how many matrices a gradient holds, their rows and columns."""
        return count_matrices(x.shape, self.stacked)

    def add_with(self, x: Tensor, factor: Tensor) -> tuple[Summed, Tensor]:
        """Return the sum of x over the group, and the factor of the next step.

        Args:
            x: float32.
            factor: of this device, (1, matrices, columns, rank).
        """
        plain = self.count_plain(AllReduce, x)
        with self.builder.at():
            terms: Any = reshape(x, (1, *self.shape(x)))
            basis: Any = qr(factor)[0]
            product = terms @ basis
        (left,) = self.issue(AllReduce(self.axes, "sum"), product, self.text, plain)
        with self.builder.at():
            left = qr(left)[0]
            product = matrix_transpose(terms) @ left
        (right,) = self.issue(AllReduce(self.axes, "sum"), product, self.text)
        with self.builder.at():
            total: Any = reshape(left @ matrix_transpose(right), x.shape)
            lost = x - total * (1.0 / self.group) if self.keeps_error else None
            is_alive = max(abs(right), axis=-2, keepdims=True) > 0.0
            return Summed(total, lost), where(is_alive, right, basis)


def count_matrices(shape: Shape, stacked: int) -> tuple[int, int, int]:
    """Return how many matrices a gradient is, their rows and columns.

    The first dimension that does not stack layers has the rows, as PyTorch's hook has it.

    >>> count_matrices((3, 8, 4, 2), 1)
    (3, 8, 8)
    """
    rows = shape[stacked] if len(shape) > stacked else 1
    return math.prod(shape[:stacked]), rows, math.prod(shape[stacked + 1 :])


QuantisedExchange = CastExchange | BlockExchange
AnyExchange = QuantisedExchange | LowRankExchange


def choose_exchange(
    sum: Exchange, form: GradientCompression, x: Tensor, stacked: int = 0
) -> AnyExchange | None:
    """Return how a sum is exchanged; None where it stays as it is.

    Args:
        sum: what is summed.
        form: what is asked for.
        x: the operand.
        stacked: how many leading dimensions of it only stack layers.
    """
    if not sum.axes or sum.group == 1 or not x.dtype.is_float:
        return None
    about = sum.builder, sum.node, sum.axes, sum.mesh, sum.hardware
    if form.form in CASTS:
        return CastExchange(*about, form.form, form.keeps_error, CASTS[form.form])
    if form.rank is not None:
        count, rows, columns = count_matrices(x.shape, stacked)
        travels = count * (rows + columns) * form.rank * DType.float32.itemsize
        if travels >= x.type.nbytes:
            return None
        text = f"powersgd of rank {form.rank}"
        return LowRankExchange(*about, text, form.keeps_error, form.rank, stacked)
    assert form.block is not None, "blocks have a size"
    blocks = math.ceil(math.ceil(x.size / sum.group) / form.block)
    travels = sum.group * blocks * (form.block + SCALE_BYTES)
    if travels >= x.type.nbytes:
        return None  # padding and scales are more than what is saved
    text = f"int8 in blocks of {form.block}"
    return BlockExchange(*about, text, form.keeps_error, form.block)


def _pad(flat: Any, count: int) -> Any:
    missing = -flat.shape[0] % count
    return flat.builder.apply(Pad((0,), (missing,), (0,)), flat)[0] if missing else flat
