"""The pool in good times: arrays in and out, programs, what is told along the way, its refusals."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from mithril.errors import BackendError
from mithril_torch.executors.pool import controller, memory, remote_array
from mithril_torch.executors.pool.controller import Pool
from mithril_torch.executors.pool.messages import SMALL
from mithril_torch.executors.pool.remote_array import Part

from tests.profiles import quick
from tests.runtime.jobs import open_files
from tests.torch.pool.programs import SUM, SourceMap, load

SAME = "def run(inputs): return list(inputs)"
HELD = """
import sys
def run(inputs):
    held = sys._getframe(1).f_locals["self"].tensors.values()
    return [torch.tensor(sum(x.shape == (777,) for x in held))]
"""
LOADED = """
import sys
def run(inputs):
    return [torch.tensor("twice" in sys._getframe(1).f_locals["self"].programs)]
"""
ALIVE = """
import weakref
def run(inputs):
    references = [weakref.ref(x) for x in inputs]
    inputs.clear()
    return [torch.tensor([reference() is not None for reference in references])]
"""


def array(part: Part, dtype: object = None) -> np.ndarray:
    return part.data.view(dtype or part.spec.dtype).reshape(part.spec.shape)


@quick(lambda dtype, shape: shape == (5, 200) or dtype == "float32")
@pytest.mark.parametrize(
    "dtype",
    [
        "bool", "uint8", "int8", "int16", "int32", "int64", "uint32", "float16", "float32", "float64",
        "complex64", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn,
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (5, 200), (2, 3, 4)], ids=str)
def test_arrays_go_in_and_out_as_they_are(pool: Pool, dtype: object, shape: tuple[int, ...]):
    parts = [(np.arange(np.prod(shape)) % 5 + rank).reshape(shape).astype(dtype) for rank in (0, 1)]
    program = load(pool, SAME)
    handle = pool.put(parts)
    [result] = pool.run(program, [handle], 1)
    for rank, part in enumerate(parts):
        for back in (pool.fetch(handle, rank), pool.fetch(result, rank)):
            assert back.spec == remote_array.Spec(part.dtype.name, part.shape, part.nbytes)
            np.testing.assert_array_equal(array(back, dtype), part)


def test_the_type_can_be_given(pool: Pool):
    bits = np.array([0x3F80, 0xC000], np.uint16)
    handle = pool.put([bits, bits], dtype="bfloat16")
    program = load(pool, "def run(inputs): return [inputs[0].to(torch.float32)]")
    [result] = pool.run(program, [handle], 1)
    np.testing.assert_array_equal(array(pool.fetch(result, 1)), [1.0, -2.0])


def test_views_that_are_not_contiguous(pool: Pool):
    whole = np.arange(24.0).reshape(4, 6)
    parts = [whole[:, ::2].T, np.broadcast_to(whole[0], (3, 6))]
    handle = pool.put(parts)
    program = load(
        pool, "def run(inputs): return [inputs[0].T.conj(), inputs[0].expand(99, -1, -1)]"
    )
    turned, wide = pool.run(program, [handle], 2)
    for rank, part in enumerate(parts):
        np.testing.assert_array_equal(array(pool.fetch(turned, rank)), part.T)
        np.testing.assert_array_equal(array(pool.fetch(wide, rank)), [part] * 99)


def test_what_is_put_is_a_copy(pool: Pool):
    part = np.zeros(100)
    handle = pool.put([part, part])
    part[:] = 1
    np.testing.assert_array_equal(array(pool.fetch(handle, 1)), np.zeros(100))


def test_an_array_for_all_ranks_takes_its_space_once(pool: Pool):
    part = np.ones(100_000)
    pool.fetch(pool.put([np.zeros(1)]), 0)  # sends what waited
    handle = pool.put([part] * 2)
    assert pool._batcher.arena.top < 1.1 * part.nbytes
    np.testing.assert_array_equal(array(pool.fetch(handle, 1)), part)


def test_more_arrays_than_the_arena_keeps(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(controller, "FLUSH", 1 << 20)
    monkeypatch.setattr("mithril_torch.executors.pool.batching.KEEP", 1 << 20)
    parts = [np.full(200_000, value) for value in range(8)]
    handles = [pool.put([part, -part]) for part in parts]
    found = pool.fetch_all([(handle, rank) for handle in handles for rank in (1, 0)])
    expected = [sign * part for part in parts for sign in (-1, 1)]
    for part, value in zip(found, expected, strict=True):
        np.testing.assert_array_equal(array(part), value)
    assert pool._batcher.arena.size == 1 << 20


def test_collectives_and_ranks(pool: Pool):
    program = load(pool, SUM)
    handle = pool.put([np.full((2, 50), rank + 1.0, np.float32) for rank in range(2)])
    [total] = pool.run(program, [handle], 1)
    np.testing.assert_array_equal(array(pool.fetch(total, 0)), np.full((2, 50), 3))


def test_a_program_sees_its_rank_and_the_runtime_library(pool: Pool):
    program = load(
        pool,
        "here = [rank, world_size, torch.get_num_threads(), torch.is_inference_mode_enabled()]\n"
        "def run(inputs): return [torch.tensor(here), aten.neg(torch.ones(2, device=device))]",
    )
    [told, ones] = pool.run(program, [], 2)
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    for rank in range(2):
        np.testing.assert_array_equal(array(pool.fetch(told, rank)), [rank, 2, threads, 1])
    np.testing.assert_array_equal(array(pool.fetch(ones, 0)), [-1, -1])


def test_small_results_come_with_the_answer(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    count = SMALL // 4
    program = load(
        pool,
        "def run(inputs):\n"
        f"    return [torch.full(({count},), float(rank)), torch.ones({count + 1}), torch.tensor(rank)]",
    )
    outputs = pool.run(program, [], 3)
    monkeypatch.setattr(pool, "_request", lambda *arguments: pytest.fail("a message was sent"))
    for rank in range(2):
        np.testing.assert_array_equal(array(pool.fetch(outputs[0], rank)), [rank] * count)
        np.testing.assert_array_equal(array(pool.fetch(outputs[2], rank)), rank)
    assert outputs[1].small(0) is None
    assert outputs[1].spec(0) == remote_array.Spec("float32", (count + 1,), 4 * count + 4)


def test_shapes_may_change_between_runs_and_ranks(pool: Pool):
    program = load(pool, "def run(inputs): return [inputs[0].repeat(rank + 1)]")
    for length in (3, 3, 100, 5):
        [result] = pool.run(program, [pool.put([np.ones(length)] * 2)], 1)
        assert [array(pool.fetch(result, rank)).size for rank in (0, 1)] == [length, 2 * length]


def test_dropped_handles_are_freed_with_the_next_message(pool: Pool):
    program = load(pool, HELD)
    part = np.zeros(777)

    def count() -> int:
        return int(array(pool.run(program, [], 1)[0].small(1)))  # type: ignore[arg-type]

    before = count()
    handles = [pool.put([part, part]) for _ in range(3)]
    assert count() == before + 3
    del handles[0]
    assert count() == before + 2
    passing = pool.put([part, part])
    del passing  # never sent
    assert count() == before + 2
    del handles
    assert count() == before


def test_donated_inputs_are_the_programs_alone(pool: Pool):
    program = load(pool, ALIVE)
    kept, given = (pool.put([np.zeros(777)] * 2) for _ in range(2))
    [alive] = pool.run(program, [kept, given], 1, donate=[1])
    assert array(pool.fetch(alive, 0)).tolist() == [True, False]
    with pytest.raises(BackendError, match="cannot be used; it was donated to a program; make it"):
        pool.run(program, [given], 1)
    assert array(pool.fetch(kept, 0)).size == 777


def test_recorded_collectives(pool: Pool):
    program = load(
        pool,
        "import torch.distributed as dist\n"
        "import torch.distributed._functional_collectives as functional\n"
        "alone = [dist.new_group([r]) for r in range(2)][rank]\n"
        "def run(inputs):\n"
        "    x, pair = torch.ones(4), torch.empty(8)\n"
        "    step[0] = 7\n"
        "    dist.all_reduce(x, group=alone)\n"
        "    step[0] = 8\n"
        "    dist.all_gather_into_tensor(pair, x)\n"
        "    dist.all_to_all_single(pair[:3], pair[:3].clone(), [3 * rank, 3 - 3 * rank], "
        "[3 * rank, 3 - 3 * rank])\n"
        "    dist.all_to_all_single(pair, pair.clone())\n"
        "    return [functional.all_reduce(pair.half(), 'sum', dist.group.WORLD).clone()]",
    )
    outputs, rows = pool.run_recorded(program, [], 1)
    np.testing.assert_array_equal(array(pool.fetch(outputs[0], 0)), [2] * 8)
    for rank in range(2):
        told = [(r["op"], r["ranks"], r["bytes"], r["partners"], r["step"]) for r in rows[rank]]
        assert told == [
            ("allreduce_", [rank], 16, 1, 7),
            ("_allgather_base_", [0, 1], 16, 2, 8),
            ("alltoall_base_", [0, 1], 12, 1, 8),
            ("alltoall_base_", [0, 1], 32, 2, 8),
            ("all_reduce", [0, 1], 16, 2, 8),
        ]
        assert [(r["dtype"], r["shape"]) for r in rows[rank]][-1] == ("float16", [8])


def test_threads_take_turns(pool: Pool):
    program = load(pool, SUM)
    wrong: list[object] = []

    def work(number: int) -> None:
        for turn in range(20):
            value = float(100 * number + turn)
            handle = pool.put([np.full(300, value), np.full(300, 1.0)])
            [total] = pool.run(program, [handle], 1)
            if not (array(pool.fetch(total, turn % 2)) == value + 1).all():
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.slow
def test_settings_make_pools(pool: Pool):
    assert Pool.of(2) is pool
    other = Pool.of(2, timeout=30.0)
    assert other is not pool
    handle = other.put([np.ones(3)])
    with pytest.raises(BackendError, match=r"^Array \d+ is on another worker pool, of 2; open the"):
        pool.run(load(pool, SAME), [handle], 1)
    other.close()
    assert pool.is_alive


def test_names_of_programs(pool: Pool):
    pool.load("twice", SAME, SourceMap())
    with pytest.raises(BackendError, match=r"Program 'twice' is loaded already; \d+ programs are;"):
        pool.load("twice", SAME, SourceMap())
    look = load(pool, LOADED)
    assert array(pool.fetch(pool.run(look, [], 1)[0], 0))
    pool.unload("twice")
    pool.load("twice", SUM, SourceMap())
    pool.unload("twice")
    assert not array(pool.fetch(pool.run(look, [], 1)[0], 0))


def test_the_garbage_collector_may_unload(pool: Pool):
    """It runs anywhere, also where this thread already talks to the workers."""
    pool.load("twice", SAME, SourceMap())
    handles = [pool.put([np.ones(3)])]
    with pool._connection.lock:
        pool.unload("twice")
        handles.clear()
    pool.load("twice", SAME, SourceMap())
    pool.unload("twice")


def test_memory_that_cannot_be_had(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    def refuse(*arguments: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    program = load(pool, "def run(inputs): return [torch.ones(10_000_000)]")
    [large] = pool.run(program, [], 1)
    part = np.ones(pool._batcher.arena.size // 8 + 1)
    text = "^Worker pool cannot get shared memory; {} bytes: Cannot allocate memory; use smaller"
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(BackendError, match=text.format(part.nbytes * 2)):
            pool.put([part, part + 1])
        if pool._batcher.arena.size < 40_000_000:
            with pytest.raises(BackendError, match=text.format(40_000_000)):
                pool.fetch(large, 0)
    assert array(pool.fetch(large, 0)).size == 10_000_000


def test_nothing_listens_beyond_loopback(pool: Pool):
    pool.run(load(pool, SUM), [pool.put([np.ones(3)])], 1)
    inodes = set()
    for pid in pool.pids:
        for file in open_files(pid):
            found = re.fullmatch(r"socket:\[(\d+)\]", file)
            inodes |= {found[1]} if found else set()
    listening = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes:
                listening.append((table, fields[1].partition(":")[0], fields[3]))
    assert any(state == "0A" for _, _, state in listening)
    assert {(table, address) for table, address, _ in listening} == {("tcp", "0100007F")}


def test_shared_memory_has_no_name(pool: Pool):
    pool.fetch(pool.put([np.ones(3)]), 0)
    for pid in pool.pids:
        shared = [
            line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if " rw-s " in line
        ]
        assert len(shared) >= 2
        names = ("/memfd:mithril (deleted)", "/memfd:channels (deleted)")
        assert all(line.endswith(names) for line in shared)


def test_workers_import_no_core(pool: Pool):
    program = load(
        pool,
        "import sys\n"
        "def run(inputs): return [torch.tensor([n in sys.modules for n in ('mithril', 'jax')])]",
    )
    assert not array(pool.fetch(pool.run(program, [], 1)[0], 0)).any()


def test_the_arena_gives_back_what_it_does_not_keep():
    arena = memory.Arena(memory.anonymous_file())
    assert [arena.reserve(100), arena.reserve(1)] == [0, 128]
    arena.buffer[128] = 7
    arena.reserve(5_000_000)
    assert arena.buffer[128] == 7
    size = os.fstat(arena.descriptor).st_size
    assert arena.size == size >= 5_000_000
    arena.top = 0
    arena.shrink(1 << 20)
    assert os.fstat(arena.descriptor).st_size == arena.size == 1 << 20
    arena.close()
