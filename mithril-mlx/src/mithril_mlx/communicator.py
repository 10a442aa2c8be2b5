"""Collectives and messages between processes, on what MLX's distributed library has.

Each is carried out by the calls that its `Transport` lists, no more and no other. All calls of a
run are ordered as in the program: MLX is lazy, and would otherwise be free to choose.

In a plan of several stages calls have a stream of their own: a process computes while a message
waits for its receiver. They are issued in the order of the timetable, which is the same in all
processes, so that there is no deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import accumulate, pairwise, permutations
from math import prod
from typing import Any

import mlx.core as mx
from mithril.spi import (
    ArrivedChunk,
    BackendError,
    Mesh,
    Op,
    TensorType,
    Transfer,
    Transport,
    TransportCall,
    join_chunks,
    take_chunk,
)
from mithril.spi.ops import SEND, AllGather, AllReduce, AllToAll, Permute, ReduceScatter

from mithril_mlx.distributed import Job, Ranks
from mithril_mlx.reductions import combine, identity, reduce_as_integers
from mithril_mlx.tensors import dtype_of, mlx_dtype

Run = Callable[..., Any]
OnCall = Callable[[TransportCall], None]
_REDUCE: dict[str, Run] = {
    "sum": mx.distributed.all_sum,
    "max": mx.distributed.all_max,
    "min": mx.distributed.all_min,
}


@cache
def comm_stream() -> mx.Stream:
    """Return the stream of what is exchanged while this process computes; there is one."""
    found: mx.Stream = mx.new_stream(mx.cpu)
    return found


class Communicator:
    """Issues the calls of one engine, one after another.

    Args:
        job: the processes.
    """

    def __init__(self, job: Job) -> None:
        self.transport: Transport = job.transport
        self.on_call: OnCall | None = None
        self._job = job
        self._last: mx.array | None = None
        self._stream: mx.Stream | None = None

    def restart(self) -> None:
        """Forget the order: a new run begins, and waits for the one before anyway."""
        self._last = None

    def wait_for(self, results: Sequence[Sequence[mx.array]]) -> None:
        """Compute results of a program that exchanges data, and wait for them.

        MLX tells of a lost process only those who wait; others would read numbers that were never
        received.

        Raises:
            BackendError: another process of the job is gone.
        """
        with self._translate_errors():
            mx.eval(results)

    @contextmanager
    def use_comm_stream(self) -> Iterator[None]:
        """Issue all calls on the communication stream inside the block, and wait for them.

        Raises:
            BackendError: another process of the job is gone.
        """
        self._stream = comm_stream()
        try:
            with self._translate_errors():
                yield
                mx.synchronize(self._stream)
        finally:
            self._stream = None

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if f"[{self._job.library}]" not in str(error):
                raise
            raise BackendError(
                f"rank {self._job.rank} has lost another process of the job while they exchanged "
                f"data: {error}; see what that one says, and start the job again"
            ) from error

    def collectives(self) -> dict[type[Op], Callable[[Any, Mesh], Run]]:
        """Return for each collective what makes its function."""
        factories: dict[type[Op], Callable[[Communicator, Any, _Members], Run]] = {
            AllReduce: _all_reduce, AllGather: _all_gather, ReduceScatter: _reduce_scatter,
            AllToAll: _all_to_all, Permute: _permute,
        }  # fmt: skip

        def bind(
            factory: Callable[[Communicator, Any, _Members], Run],
        ) -> Callable[[Any, Mesh], Run]:
            return lambda op, mesh: factory(self, op, self._members(mesh, op.axes))

        return {kind: bind(factory) for kind, factory in factories.items()}

    def _members(self, mesh: Mesh, axes: Sequence[str]) -> _Members:
        cut = groups_of(mesh, axes)
        ranks = next(ranks for ranks in cut if self._job.rank in ranks)
        index = ranks.index(self._job.rank)
        if self.by_messages(mesh):
            return _PointToPointMembers(self, cut, ranks, index)
        return _Members(self, self.create_groups(cut), ranks, index)

    def by_messages(self, mesh: Mesh) -> bool:
        """Whether collectives of a mesh are made of messages."""
        return self.transport.within(mesh.flat).by_messages

    def create_groups(self, cut: Ranks) -> Ranks:
        """Return all processes, cut into the groups of a collective and those that have no part.

        The groups of a library are made by all processes together: also those outside have to call
        this when a program is lowered.
        """
        outside = tuple(sorted(set(range(self.transport.size)).difference(*cut)))
        if outside and self.transport.groups:
            cut = (*cut, outside)
            self._job.group(cut)
        return cut

    # ---------------------------------------------------------------- what is really issued

    def reduce(self, x: mx.array, cut: Ranks, reduction: str) -> mx.array:
        """Return the reduction of the values of a group that the transport serves."""
        return self._issue(AllReduce.name, x.nbytes, self._job.group(cut), _REDUCE[reduction], x)

    def gather(self, x: mx.array, cut: Ranks) -> mx.array:
        """Return the values of a group that the transport serves, along a new first dimension."""
        group = self._job.group(cut)
        size: int = group.size()
        nbytes = AllGather.to_counted_bytes(x.nbytes, size)
        return self._issue(AllGather.name, nbytes, group, mx.distributed.all_gather, x[None])

    def scatter(self, x: mx.array, cut: Ranks) -> mx.array:
        """Return this process's part of the sum of the values of a group, cut along dimension 0."""
        group = self._job.group(cut)
        return self._issue(ReduceScatter.name, x.nbytes, group, mx.distributed.sum_scatter, x)

    def _issue(self, kind: str, nbytes: int, group: Any, function: Run, x: mx.array) -> mx.array:
        self._record(kind, nbytes, group.size())
        is_bool = x.dtype == mx.bool_
        if is_bool:  # MPI has no sums of them, and ends the job
            x = x.view(mx.uint8)
        if self._stream is not None:  # what waits for the call before is not the computation
            x = mx.contiguous(x, stream=self._stream)
        if self._last is not None:
            (x,) = mx.depends([x], [self._last])
        self._last = made = function(x, group=group, stream=self._stream)
        return made.astype(mx.bool_) if is_bool else made  # type: ignore[no-any-return]

    def _record(self, kind: str, nbytes: int, group: int) -> None:
        if self.on_call is not None:
            self.on_call(TransportCall(kind, nbytes, group))

    # ---------------------------------------------------------------- messages

    def relay(self, x: mx.array | None, type: TensorType, way: tuple[int, int]) -> mx.array | None:
        """Take part in carrying an array from one process to another, over those in between.

        Args:
            x: the array, in the process that has it.
            type: its shape and dtype.
            way: who has it, and who gets it.

        Returns:
            The array where it is or comes by, None elsewhere.
        """
        world, stream = self._job.world, comm_stream()
        is_bool = type.dtype.value == "bool"
        dtype = mx.uint8 if is_bool else mlx_dtype(type.dtype)
        for sender, receiver in self.transport.route(*way):
            if self._job.rank == sender:
                assert x is not None, "who sends has what is sent"
                self._record(SEND, type.nbytes, 2)
                bits = x.view(mx.uint8) if is_bool else x
                mx.async_eval(mx.distributed.send(bits, receiver, group=world, stream=stream))
            elif self._job.rank == receiver:
                x = mx.distributed.recv(type.shape, dtype, sender, group=world, stream=stream)
                mx.async_eval(x)
                x = x.view(mx.bool_) if is_bool else x
        return x

    def move(self, shards: Sequence[mx.array], transfer: Transfer) -> list[mx.array]:
        """Take part in bringing a value from one part of the mesh to another."""
        arrived: list[ArrivedChunk] = []
        for piece in transfer.chunks:
            x = take_chunk(shards[0], piece) if piece.sender == self._job.rank else None
            if piece.sender != piece.receiver:
                type = transfer.type.with_shape(tuple(p.stop - p.start for p in piece.place))
                x = self.relay(x, type, (piece.sender, piece.receiver))
            if piece.receiver == self._job.rank:
                arrived.append((piece, x))
        if self._job.rank not in transfer.target.mesh.flat:
            return []
        shape = transfer.target.local_shape(transfer.arriving.shape)
        return [join_chunks(arrived, shape, mlx_dtype(transfer.type.dtype), mx)]


