"""Tables of PyTorch's own pipeline schedules: the same where they mean the same, and read as they are."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from mithril.partition.schedule import check, make
from mithril.plan.schedule import read_table

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.distributed.pipelining import schedules as theirs


class Stage(SimpleNamespace):
    """What a schedule of PyTorch asks of a stage to write its table; the rest is never run."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **options: None


def table_of(kind: type, devices: int, chunks: int, microbatches: int) -> list[str]:
    where = {stage: stage % devices for stage in range(devices * chunks)}
    stages = [
        Stage(
            group_rank=0,
            group_size=devices,
            num_stages=devices * chunks,
            stage_index=number * devices,
            stage_index_to_group_rank=where,
            has_backward=True,
        )
        for number in range(chunks)
    ]
    made = kind(stages, microbatches, loss_fn=lambda *args: 0)
    rows = (made.pipeline_order[device] for device in range(devices))
    return [",".join("" if action is None else str(action) for action in row) for row in rows]


@pytest.mark.parametrize(
    ("devices", "chunks", "groups"), [(2, 2, 2), (4, 2, 2), (4, 3, 1), (3, 4, 3)]
)
def test_interleaved_is_that_of_pytorch(devices: int, chunks: int, groups: int) -> None:
    table = table_of(theirs.ScheduleInterleaved1F1B, devices, chunks, groups * devices)
    mine = make("interleaved", devices, groups * devices, chunks)
    assert read_table("theirs", table).rows == mine.rows


@pytest.mark.parametrize(
    "kind",
    [
        theirs.ScheduleInterleaved1F1B,
        theirs.ScheduleInterleavedZeroBubble,
        theirs.ScheduleLoopedBFS,
    ],
)
def test_tables_of_pytorch_are_legal(kind: type) -> None:
    """Its zero-bubble schedule has chunks, so it is no ZB-H1."""
    timeline = check(read_table("theirs", table_of(kind, 4, 2, 8)), stages=8, microbatches=8)
    assert 0 < timeline.bubble < 0.5


def test_a_table_with_pytorchs_transfers() -> None:
    """As PyTorch writes it for its runtime, sharded parameters and all."""
    table = table_of(theirs.ScheduleInterleaved1F1B, 2, 2, 4)
    actions = {
        device: [theirs._Action.from_str(cell) for cell in row.split(",") if cell]
        for device, row in enumerate(table)
    }
    sharded = {d: theirs._add_unshard_reshard(row) for d, row in actions.items()}
    lowered = theirs._add_send_recv(sharded, lambda stage: stage % 2, 4)
    text = [",".join(map(str, lowered[device])) for device in range(2)]
    assert any("SEND" in row and "UNSHARD" in row for row in text)
    assert read_table("lowered", text).rows == make("interleaved", 2, 4, 2).rows
