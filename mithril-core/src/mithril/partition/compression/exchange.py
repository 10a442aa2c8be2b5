"""The forms in which a sum over devices is exchanged: cast to 16 bits, or blocks of 8-bit integers.

`fp16` divides by the number of devices before the cast, as PyTorch's `fp16_compress_hook` does, so
that a sum of numbers below the largest float16 does not overflow; the result is multiplied again.
`bf16` has the range of float32 and needs no division. One collective carries 16 bits, in which an
engine's library may add them up; a sum taken in float32 would need an all_to_all and an all_gather
of as many bytes.

`int8` needs sums in float32, because integers of 8 bits overflow. With q = round(x / s), s =
max|x| / 127 for each block, every device sends each other one the blocks of that one's part, adds
up what it gets, quantises the sum and gives it to all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from mithril.cost import Hardware, collective_seconds, describe_emulation
from mithril.ir import Builder, Node, Tensor
from mithril.mesh import Mesh
from mithril.ops import cast, max, reshape, round, where
from mithril.ops.collective import (
    NARROW_FLOATS,
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    ReduceScatter,
)
from mithril.ops.slicing import Pad
from mithril.options import GradientCompression
from mithril.types import DType

CASTS = {"fp16": DType.float16, "bf16": DType.bfloat16}
LARGEST = 127
"""The largest integer of a block."""
SCALE_BYTES = 4


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
    """

    builder: Builder
    node: Node
    axes: tuple[str, ...]
    mesh: Mesh
    hardware: Hardware
    text: str = ""

    @property
    def group(self) -> int:
        """How many devices add up."""
        return self.mesh.product(self.axes)

    def issue(
        self, op: Collective, x: Tensor, text: str = "", plain: float = 0.0
    ) -> tuple[Tensor, ...]:
        """Append a collective with its cause."""
        nbytes = op.count_bytes([x.type])
        issued = op.name, nbytes, op.axes, self.mesh
        cause = self.node.cause
        if cause is not None:
            cause = replace(
                cause,
                seconds=collective_seconds(*issued, self.hardware),
                emulated=describe_emulation(*issued, self.hardware),
                compressed=text,
                plain_bytes=plain,
            )
        with self.builder.at(cause=cause):
            return self.builder.apply(op, x)

    def count_plain(self, kind: type[Collective], x: Tensor) -> float:
        """Return the bytes that a device sends if x travels as it is."""
        return kind.traffic(x.type.nbytes, self.group).bytes

    def add(self, x: Tensor) -> Tensor:
        """Return the sum of x over the group."""
        raise NotImplementedError

    def scatter(self, x: Tensor, dimension: int) -> Tensor:
        """Return the own part, along a dimension, of the sum of x over the group."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class CastExchange(Exchange):
    """Sums of 16-bit floats."""

    dtype: DType = DType.float16

    def add(self, x: Tensor) -> Tensor:
        """Return the sum of x over the group."""
        return self._exchange(x, AllReduce(self.axes, "sum"))

    def scatter(self, x: Tensor, dimension: int) -> Tensor:
        """Return the own part, along a dimension, of the sum of x over the group."""
        return self._exchange(x, ReduceScatter(self.axes, "sum", dimension, self.group))

    def _exchange(self, x: Tensor, op: AllReduce | ReduceScatter) -> Tensor:
        given, count = x.dtype, self.group
        plain = self.count_plain(type(op), x)
        if given in NARROW_FLOATS:  # it travels as it is
            return self.issue(op, x, self.text, plain)[0]
        divides = self.dtype == DType.float16
        with self.builder.at():
            small = cast(x * (1.0 / count) if divides else x, self.dtype)
        (total,) = self.issue(op, small, self.text, plain)
        with self.builder.at():
            wide: Tensor = cast(total, given)
            return wide * float(count) if divides else wide


@dataclass(frozen=True, slots=True)
class BlockExchange(Exchange):
    """Sums in float32 of blocks of 8-bit integers."""

    block: int = 1

    def add(self, x: Tensor) -> Tensor:
        """Return the sum of x over the group."""
        plain = self.count_plain(AllReduce, x)
        with self.builder.at():
            parts = self._cut(_pad(reshape(x, (x.size,)), self.group), 0)
        total = self._add_parts(parts, plain)
        with self.builder.at():
            blocks, scales = self._quantise(total)
        gather = AllGather(self.axes, 0, self.group)
        (blocks,) = self.issue(gather, blocks, self.text)
        (scales,) = self.issue(gather, scales, self.text)
        with self.builder.at():
            whole = self._restore(blocks, scales)
            part = math.ceil(x.size / self.group)
            flat = reshape(reshape(whole, (self.group, -1))[:, :part], (self.group * part,))
            whole_sum: Tensor = cast(reshape(flat[: x.size], x.shape), x.dtype)
            return whole_sum

    def scatter(self, x: Tensor, dimension: int) -> Tensor:
        """Return the own part, along a dimension, of the sum of x over the group."""
        plain = self.count_plain(ReduceScatter, x)
        shape = list(x.shape)
        shape[dimension] //= self.group
        with self.builder.at():
            parts = self._cut(x, dimension)
        total = self._add_parts(parts, plain)
        with self.builder.at():
            flat = reshape(total, (-1,))[: math.prod(shape)]
            part: Tensor = cast(reshape(flat, shape), x.dtype)
            return part

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

    def _add_parts(self, parts: Tensor, plain: float) -> Tensor:
        """Return the sum of the own parts of all devices: (blocks, elements of a block)."""
        with self.builder.at():
            blocks, scales = self._quantise(parts)
        swap = AllToAll(self.axes, 0, 0, self.group)
        (blocks,) = self.issue(swap, blocks, self.text, plain)
        (scales,) = self.issue(swap, scales, self.text)
        with self.builder.at():
            total: Tensor = self._restore(blocks, scales).sum(axis=0)
            return total

    def _quantise(self, x: Any) -> tuple[Any, Any]:
        """Return integers, and the scale of each block; what is not finite makes that NaN."""
        scale = max(abs(x), axis=-1, keepdims=True) / float(LARGEST)
        is_usable = (scale > 0.0) & (scale < math.inf)
        ratio = where(is_usable, x / where(is_usable, scale, 1.0), 0.0)
        marked = where(scale < math.inf, scale, math.nan)
        return cast(round(ratio), DType.int8), marked

    def _restore(self, blocks: Any, scales: Any) -> Any:
        return cast(blocks, DType.float32) * scales


def choose_exchange(
    sum: Exchange, form: GradientCompression, x: Tensor
) -> CastExchange | BlockExchange | None:
    """Return how a sum is exchanged; None where it stays as it is.

    Args:
        sum: what is summed.
        form: what is asked for.
        x: the operand.
    """
    if not sum.axes or sum.group == 1 or not x.dtype.is_float:
        return None
    about = sum.builder, sum.node, sum.axes, sum.mesh, sum.hardware
    if form.form in CASTS:
        return CastExchange(*about, form.form, CASTS[form.form])
    assert form.block is not None, "blocks have a size"
    blocks = math.ceil(math.ceil(x.size / sum.group) / form.block)
    travels = sum.group * blocks * (form.block + SCALE_BYTES)
    if travels >= x.type.nbytes:
        return None  # padding and scales are more than what is saved
    return BlockExchange(*about, f"int8 in blocks of {form.block}", form.block)


def _pad(flat: Any, count: int) -> Any:
    missing = -flat.shape[0] % count
    return flat.builder.apply(Pad((0,), (missing,), (0,)), flat)[0] if missing else flat
