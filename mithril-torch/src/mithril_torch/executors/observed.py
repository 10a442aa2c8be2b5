"""Collectives and messages that PyTorch issued, compared with a plan: kind, mesh axes and bytes.

Gloo has no reduce_scatter: there an all_to_all of as many bytes over the same axes carries it out,
in which a process sends nothing to itself. Between two it looks like a permute of half of them. An
all_gather is messages between all pairs there. Processes of one host that read each other's memory
carry out each kind as it is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mithril.spi import (
    BackendError,
    Issued,
    IssuedRow,
    Plan,
    Program,
    StageRun,
    Transfer,
    find_issued,
)
from mithril.spi.ops import SEND, AllGather, AllToAll, Permute, ReduceScatter, class_of, collectives

from mithril_torch.program.rank_steps import RankSteps

ObservedRows = Sequence[Sequence[Mapping[str, Any]]]
"""What each rank saw, in order; rows as of `pool.recorder`."""
_RECEIVED = "receive"


def kind_of(op: str) -> str:
    """Return the kind of collective that an op of PyTorch carries out; its own name for others.

    >>> kind_of("_allgather_base_"), kind_of("reduce_scatter_tensor"), kind_of("send")
    ('all_gather', 'reduce_scatter', 'send')
    """
    if op == "recv_":
        return _RECEIVED
    spelt = op.replace("_", "")
    kinds = (kind for kind in collectives() if spelt.startswith(kind.replace("_", "")))
    return next(kinds, op)


def to_plan_row(observed: Mapping[str, Any]) -> IssuedRow:
    """Return a collective as a plan lists it, from what `pool.recorder` saw of it."""
    kind = kind_of(observed["op"])
    nbytes, group = int(observed["bytes"]), len(observed["ranks"])
    if kind == AllToAll.name and observed["partners"] < group:
        if 1 < observed["partners"] == group - 1:
            nbytes = nbytes * group // (group - 1)  # with what stays
        else:
            kind = Permute.name
    if kind == AllGather.name and observed["partners"] < group - 1:
        kind = SEND  # messages, of which some are missing
    if kind in collectives():
        nbytes = class_of(kind).to_counted_bytes(nbytes, group)
    return kind, tuple(observed["axes"]), nbytes


def match_program(program: Program, observed: Sequence[Mapping[str, Any]]) -> Iterator[Issued]:
    """Yield what one rank carried out of a program; of a permute it may not see the data.

    Args:
        program: what ran.
        observed: what the rank saw.
    """
    planned = program.issue()
    for row in map(to_plan_row, observed):
        wanted = next(planned, Issued(*row))
        yield wanted if _carries_out(row, wanted.row) else Issued(*row)


def match_rows(program: Program, rows: Iterable[IssuedRow]) -> Iterator[Issued]:
    """Yield what was carried out of a program with the nodes that asked for it.

    Args:
        program: what ran.
        rows: what was carried out, in any order.
    """
    planned = list(program.issue())
    for row in rows:
        # Of a scatter and an exchange of as many bytes that comes first which the plan has first.
        wanted = next((one.row for one in planned if _is_whole(row, one.row)), row)
        found = find_issued(wanted, planned)
        if found.origin is not None:
            planned.remove(found)
        yield found


def match_plan(plan: Plan, observed: Mapping[int, Sequence[Mapping[str, Any]]]) -> Iterator[Issued]:
    """Yield what was carried out of a plan of several stages, in the plan's order.

    Each rank does its own steps, so what one saw is held against what the timetable has for it.

    Args:
        plan: what ran.
        observed: what ranks saw; of what others did nothing is told, but what they had to do with
            it.

    Raises:
        BackendError: a rank did something else than the plan has for it.
    """
    rank_steps = RankSteps(plan, (), 0)
    queues = {rank: _Queue(rows) for rank, rows in observed.items()}
    for position, step in enumerate(rank_steps.table.steps):
        if isinstance(step, StageRun):
            stage = plan.stages[step.stage]
            ranks = [rank for rank in stage.devices if rank in queues]
            for wanted in stage.program.issue() if ranks else ():
                found = [to_plan_row(queues[rank].next(rank, wanted.row)) for rank in ranks]
                _check_all(ranks, found, wanted.row)
                # Of a permute not every rank sees the data: some may be among others.
                is_whole = len(queues) < plan.mesh.size or _is_whole(max(found), wanted.row)
                yield wanted if is_whole else Issued(*max(found))
        else:
            transfer = rank_steps.transfer(step)
            moved = _messages(queues, transfer, position)
            if moved:
                nbytes = transfer.bytes if len(queues) < plan.mesh.size else moved
                yield Issued(SEND, (), nbytes, transfer)
    for rank, queue in queues.items():
        for row in (*queue.rows, *queue.received.values()):
            raise _mismatch(rank, to_plan_row(row), "nothing more")


class _Queue:
    """What a rank saw: messages it received by sender and tag, as they may start early."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        kinds = [to_plan_row(row)[0] for row in rows]
        self.rows = deque(r for r, kind in zip(rows, kinds, strict=True) if kind != _RECEIVED)
        self.received = {
            (row["peer"], row["tag"]): row
            for row, kind in zip(rows, kinds, strict=True)
            if kind == _RECEIVED
        }

    def next(self, rank: int, wanted: IssuedRow) -> Mapping[str, Any]:
        """Take what came next, which should be what is wanted."""
        if not self.rows:
            raise _mismatch(rank, "nothing more", wanted)
        return self.rows.popleft()

    def message(self, rank: int, wanted: IssuedRow, peer: int, tag: int) -> Mapping[str, Any]:
        """Take a message that came."""
        if (peer, tag) not in self.received:
            raise _mismatch(rank, "nothing more", wanted)
        return self.received.pop((peer, tag))


