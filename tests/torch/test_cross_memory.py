"""Processes of one host read each other's memory: what comes, in what order, and what if not.

The processes of a group are threads here: a process may read its own memory, too.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import pathlib
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from mithril_torch.executors.pool.faults import is_secondary_failure  # noqa: E402
from mithril_torch.program.runtime_library import (  # noqa: E402
    cross_memory,
    host_rendezvous,
)
from mithril_torch.program.runtime_library.collectives import (  # noqa: E402
    all_reduce,
    all_to_all,
    permute,
    reduce_scatter,
)
from mithril_torch.program.runtime_library.cross_memory import (  # noqa: E402
    OtherProcess,
    Semaphore,
    load_libc,
)
from mithril_torch.program.runtime_library.gathers import all_gather  # noqa: E402
from mithril_torch.program.runtime_library.host_channels import (  # noqa: E402
    SLOT,
    SLOTS,
)
from mithril_torch.program.runtime_library.host_rendezvous import (  # noqa: E402
    Introduction,
    reach_others,
)
from mithril_torch.program.runtime_library.pending import settle_abandoned  # noqa: E402

from tests.torch.jobs import script, torchrun  # noqa: E402

pytestmark = pytest.mark.skipif(
    Introduction(2).file is None, reason="needs Linux that has cross-memory attach"
)

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int16, torch.bool]


def make_members(size: int, order: list[int] | None = None, timeout: float = 20.0) -> list[Any]:
    """Return a group of processes, as each of them sees it, in the order of places.

    Args:
        size: how many there are.
        order: the place of each index, where the mesh counts otherwise than PyTorch.
        timeout: seconds for which one waits for another.
    """
    told = [Introduction(size) for _ in range(size)]
    members = []
    for place, own in enumerate(told):
        channels = reach_others(
            own, [other.known for other in told], place, [*range(size)], timeout
        )
        assert channels is not None
        index = place if order is None else order.index(place)
        members.append(
            SimpleNamespace(
                host=channels, size=size, place=place, index=index, places=order, observe=None,
                begun=[], abandoned=[], scatters=False, gathers=False,
            )
        )  # fmt: skip
    return members


def run(members: list[Any], work: Callable[[Any], Any]) -> list[Any]:
    """Return what each process makes, all at once."""
    made: list[Any] = [None] * len(members)

    def call(i: int) -> None:
        try:
            made[i] = work(members[i])
        except BaseException as error:
            made[i] = error

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(members))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for found in made:
        if isinstance(found, BaseException):
            raise found
    return made


def fill(shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    """Return small integers, which every dtype adds up exactly."""
    drawn = torch.randint(0, 5, shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(dtype)


sizes = st.integers(2, 5)
rows = st.integers(0, 3)


@given(sizes, rows, st.sampled_from([1, 7, 70_000]), st.sampled_from(DTYPES), st.integers(0, 99))
def test_parts_are_gathered(size: int, count: int, width: int, dtype: Any, seed: int) -> None:
    members = make_members(size)
    given = [fill((count, width), dtype, seed + i) for i in range(size)]

    def work(group: Any) -> Any:
        own = given[group.place]
        long, other = all_gather(group, own, own[:, :1], dimension=0).wait()
        wide = all_gather(group, own, dimension=1).wait()
        return long, other, wide

    for long, other, wide in run(members, work):
        assert torch.equal(long, torch.cat(given))
        assert torch.equal(other, torch.cat([x[:, :1] for x in given]))
        assert torch.equal(wide, torch.cat(given, 1))


@given(
    sizes,
    st.sampled_from([0, 1, 5, 9_001, 300_001]),
    st.sampled_from(DTYPES),
    st.sampled_from(["sum", "max", "min"]),
    st.integers(0, 99),
)
def test_buffers_are_reduced_in_place(
    size: int, width: int, dtype: Any, reduction: str, seed: int
) -> None:
    if dtype == torch.bool and reduction == "sum":
        return
    members = make_members(size)
    given = [fill((width,), dtype, seed + i) for i in range(size)]
    wide = torch.stack([x.to(torch.float64) for x in given])
    expected = getattr(wide, {"sum": "sum", "max": "amax", "min": "amin"}[reduction])(0).to(dtype)

    def work(group: Any) -> Any:
        buffer = given[group.place].clone()
        all_reduce(group, buffer, reduction).wait()
        return buffer

    for buffer in run(members, work):
        assert torch.equal(buffer, expected)


@given(
    sizes,
    st.sampled_from([1, 6, 40_000]),
    st.sampled_from(DTYPES),
    st.sampled_from(["sum", "max"]),
    st.integers(0, 1),
    st.integers(0, 99),
)
def test_reductions_are_scattered(
    size: int, width: int, dtype: Any, reduction: str, dimension: int, seed: int
) -> None:
    if dtype == torch.bool and reduction == "sum":
        return
    members = make_members(size)
    shape = (size, width) if dimension == 0 else (width, size)
    given = [fill(shape, dtype, seed + i) for i in range(size)]
    kept = [x.clone() for x in given]
    wide = torch.stack([x.to(torch.float64) for x in given])
    whole = (wide.sum(0) if reduction == "sum" else wide.amax(0)).to(dtype)

    def work(group: Any) -> Any:
        x = given[group.place]
        pending = reduce_scatter(group, x, x, reduction=reduction, dimension=dimension)
        first, second = pending.wait()
        assert torch.equal(first, second)
        return first

    for place, found in enumerate(run(members, work)):
        assert torch.equal(found, whole.chunk(size, dimension)[place])
    assert all(torch.equal(x, y) for x, y in zip(given, kept, strict=True))


@given(sizes, st.sampled_from([1, 3, 30_000]), st.integers(0, 1), st.integers(0, 1), rows)
def test_pieces_go_to_all(size: int, width: int, split: int, concat: int, seed: int) -> None:
    members = make_members(size)
    shape = (size * 2, width * size)
    given = [fill(shape, torch.float32, seed + i) for i in range(size)]

    def work(group: Any) -> Any:
        return all_to_all(group, given[group.place], split=split, concat=concat).wait()

    for place, found in enumerate(run(members, work)):
        pieces = [x.chunk(size, split)[place] for x in given]
        assert torch.equal(found, torch.cat(pieces, concat))


@given(st.permutations(range(4)), st.lists(st.booleans(), min_size=4, max_size=4))
def test_values_are_sent_on(targets: list[int], sends: list[bool]) -> None:
    members = make_members(4)
    given = [fill((3, 5), torch.float32, i) for i in range(4)]
    pairs = tuple((i, target) for i, target in enumerate(targets) if sends[i])

    def work(group: Any) -> Any:
        x = given[group.place]
        return permute(group, x, x + 1, pairs=pairs).wait()

    origin = {target: source for source, target in pairs}
    for place, (first, second) in enumerate(run(members, work)):
        if place in origin:
            assert torch.equal(first, given[origin[place]])
            assert torch.equal(second, given[origin[place]] + 1)
        else:
            assert not first.any()
            assert not second.any()


def test_members_may_be_counted_in_another_order() -> None:
    order = [2, 0, 1]
    members = make_members(3, order)

    def work(group: Any) -> Any:
        own = torch.full((1, 2), float(group.index))
        gathered = all_gather(group, own, dimension=1).wait()
        scattered = reduce_scatter(
            group, torch.arange(3.0).repeat(2, 1), reduction="sum", dimension=1
        ).wait()
        moved = permute(group, own, pairs=((0, 1), (1, 2), (2, 0))).wait()
        return gathered, scattered, moved, group.index

    for gathered, scattered, moved, index in run(members, work):
        assert gathered.tolist() == [[0.0, 0.0, 1.0, 1.0, 2.0, 2.0]]
        assert scattered.tolist() == [[3.0 * index], [3.0 * index]]
        assert moved.tolist() == [[float((index - 1) % 3)] * 2]


def test_exchanges_may_be_waited_for_in_any_order() -> None:
    """More than have slots are begun; what is reduced in place goes on beside the others."""
    members = make_members(3)

    def work(group: Any) -> Any:
        buffers = [torch.full((20_000,), float(i)) for i in range(SLOTS)]
        sums = [all_reduce(group, buffer, "sum") for buffer in buffers]
        gathers = [
            all_gather(group, torch.tensor([[float(group.place + i)]]), dimension=0)
            for i in range(SLOTS)
        ]
        found = [pending.wait().flatten().tolist() for pending in reversed(gathers)]
        for pending in reversed(sums):
            pending.wait()
        return found, [buffer.unique().tolist() for buffer in buffers]

    for found, made in run(members, work):
        assert found == [[i, i + 1.0, i + 2.0] for i in reversed(range(SLOTS))]
        assert made == [[3.0 * i] for i in range(SLOTS)]


def test_what_nobody_waits_for_is_read_before_the_next() -> None:
    members = make_members(2)

    def work(group: Any) -> Any:
        all_gather(group, torch.full((1, 4), 1.0 + group.place), dimension=0)
        settle_abandoned(group)
        assert not group.host.begun
        return all_gather(group, torch.full((1, 1), 5.0 + group.place), dimension=0).wait()

    for found in run(members, work):
        assert found.tolist() == [[5.0], [6.0]]


def test_who_has_waited_keeps_nothing() -> None:
    members = make_members(2)

    def work(group: Any) -> list[Any]:
        buffer, x = torch.ones(100_000), torch.ones(2, 50_000)
        kept = [weakref.ref(buffer), weakref.ref(x)]
        all_reduce(group, buffer, "sum").wait()
        pending = reduce_scatter(group, x, reduction="sum", dimension=0)
        pending.wait()
        del pending, x, buffer
        return [one() for one in kept]

    for kept in run(members, work):
        assert kept == [None, None]


def test_parts_follow_the_order_of_dimensions() -> None:
    """Whatever stride a dimension of one element has, as over a network."""
    members = make_members(2)

    def work(group: Any) -> Any:
        x = torch.as_strided(torch.arange(8.0), (1, 8, 1, 1), (8, 1, 8, 8))
        moved = permute(group, x, pairs=((0, 1), (1, 0))).wait()
        pieces = all_to_all(group, x, split=1, concat=0).wait()
        return moved, pieces

    for moved, pieces in run(members, work):
        assert moved.stride() == (8, 1, 1, 1)
        assert pieces.stride() == (4, 1, 1, 1)


@pytest.mark.parametrize("cross_memory", [True, False])
def test_the_option_says_whether_collectives_go_that_way(
    cross_memory: bool, tmp_path: pathlib.Path
) -> None:
    text = JOB.replace("CROSS", str(cross_memory))
    done = torchrun(2, script(tmp_path, text))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"reads {cross_memory} 4.0\n") == 2


JOB = """
import mithril as ml
from mithril_torch.program.runtime_library.groups import GROUPS