class _Members:
    """The group of this process in a collective, as the transport can serve it.

    Args:
        communicator: issues the calls.
        cut: all groups of the collective.
        ranks: the members of this process's group, in order.
        index: which of them this process is.
    """

    def __init__(
        self, communicator: Communicator, cut: Ranks, ranks: tuple[int, ...], index: int
    ) -> None:
        self.communicator = communicator
        self.ranks = ranks
        self.index = index
        self.count = len(ranks)
        transport = communicator.transport
        self._everyone: Ranks = (tuple(range(transport.size)),)
        self._is_served = transport.serves(self.count)
        self._groups = cut if transport.groups else self._everyone
        self._gathers = transport.gathers_to_reduce(self.count)
        self._slot = cut.index(ranks)
        self._slots = len(cut)

    def parts(self, x: mx.array) -> Sequence[mx.array]:
        """Return the values of the members, in their order."""
        made = self.communicator.gather(x, self._groups)
        if self.communicator.transport.groups:
            return list(made)
        return [made[rank] for rank in self.ranks]

    def reduce(self, x: mx.array, reduction: str) -> mx.array:
        """Return the reduction of the values of the members."""
        if self._is_served:
            return reduce_as_integers(
                x, reduction, lambda y: self.communicator.reduce(y, self._groups, reduction)
            )
        if self._gathers:
            return combine(self.parts(x), reduction)
        return reduce_as_integers(x, reduction, lambda y: self._reduce_in_slot(y, reduction))

    def reduce_scatter(self, x: mx.array) -> mx.array:
        """Return this member's part of the sum, cut along dimension 0."""
        return self.communicator.scatter(x, self._groups)

    def _reduce_in_slot(self, x: mx.array, reduction: str) -> mx.array:
        """Reduce among all processes, each group in a place of its own."""
        empty = mx.full(x.shape, identity(x.dtype, reduction), x.dtype)
        slots = [empty] * self._slots
        slots[self._slot] = x
        return self.communicator.reduce(mx.stack(slots), self._everyone, reduction)[self._slot]


