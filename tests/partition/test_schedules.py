"""Pipeline schedules reproduce the closed forms of their papers, and illegal tables are refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mithril.cost.timeline import Costs, simulate
from mithril.errors import PlanError
from mithril.partition.schedule import KNOWN, check, make
from mithril.plan.schedule import Action, Schedule, Work, read_table
from mithril.report import draw

SIZES = st.integers(1, 6)


def bubble(name: str, devices: int, microbatches: int, chunks: int = 1) -> float:
    made = make(name, devices, microbatches, chunks)
    return check(made, devices * chunks, microbatches).bubble


@pytest.mark.parametrize(
    ("name", "devices", "microbatches", "chunks", "expected"),
    [
        ("gpipe", 4, 8, 1, 27.3), ("gpipe", 8, 32, 1, 17.9),
        ("1f1b", 4, 8, 1, 27.3), ("1f1b", 8, 32, 1, 17.9),
        ("interleaved", 4, 8, 2, 15.8), ("interleaved", 8, 32, 4, 5.2),
        ("zb-h1", 4, 8, 1, 11.1), ("zb-h1", 8, 32, 1, 6.8),
    ],
)  # fmt: skip
def test_a_bubble_that_is_quoted(
    name: str, devices: int, microbatches: int, chunks: int, expected: float
) -> None:
    assert round(100 * bubble(name, devices, microbatches, chunks), 1) == expected


@given(devices=SIZES, microbatches=SIZES)
def test_gpipe_and_1f1b(devices: int, microbatches: int) -> None:
    idle = (devices - 1) / (microbatches + devices - 1)
    for name in ("gpipe", "1f1b"):
        assert bubble(name, devices, microbatches) == pytest.approx(idle)
    assert simulate(make("gpipe", devices, microbatches)).peaks == (microbatches,) * devices
    held = tuple(min(devices - d, microbatches) for d in range(devices))
    assert simulate(make("1f1b", devices, microbatches)).peaks == held


@given(devices=SIZES, groups=st.integers(1, 4), chunks=st.integers(1, 4))
def test_interleaved(devices: int, groups: int, chunks: int) -> None:
    microbatches = groups * devices
    idle = (devices - 1) / (chunks * microbatches + devices - 1)
    assert bubble("interleaved", devices, microbatches, chunks) == pytest.approx(idle)
    if chunks > 1 and groups > 1:
        # In micro-batches of a stage, of which each device has `chunks`.
        most = devices * chunks + devices - 1
        assert max(simulate(make("interleaved", devices, microbatches, chunks)).peaks) == most
    if chunks == 1:
        assert make("interleaved", devices, microbatches).rows == (
            make("1f1b", devices, microbatches).rows
        )


@given(devices=SIZES, more=st.integers(0, 12))
def test_zero_bubble(devices: int, more: int) -> None:
    """What is idle is a forward for each further device: the flush allows no less."""
    microbatches = devices + more
    timeline = check(make("zb-h1", devices, microbatches), devices, microbatches)
    assert timeline.makespan == 3 * microbatches + devices - 1
    assert max(timeline.peaks) <= devices
    idle = (devices - 1) / (3 * microbatches + devices - 1)
    assert timeline.bubble == pytest.approx(idle)


def before(action: Action, made: Schedule) -> list[Action]:
    """Return what an action waits for, as the papers say."""
    s, work, m = action.stage, action.work, action.microbatch
    there = set(made.actions)
    wanted = {
        Work.forward: [Action(s - 1, Work.forward, m)],
        Work.weight_gradient: [Action(s, Work.input_gradient, m)],
    }
    back = [Action(s, Work.forward, m), *(Action(s + 1, Work(w), m) for w in "BI")]
    return [a for a in wanted.get(work, back) if a in there]


@given(
    name=st.sampled_from(sorted(KNOWN)),
    devices=SIZES,
    groups=st.integers(1, 3),
    costs=st.tuples(*[st.floats(0.1, 3)] * 3, st.floats(0, 2)),
)
def test_nothing_starts_before_what_it_needs(
    name: str, devices: int, groups: int, costs: tuple[float, ...]
) -> None:
    chunks = 2 if name == "interleaved" else 1
    made, price = make(name, devices, groups * devices, chunks), Costs(*costs)
    timeline = simulate(made, price)
    for device, row in enumerate(made.rows):
        for first, second in pairwise(row):
            assert timeline.starts[second] >= timeline.ends[first]
        for action in row:
            for need in before(action, made):
                late = price.transfer if made.devices[need.stage] != device else 0
                assert timeline.starts[action] >= timeline.ends[need] + late
    assert timeline.makespan >= sum(price.of(a.work) for a in made.rows[0])


@given(name=st.sampled_from(sorted(KNOWN)), devices=st.integers(1, 4), groups=st.integers(1, 2))
def test_a_table_says_the_same(name: str, devices: int, groups: int) -> None:
    made = make(name, devices, groups * devices, 2 if name == "interleaved" else 1)
    assert read_table(name, str(made).splitlines()) == made


@given(st.data())
def test_a_shuffled_table_runs_or_is_refused(data: st.DataObject) -> None:
    made = make(data.draw(st.sampled_from(["gpipe", "1f1b", "zb-h1"])), 3, 3)
    rows = tuple(tuple(data.draw(st.permutations(row))) for row in made.rows)
    try:
        timeline = check(Schedule("shuffled", rows), 3, 3)
    except PlanError as error:
        assert "never gets to" in str(error)
    else:
        for action in timeline.ends:
            for need in before(action, timeline.schedule):
                assert timeline.starts[action] >= timeline.ends[need]


def test_backwards_of_a_stage_may_be_whole_and_split() -> None:
    table = ["0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1I1,1W1"]
    timeline = check(read_table("mixed", table), 2, 2)
    assert timeline.starts[Action.read("0B1")] >= timeline.ends[Action.read("1I1")]


def test_costs_of_each_stage() -> None:
    """The slowest stage sets the pace."""
    slow = simulate(make("1f1b", 2, 8), [Costs(), Costs(2, 2, 2)])
    assert slow.makespan == 1 + 8 * 6 + 2


def test_costs_that_make_no_sense_are_refused() -> None:
    for times in ((-1, 1, 1, 0), (0, 0, 0, 1), (1, 1, float("nan"), 0)):
        with pytest.raises(PlanError, match="are not times of at least 0, some work above 0; give"):
            Costs(*times)
    with pytest.raises(PlanError) as caught:
        simulate(make("gpipe", 4, 8), [Costs()])
    assert str(caught.value) == ("schedule 'gpipe' has 4 stages and costs of 1; give one for each")


def test_a_picture_is_not_much_wider_than_a_screen() -> None:
    for costs in (Costs(1e-6), Costs(3, 1, 1, 0.1), Costs()):
        assert max(map(len, draw(simulate(make("1f1b", 4, 32), costs)).splitlines())) < 800
    assert len(draw(simulate(make("1f1b", 2, 2), Costs(1e-6))).splitlines()[1]) < 130


def test_a_picture() -> None:
    assert draw(simulate(make("1f1b", 2, 2))).splitlines() == [
        "1f1b: 2 devices, 2 micro-batches, bubble 33.3 %, activations of at most 2 micro-batches",
        "  0 F0 F1       B0···    B1···",
        "  1    F0 B0··· F1 B1···",
    ]


# ------------------------------------------------------------------ what is refused

GOOD = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1"


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (
            GOOD.replace(",1B1", ""),
            "schedule 'mine' lacks 1B1; every stage needs a forward and a backward (B, or I and W) "
            "of every micro-batch",
        ),
        (GOOD.replace("0B1", "0I1"), "schedule 'mine' lacks 0W1; every stage needs a forward"),
        (
            GOOD.replace("0B1", "0B1,0W1"),
            "schedule 'mine' has 0B1 and also a half of it; write B, or I and W",
        ),
        (GOOD.replace("0B1", "0B1,0B1"), "schedule 'mine' has 0B1 2 times; once is enough"),
        (
            GOOD.replace("1B1", "1B1,0F0"),
            "schedule 'mine' has 0F0 on device 1, and stage 0 lives on device 0; a stage has one "
            "device",
        ),
        (
            GOOD.replace("1B1", "1B1,1F2"),
            "schedule 'mine' has 1F2; there are 2 stages and 2 micro-batches, both counted from 0",
        ),
        (
            "0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1",
            "schedule 'mine' never gets to 0B0 on device 0; it needs 1B0, which comes later or "
            "waits itself; put 1B0 first",
        ),
        (
            GOOD + "\n",
            "schedule 'mine' has nothing to do for device 2; give every device actions, and a table "
            "no empty line",
        ),
        ("", "schedule 'mine' has nothing to do for device 0; give every device actions"),
        (
            "0F0,0Q1",
            "'0Q1' is no action of a schedule; write stage, work and micro-batch, such as 0F3, 2B1, "
            "2I1 or 3W1 (line 1 of schedule 'mine')",
        ),
    ],
)
def test_a_table_that_is_refused(table: str, text: str) -> None:
    with pytest.raises(PlanError) as caught:
        check(read_table("mine", table.split("\n") if table else []), 2, 2)
    assert str(caught.value).startswith(text)


def test_more_than_may_be_held_is_refused() -> None:
    made = make("gpipe", 2, 4)
    assert check(made, 2, 4, most_held=4).peaks == (4, 4)
    with pytest.raises(PlanError) as caught:
        check(made, 2, 4, most_held=3)
    assert str(caught.value) == (
        "schedule 'gpipe' holds activations of 4 micro-batches on device 0 at 0F3; at most 3 may be "
        "held; start backwards earlier"
    )


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            ("gpie", 2, 2),
            "pipeline schedule 'gpie' does not exist; did you mean 'gpipe'?; known: 'gpipe', "
            "'1f1b', 'interleaved', 'zb-h1', tables in files whose names end in .csv, and those of "
            "plugins, such as 'acme.zigzag'",
        ),
        (("1f1b", 0, 2), "a pipeline of 0 devices does nothing; give at least 1"),
        (("1f1b", 2, 2, 2), "schedule '1f1b' has one chunk a device, not 2; use 'interleaved'"),
        (
            ("interleaved", 4, 6, 2),
            "schedule 'interleaved' on 4 devices needs a multiple of 4 micro-batches, not 6; use "
            "4 or 8",
        ),
        (
            ("interleaved", 4, 3, 2),
            "schedule 'interleaved' on 4 devices needs a multiple of 4 micro-batches, not 3; use 4",
        ),
    ],
)
def test_a_schedule_that_does_not_exist(given: tuple, text: str) -> None:
    with pytest.raises(PlanError) as caught:
        make(*given)
    assert str(caught.value) == text


def test_a_table_may_have_pytorchs_transfers_and_gaps() -> None:
    table = "0F0,0SEND_F0,,0RECV_B0,0B0\n,0RECV_F0,1F0,1B0,1SEND_B0"
    assert read_table("theirs", table.splitlines()).rows == (
        (Action(0, Work.forward, 0), Action(0, Work.backward, 0)),
        (Action(1, Work.forward, 0), Action(1, Work.backward, 0)),
    )