backend = ml.TorchBackend(ml.Mesh(data=2), device="cpu", cross_memory=CROSS)
total = backend.ones(4, sharding=ml.P("data")).sum().item()
(group,) = GROUPS.values()
print(f"reads {group.host is not None and group.host.number > 0} {total}\\n", end="", flush=True)
"""


# ------------------------------------------------------------------ what if not


def test_one_that_has_ended_is_not_waited_for() -> None:
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    other, own = OtherProcess(ended.pid, 1), Introduction(2)
    assert own.file is not None
    text = rf"^Connection closed: rank 1 \(process {ended.pid}\) has ended$"
    with pytest.raises(RuntimeError, match=text) as caught:
        Semaphore(own.file, 0).wait(other, timeout=60.0)
    assert is_secondary_failure(str(caught.value))
    ended.wait()
    semaphore = Semaphore(own.file, 0)
    semaphore.post()
    semaphore.wait(other, timeout=60.0)  # what it did before


def test_one_that_does_nothing_is_waited_for_so_long() -> None:
    other, own = OtherProcess(os.getpid(), 3), Introduction(2)
    assert own.file is not None
    text = rf"^Timed out waiting 0.1 s for rank 3 \(process {os.getpid()}\) to exchange data$"
    with pytest.raises(RuntimeError, match=text) as caught:
        Semaphore(own.file, 0).wait(other, timeout=0.1)
    assert is_secondary_failure(str(caught.value))


def test_memory_that_is_gone_is_not_read() -> None:
    text = r"^Connection closed: rank 0 \(process \d+\) has no such memory; Bad address$"
    with pytest.raises(RuntimeError, match=text):
        OtherProcess(os.getpid(), 0).read(8, torch.empty(4))


def test_nor_what_the_kernel_lets_nobody_read_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        ctypes.set_errno(errno.EPERM)
        return -1

    libc = SimpleNamespace(process_vm_readv=refuse)
    monkeypatch.setattr(cross_memory, "load_libc", lambda: libc)
    text = (
        r"^rank 0 \(process \d+\) may not be read any more; Operation not permitted; keep the "
        r"process that started both of them alive, or give the backend cross_memory=False$"
    )
    with pytest.raises(RuntimeError, match=text):
        OtherProcess(os.getpid(), 0).read(8, torch.empty(4))


@pytest.mark.parametrize("what", ["sizes", "parts", "kind", "reduction"])
def test_processes_that_begin_something_else_are_told_so(what: str) -> None:
    members = make_members(2, timeout=0.5)

    def work(group: Any) -> Any:
        is_first = group.place == 0
        x = torch.ones(2, 4)
        if what == "sizes":
            return all_gather(group, x if is_first else x[:1], dimension=0).wait()
        if what == "parts":
            return all_gather(group, *([x] if is_first else [x[:1], x[:1]]), dimension=0).wait()
        if what == "reduction":
            return all_reduce(group, x, "sum" if is_first else "max").wait()
        if is_first:
            return all_gather(group, x[:1], dimension=0).wait()
        return all_to_all(group, x, split=0, concat=0).wait()

    text = (
        r"^rank 1 \(process \d+\) takes no part in \w+( of sum)? number 0, which this process has "
        r"begun; \d+ bytes instead of \d+; one of them raised an error before, or was given other "
        r"shapes$"
    )
    with pytest.raises(RuntimeError, match=text):
        run(members, work)


@pytest.mark.parametrize("what", [0, 1, 2, 3, 5])
def test_processes_that_are_not_what_they_say_are_not_read(what: int) -> None:
    """One that cannot take part, another host, no such process, no such file, another memory."""
    told = [Introduction(2) for _ in range(2)]
    known = [own.known.clone() for own in told]
    known[1][what] = {0: 0, 2: 1 << 22, 3: 1 << 20}.get(what, 7)
    gc.collect()
    before = len([*pathlib.Path("/proc/self/fd").iterdir()])
    assert reach_others(told[0], known, 0, [0, 1], 1.0) is None
    assert len([*pathlib.Path("/proc/self/fd").iterdir()]) <= before


def test_nor_is_a_file_of_theirs_that_is_too_small(tmp_path: pathlib.Path) -> None:
    told = [Introduction(2) for _ in range(2)]
    with (tmp_path / "small").open("w+b") as small:
        small.write(b"1")
        small.flush()
        told[1].known[3] = small.fileno()
        assert reach_others(told[0], [own.known for own in told], 0, [0, 1], 1.0) is None


def test_a_system_without_it_takes_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    load_libc.cache_clear()
    own = Introduction(2)
    load_libc.cache_clear()
    assert not own.known.any()
    assert own.file is None


def test_a_loopback_device_that_is_limited_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_rendezvous, "is_loopback_limited", lambda: True)
    own = Introduction(2)
    assert not own.known.any()
    assert own.file is None


@pytest.mark.parametrize(
    ("scope", "parent", "named"), [("0", 7, 0), ("1", 7, 7), ("1", 1, 0), ("2", 7, 0)]
)
def test_the_parent_may_read_where_it_has_to_be_named(
    scope: str, parent: int, named: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 1 would be everybody."""
    told: list[int] = []
    libc = SimpleNamespace(prctl=lambda option, process, *_: told.append(process.value))
    monkeypatch.setattr(cross_memory, "load_libc", lambda: libc)
    monkeypatch.setattr(cross_memory, "read_scope", lambda: scope)
    monkeypatch.setattr(os, "getppid", lambda: parent)
    cross_memory.allow_reading()
    assert told == [named] * bool(named)


def test_files_have_room_for_all_slots() -> None:
    own = Introduction(3)
    assert own.file is not None
    assert len(own.file.map) == 3 * SLOTS * SLOT
    assert own.known[0] == 1