class _PointToPointMembers(_Members):
    """A group inside a part of the mesh, where collectives are made of messages."""

    def __init__(
        self, communicator: Communicator, cut: Ranks, ranks: tuple[int, ...], index: int
    ) -> None:
        super().__init__(communicator, cut, ranks, index)
        self._pairs = list_pairs(cut)

    def parts(self, x: mx.array) -> Sequence[mx.array]:
        """Return the values of the members, in their order."""
        type = TensorType(tuple(x.shape), dtype_of(x))
        mine = self.ranks[self.index]
        held = {mine: x}
        for sender, receiver in self._pairs:
            passing = self.communicator.relay(
                x if sender == mine else None, type, (sender, receiver)
            )
            if receiver == mine:
                assert passing is not None, "what is for this process comes here"
                held[sender] = passing
        return [held[rank] for rank in self.ranks]

    def reduce(self, x: mx.array, reduction: str) -> mx.array:
        """Return the reduction of the values of the members."""
        return combine(self.parts(x), reduction)


def groups_of(mesh: Mesh, axes: Sequence[str]) -> Ranks:
    """Return the groups of a collective, as processes of the whole job."""
    return tuple(tuple(map(mesh.in_whole, group)) for group in mesh.groups(axes))


def list_pairs(cut: Ranks) -> list[tuple[int, int]]:
    """Return who sends whom something in a collective that is made of messages, in order."""
    return [way for ranks in cut for way in permutations(ranks, 2)]