def _messages(queues: Mapping[int, _Queue], transfer: Transfer, position: int) -> int:
    """Take the messages of a transfer; return the most bytes that a rank sent or got."""
    moved, got = 0, Counter[int]()
    itemsize = transfer.type.dtype.itemsize
    for piece in transfer.chunks:
        size = piece.size * itemsize
        if piece.sender == piece.receiver:
            continue
        if piece.sender in queues:
            wanted = SEND, (f"rank {piece.receiver}", f"message {position}"), size
            row = queues[piece.sender].next(piece.sender, wanted)
            _check_all([piece.sender], [_message(row)], wanted)
            moved = max(moved, size)
        if piece.receiver in queues:
            wanted = _RECEIVED, (f"rank {piece.sender}", f"message {position}"), size
            queue = queues[piece.receiver]
            row = queue.message(piece.receiver, wanted, piece.sender, position)
            _check_all([piece.receiver], [_message(row)], wanted)
            got[piece.receiver] += size
    return max([moved, *got.values()])


def _message(row: Mapping[str, Any]) -> IssuedRow:
    kind, _, size = to_plan_row(row)
    return kind, (f"rank {row['peer']}", f"message {row['tag']}"), size


def _check_all(ranks: Sequence[int], found: Sequence[IssuedRow], wanted: IssuedRow) -> None:
    for rank, row in zip(ranks, found, strict=True):
        if not _carries_out(row, wanted):
            raise _mismatch(rank, row, wanted)


def _carries_out(row: IssuedRow, wanted: IssuedRow) -> bool:
    """Whether a rank sees this row of what is wanted; less of a permute that leaves it out."""
    is_part = wanted[0] == Permute.name and row[:2] == wanted[:2] and row[2] < wanted[2]
    return is_part or _is_whole(row, wanted)


def _is_whole(row: IssuedRow, wanted: IssuedRow) -> bool:
    """Whether a row is what is wanted, or carries it out."""
    kind, axes, nbytes = wanted
    exchanges = (AllToAll.name, axes, nbytes), (Permute.name, axes, nbytes // 2)
    return row == wanted or (kind == ReduceScatter.name and row in exchanges)


def _mismatch(rank: int, found: object, wanted: object) -> BackendError:
    return BackendError(
        f"rank {rank} carried out {found} where the plan has {wanted}; this is a fault of Mithril, "
        f"please report it"
    )
