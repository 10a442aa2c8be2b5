"""One sum of a gradient over devices, taken in a compressed form.

A sum over several axes of which not all are compressed is cut in two, the plain part first; one
that scatters is taken axis after axis. With error feedback a device adds what it lost of its term
in the step before: with t the term, e what was lost and C what others read of what is sent,

    sent = C(t + e),  e' = t + e - sent
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mithril.cost import Hardware
from mithril.ir import Node, Tensor
from mithril.ir.op import Tensors
from mithril.mesh import MICRO, Mesh, list_origins
from mithril.ops import cast, reshape
from mithril.ops.collective import AllReduce, AxisIndex, ReduceScatter, TakeShard
from mithril.ops.compression import MarkGradient
from mithril.options import GradientCompression
from mithril.partition.compression.exchange import (
    AnyExchange,
    Exchange,
    LowRankExchange,
    QuantisedExchange,
    Summed,
    choose_exchange,
)
from mithril.partition.compression.state import KeptState
from mithril.plan.names import FACTOR, LOST
from mithril.types import DType


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum over devices that is asked for in another form.

    Args:
        node: the collective that takes it.
        mark: whose gradient it is of.
        form: what is asked for.
        mesh: the devices.
        hardware: the profile that prices collectives.
        state: what is kept from step to step.
    """

    node: Node
    mark: MarkGradient
    form: GradientCompression
    mesh: Mesh
    hardware: Hardware
    state: KeptState

    @property
    def op(self) -> AllReduce | ReduceScatter:
        """The sum."""
        assert isinstance(self.node.op, AllReduce | ReduceScatter), "others are not looked for"
        return self.node.op

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes over which it is compressed."""
        return tuple(axis for axis in self.op.axes if _is_named(axis, self.form, self.mesh))

    @property
    def rest(self) -> tuple[str, ...]:
        """The other axes, micro-batches among them."""
        return tuple(axis for axis in self.op.axes if axis not in self.axes)

    def name_kept(self, what: str, axes: Sequence[str]) -> str:
        """Return the name of what is kept; it says of which axes where that is not all.

        Args:
            what: how names of its kind begin.
            axes: over which the sum is compressed.
        """
        others = {*self.op.axes} - {*axes, MICRO}
        over = f" over {', '.join(list_origins(self.mesh, axes))}" if others else ""
        return f"{what}{self.mark.owner}{over}"


def compress_sum(sum: Sum, x: Tensor) -> Tensors | None:
    """Return what takes the place of a sum; None where it stays as it is.

    Args:
        sum: what is summed, and how.
        x: the operand.
    """
    about = Exchange(x.builder, sum.node, sum.axes, sum.mesh, sum.hardware)
    exchange = choose_exchange(about, sum.form, x, sum.mark.stacked)
    if exchange is None:
        return None
    if isinstance(exchange, LowRankExchange):
        return [_add_low_rank(sum, exchange, x)]
    if isinstance(sum.op, ReduceScatter):
        return [_scatter(sum, exchange, sum.op, x)]
    if sum.rest:
        (x,) = exchange.issue(AllReduce(sum.rest, "sum"), x)
    return [_feed_back(sum, exchange, x, exchange.add)]


def _is_named(axis: str, form: GradientCompression, mesh: Mesh) -> bool:
    if axis == MICRO:
        return False
    origin = next(a.origin for a in mesh.axes if a.name == axis)
    return form.axes is None or axis in form.axes or origin in form.axes


def _scatter(sum: Sum, exchange: QuantisedExchange, op: ReduceScatter, x: Tensor) -> Tensor:
    """Return the own part of a sum: axis after axis, in the order in which they cut it."""
    for axis in op.axes:
        count = exchange.mesh.sizes[axis]
        if axis in sum.rest:
            (x,) = exchange.issue(ReduceScatter((axis,), "sum", op.dimension, count), x)
            continue
        part = exchange if not sum.rest else replace(exchange, axes=(axis,))

        def add(x: Tensor, part: QuantisedExchange = part) -> Summed:
            return part.scatter(x, op.dimension)

        x = _feed_back(sum, part, x, add)
        if not sum.rest:
            break
    return x


def _add_low_rank(sum: Sum, exchange: LowRankExchange, x: Tensor) -> Tensor:
    """Return the sum, or the own part of it, of factors that are kept from step to step."""
    op, given = sum.op, x.dtype
    if sum.rest:
        (x,) = exchange.issue(AllReduce(sum.rest, "sum"), x)
    count, _, columns = exchange.shape(x)
    shape = count, columns, exchange.rank
    name, kept = sum.state.read(sum.name_kept(FACTOR, exchange.axes), shape, exchange.axes)

    def add(x: Tensor) -> Summed:
        with exchange.builder.at():
            factor = reshape(kept, (1, *shape))
        summed, after = exchange.add_with(x, factor)
        with exchange.builder.at():
            sum.state.write(name, reshape(after, kept.shape))
        return summed

    total: Any = _feed_back(sum, exchange, cast(x, DType.float32), add)
    with exchange.builder.at():
        total = cast(total, given)
        if isinstance(op, AllReduce):
            return total  # type: ignore[no-any-return]
        (index,) = exchange.builder.apply(AxisIndex(op.axes))
        return exchange.builder.apply(TakeShard(op.dimension, op.count), total, index)[0]


def _feed_back(
    sum: Sum, exchange: AnyExchange, x: Tensor, add: Callable[[Tensor], Summed]
) -> Tensor:
    """Return a sum of terms to which is added what was lost of them in the step before.

    Args:
        sum: what is summed.
        exchange: in which form.
        x: the term of this device.
        add: takes the sum.
    """
    if not exchange.keeps_error or not exchange.loses(x):
        return add(x).total
    given, shape = x.dtype, x.shape
    name, kept = sum.state.read(sum.name_kept(LOST, exchange.axes), shape, exchange.axes)
    with exchange.builder.at():
        # In the form of what is kept: what is only reshaped would be held besides.
        term = reshape(cast(x, DType.float32), kept.shape) + kept
        x = reshape(term, shape)
    total, lost = add(x)
    assert lost is not None, "the exchange was asked for it"
    with exchange.builder.at():
        sum.state.write(name, reshape(lost, kept.shape))
        return cast(total, given)