# -------------------------------------------------------------------- the collectives


def _all_reduce(communicator: Communicator, op: AllReduce, members: _Members) -> Run:
    def run(*operands: mx.array) -> Any:
        if len(operands) == 1:
            return members.reduce(operands[0], op.reduction)
        made = members.reduce(_flatten(operands), op.reduction)
        return tuple(_cut(made, [x.shape for x in operands]))

    return run


def _all_gather(communicator: Communicator, op: AllGather, members: _Members) -> Run:
    def run(*operands: mx.array) -> Any:
        found = tuple(
            mx.concatenate(list(own), axis=op.dimension) for own in _list_parts(members, operands)
        )
        return found if len(found) > 1 else found[0]

    return run


def _reduce_scatter(communicator: Communicator, op: ReduceScatter, members: _Members) -> Run:
    """A library that has it has it for sums; of an extreme's all_reduce a part is kept."""
    transport = communicator.transport
    is_native = transport.has(op.name) and transport.serves(op.count) and op.reduction == "sum"
    order = [members.ranks.index(rank) for rank in range(op.count)] if is_native else []

    def run(*operands: mx.array) -> Any:
        parts = [_split_dimension(x, op.dimension, op.count) for x in operands]
        if is_native:
            rows = [_flatten([part[i] for part in parts]) for i in order]
            mine = members.reduce_scatter(mx.concatenate(rows))
            found = _cut(mine, [part[0].shape for part in parts])
        else:
            sums = _cut(
                members.reduce(_flatten(operands), op.reduction), [x.shape for x in operands]
            )
            found = [_split_dimension(x, op.dimension, op.count)[members.index] for x in sums]
        return tuple(found) if len(operands) > 1 else found[0]

    return run


def _all_to_all(communicator: Communicator, op: AllToAll, members: _Members) -> Run:
    def join(parts: Sequence[mx.array]) -> mx.array:
        mine = [_split_dimension(part, op.split, op.count)[members.index] for part in parts]
        return mx.concatenate(mine, axis=op.concat)

    def run(*operands: mx.array) -> Any:
        found = tuple(map(join, _list_parts(members, operands)))
        return found if len(found) > 1 else found[0]

    return run


def _permute(communicator: Communicator, op: Permute, members: _Members) -> Run:
    """Who gets nothing takes part all the same: its zeros wait for what the others exchange."""
    source = op.sources.get(members.index)

    def take(x: mx.array, parts: Sequence[mx.array]) -> mx.array:
        if source is not None:
            return parts[source]
        nothing: mx.array = mx.depends([mx.zeros_like(x)], list(parts))[0]
        return nothing

    def run(*operands: mx.array) -> Any:
        found = tuple(map(take, operands, _list_parts(members, operands)))
        return found if len(found) > 1 else found[0]

    return run


def _list_parts(members: _Members, operands: Sequence[mx.array]) -> Sequence[Sequence[mx.array]]:
    """Return the values of all members of each operand, which travel together."""
    if len(operands) == 1:
        return [members.parts(operands[0])]
    shapes = [x.shape for x in operands]
    return list(
        zip(*(_cut(part, shapes) for part in members.parts(_flatten(operands))), strict=True)
    )


def _split_dimension(x: mx.array, dimension: int, count: int) -> list[mx.array]:
    return list(mx.split(x, count, axis=dimension))


def _flatten(arrays: Sequence[mx.array]) -> mx.array:
    """Return the elements of arrays one after another."""
    return mx.concatenate([x.reshape(-1) for x in arrays])


def _cut(row: mx.array, shapes: Sequence[Sequence[int]]) -> list[mx.array]:
    """Return the arrays of some shapes whose elements lie one after another."""
    ends = accumulate(map(prod, shapes), initial=0)
    cuts = zip(pairwise(ends), shapes, strict=True)
    return [row[start:stop].reshape(shape) for (start, stop), shape in cuts]
