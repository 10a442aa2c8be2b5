"""The algorithms, as rounds in which members send rows of a buffer to one another.

A reduce_scatter takes a row for each member and leaves a member the reduction of its row, an
all_gather takes a row of each member and leaves all of them everywhere, an all_to_all takes and
leaves a row for each. With n members and b bytes in all rows, what a member sends is

    ring                n - 1 rounds, (n - 1)/n b, to its neighbour; Patarasuk and Yuan (2009). An
                        all_to_all passes rows on, n/2 times as many bytes
    direct              n - 1 messages, (n - 1)/n b, which do not wait for one another
    tree                ceil(log2 n) rounds, (n - 1)/n b: the row of each member goes along a
                        binomial tree of its own; Bruck et al. (1997), and backwards for a reduction
    recursive_halving   log2 n rounds, (n - 1)/n b, with partners at distances n/2, n/4, …;
                        Thakur, Rabenseifner and Gropp (2005). Members behind the largest power of
                        two give what they have to one of the others first, and get theirs last

An all_reduce is a reduce_scatter and an all_gather; `tree` is a reduction to the first member along
a binomial tree, and the way back: 2 ceil(log2 n) rounds of all bytes. Each part of a sum is taken
by one member, so all get the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from mithril.ir import Tensor
from mithril.ops import concatenate, pad, transpose, where
from mithril.ops.collective import AllGather, AllReduce, AllToAll, ReduceScatter
from mithril.partition.algorithms.asked import DIRECT, HALVING, NATIVE, RING, TREE
from mithril.partition.algorithms.members import COMBINE, Members

Scatter = Callable[[Members, Any, str], Any]
"""From rows (n, …) and a reduction to the row of this member, (…)."""
Gather = Callable[[Members, Any], Any]
"""From the row of this member to those of all; or from rows to rows, of an all_to_all."""

# ------------------------------------------------------------------ ring


def _scatter_by_ring(group: Members, rows: Tensor, reduction: str) -> Any:
    """Sum the row of each member up on its way around, from the member behind it on."""
    ahead, combine = group.rotate(rows), COMBINE[reduction]
    term = ahead[-1]
    for distance in reversed(range(group.count - 1)):
        term = combine(group.shift(term, 1), ahead[distance])
    return term


def _gather_by_ring(group: Members, row: Tensor) -> Any:
    behind = [row]
    for _ in range(group.count - 1):
        behind.append(group.shift(behind[-1], 1))
    return group.reverse_back(_stack(behind))


def _exchange_by_ring(group: Members, rows: Tensor) -> Any:
    """Pass on what is for others; the first row that comes is for the member that gets it."""
    ahead = group.rotate(rows)
    behind, passing = [ahead[0]], ahead[1:]
    for _ in range(group.count - 1):
        passing = group.shift(passing, 1)
        behind.append(passing[0])
        passing = passing[1:]
    return group.reverse_back(_stack(behind))


# ------------------------------------------------------------------ direct


def _scatter_directly(group: Members, rows: Tensor, reduction: str) -> Any:
    return reduce(COMBINE[reduction], _send_to_each(group, rows))


def _gather_directly(group: Members, row: Tensor) -> Any:
    sent = [group.shift(row, distance) for distance in range(1, group.count)]
    return group.reverse_back(_stack([row, *sent]))


def _exchange_directly(group: Members, rows: Tensor) -> Any:
    return group.reverse_back(_stack(_send_to_each(group, rows)))


def _send_to_each(group: Members, rows: Tensor) -> list[Any]:
    """Return the rows for this member by the distance of their senders behind it."""
    ahead = group.rotate(rows)
    sent = [group.shift(ahead[distance], distance) for distance in range(1, group.count)]
    return [ahead[0], *sent]


# ------------------------------------------------------------------ trees


def _scatter_by_trees(group: Members, rows: Tensor, reduction: str) -> Any:
    ahead, combine = group.rotate(rows), COMBINE[reduction]
    for width in reversed(_list_widths(group.count)):
        more = ahead.shape[0] - width
        given = combine(group.shift(ahead[width:], width), ahead[:more])
        ahead = concatenate([given, ahead[more:width]]) if more < width else given
    return ahead[0]


def _gather_by_trees(group: Members, row: Tensor) -> Any:
    ahead = row[None]
    for width in _list_widths(group.count):
        sent = ahead[: min(width, group.count - width)]
        ahead = concatenate([ahead, group.shift(sent, -width)])
    return group.rotate_back(ahead)


def _reduce_by_tree(group: Members, x: Tensor, reduction: str) -> Any:
    """Reduce to the first member and send the result back, along a binomial tree."""
    n, widths = group.count, _list_widths(group.count)
    for width in widths:
        up = tuple((low + width, low) for low in range(0, n - width, 2 * width))
        term = COMBINE[reduction](x, group.send(x, up))
        is_given = None if reduction == "sum" else group.is_at(0, 2 * width, n - width)
        x = term if is_given is None else where(is_given, term, x)  # a sum has zeros there
    for width in reversed(widths):
        down = tuple((low, low + width) for low in range(0, n - width, 2 * width))
        x = where(group.is_at(width, 2 * width, n), group.send(x, down), x)
    return x


def _list_widths(count: int) -> list[int]:
    """Return the powers of two below a number.

    >>> _list_widths(5)
    [1, 2, 4]
    """
    return [2**i for i in range((count - 1).bit_length())]


# ------------------------------------------------------------------ recursive halving


def _scatter_by_halving(group: Members, rows: Tensor, reduction: str) -> Any:
    """Halve what is reduced in each round; of members over, the first ones have rows, too."""
    first, over = _split_members(group.count)
    if not over:
        return _halve(group, group.mirror(rows, first), reduction)
    rows = _give_first(group, rows, reduction)
    none = [(0, 0)] * (rows.ndim - 1)
    both = pad(rows, [(0, 2 * first - group.count), *none]).reshape(2, first, *rows.shape[1:])
    both = transpose(both, (1, 0, *range(2, both.ndim)))
    own, others = _unstack(_halve(group, group.mirror(both, first), reduction))
    return _give_last(group, own, others)


def _reduce_by_halving(group: Members, x: Tensor, reduction: str) -> Any:
    """Halve and double again; x is (n, …), which may be cut anywhere."""
    first, over = _split_members(group.count)
    if over:
        x = _give_first(group, x, reduction)
    rows = cut_rows(x, first)
    near = _halve(group, group.mirror(rows, first), reduction)[None]
    for width in _list_widths(first):
        near = concatenate([near, group.exchange_bits(near, width, first)])
    made = join_rows(group.mirror(near, first), x)
    return _give_last(group, made, made) if over else made


def _halve(group: Members, near: Any, reduction: str) -> Any:
    """Return the row of this member, of rows q at q XOR its number."""
    count = near.shape[0]
    for width in reversed(_list_widths(count)):
        given = group.exchange_bits(near[width:], width, count)
        near = COMBINE[reduction](near[:width], given)
    return near[0]


def _split_members(count: int) -> tuple[int, int]:
    """Return the largest power of two that is no more, and how many members are over.

    >>> _split_members(6)
    (4, 2)
    """
    first: int = 1 << (count.bit_length() - 1)
    return first, count - first


def _give_first(group: Members, x: Tensor, reduction: str) -> Any:
    """Have members behind the first ones give theirs to these."""
    first, over = _split_members(group.count)
    term = COMBINE[reduction](x, group.send(x, tuple((first + i, i) for i in range(over))))
    if reduction == "sum":
        return term
    return where(group.index < over, term, x)


def _give_last(group: Members, own: Tensor, others: Tensor) -> Any:
    """Have the first members give what the ones behind them are to have."""
    first, over = _split_members(group.count)
    given = group.send(others, tuple((i, first + i) for i in range(over)))
    return where(group.index < first, own, given)


# ------------------------------------------------------------------ tables


def _scatter_natively(group: Members, rows: Tensor, reduction: str) -> Any:
    return group.apply(ReduceScatter(group.axes, reduction, 0, group.count), rows)[0]


def _gather_natively(group: Members, row: Tensor) -> Any:
    return group.apply(AllGather(group.axes, 0, group.count), row[None])


def _exchange_natively(group: Members, rows: Tensor) -> Any:
    return group.apply(AllToAll(group.axes, 0, 0, group.count), rows)


def _reduce_natively(group: Members, x: Tensor, reduction: str) -> Any:
    return group.apply(AllReduce(group.axes, reduction), x)


def _reduce_by_parts(scatter: Scatter, gather: Gather) -> Scatter:
    """Return an all_reduce that is a reduce_scatter and an all_gather."""

    def run(group: Members, x: Any, reduction: str) -> Any:
        rows = cut_rows(x, group.count)
        return join_rows(gather(group, scatter(group, rows, reduction)), x)

    return run


def cut_rows(x: Any, count: int) -> Any:
    """Return the elements of x in so many rows, with zeros where the last is shorter."""
    missing, flat = -x.size % count, x.reshape(x.size)
    padded = pad(flat, [(0, missing)]) if missing else flat
    return padded.reshape(count, padded.size // count)


def join_rows(rows: Any, x: Tensor) -> Any:
    """Return elements in rows in the shape of x, which `cut_rows` has cut."""
    return rows.reshape(rows.size)[: x.size].reshape(x.shape)


def _stack(rows: list[Any]) -> Any:
    return concatenate([row[None] for row in rows])


def _unstack(pair: Any) -> tuple[Any, Any]:
    return pair[0], pair[1]


SCATTER: dict[str, Scatter] = {
    NATIVE: _scatter_natively, RING: _scatter_by_ring, DIRECT: _scatter_directly,
    TREE: _scatter_by_trees, HALVING: _scatter_by_halving,
}  # fmt: skip
GATHER: dict[str, Gather] = {
    NATIVE: _gather_natively, RING: _gather_by_ring, DIRECT: _gather_directly,
    TREE: _gather_by_trees,
}  # fmt: skip
EXCHANGE: dict[str, Gather] = {
    NATIVE: _exchange_natively, RING: _exchange_by_ring, DIRECT: _exchange_directly,
}  # fmt: skip
REDUCE: dict[str, Scatter] = {
    NATIVE: _reduce_natively,
    RING: _reduce_by_parts(_scatter_by_ring, _gather_by_ring),
    DIRECT: _reduce_by_parts(_scatter_directly, _gather_directly),
    TREE: _reduce_by_tree,
    HALVING: _reduce_by_halving,
}

__all__ = ["EXCHANGE", "GATHER", "REDUCE", "SCATTER", "Gather", "Scatter", "cut_rows", "join_rows"]
