"""What an all_gather is over Gloo: messages between all pairs of a small group."""

from __future__ import annotations

import pathlib
from typing import Any

import mithril as ml
import numpy as np
import pytest
import torch
from mithril.errors import BackendError
from mithril_torch.executors.observed import to_plan_row
from mithril_torch.executors.pool.controller import Pool
from mithril_torch.program.runtime_library.gathers import APART, all_gather

from tests.torch.jobs import script, torchrun
from tests.torch.test_memory import count_peak


class Message:
    """One that has arrived, or left."""

    waited = 0

    def wait(self) -> None:
        """Count that it was waited for."""
        Message.waited += 1


class Mailbox:
    """A process group in which what others send is a multiple of what this process does."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self.messages: list[tuple[str, int, int]] = []  # what, the other process, elements

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Message:
        """Remember what went where."""
        self.sent.append((rank, tag))
        self.messages.append(("send", rank, tensors[0].numel()))
        return Message()

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Message:
        """Fill what is asked for with the number of the process that sends it."""
        tensors[0].fill_(rank)
        self.messages.append(("receive", rank, tensors[0].numel()))
        return Message()


class Members:
    """Processes of Gloo."""

    host, scatters, gathers, gathered = None, False, False, 0

    def __init__(self, size: int, place: int, places: list[int] | None = None) -> None:
        self.size, self.place, self.index, self.places = size, place, place, places
        self.process_group = Mailbox()
        self.begun: list[Any] = []
        self.abandoned: list[Any] = []


@pytest.mark.parametrize("place", [0, 1, 3])
def test_each_part_is_where_its_process_stands(place: int) -> None:
    group: Any = Members(4, place)
    pending = all_gather(group, torch.full((2, 3), float(place)), dimension=1)
    assert sorted(rank for rank, _ in group.process_group.sent) == sorted({0, 1, 2, 3} - {place})
    Message.waited = 0
    made = pending.wait()
    assert Message.waited == 6  # what is sent belongs to the caller again, too
    assert torch.equal(made, torch.arange(4.0).repeat_interleave(3).expand(2, 12))


def test_places_of_a_mesh_may_be_in_another_order() -> None:
    group: Any = Members(3, 0, [2, 0, 1])
    made = all_gather(group, torch.zeros(1), dimension=0).wait()
    assert made.tolist() == [2.0, 0.0, 1.0]


def test_several_values_travel_together_and_each_gather_has_a_tag() -> None:
    group: Any = Members(2, 0)
    first = all_gather(group, torch.zeros(2), torch.zeros(1, 2), dimension=0)
    second = all_gather(group, torch.zeros(0), dimension=0)
    third = all_gather(group, torch.zeros(1), dimension=0)
    assert len({tag for _, tag in group.process_group.sent}) == 2
    assert [x.tolist() for x in first.wait()] == [[0, 0, 1, 1], [[0, 0], [1, 1]]]
    assert second.wait().tolist() == []
    assert third.wait().tolist() == [0, 1]


def test_large_parts_arrive_where_they_belong() -> None:
    """Small ones in one buffer; each is in its place in any order."""
    group: Any = Members(3, 1)
    size = APART // 4
    given = [torch.full((2,), 1.0), torch.full((size, 1), 1.0), torch.full((1, 2), 1.0)]
    most, _ = count_peak(lambda: all_gather(group, *given, dimension=0).wait())
    assert most < 3 * APART + 1000
    made = all_gather(group, *given, dimension=0).wait()
    for x, found in zip(given, made, strict=True):
        expected = torch.cat([torch.full(x.shape, float(rank)) for rank in range(3)])
        assert torch.equal(found, expected) and found.is_contiguous()
    turned = all_gather(group, given[1].T, dimension=1).wait()
    assert torch.equal(turned, torch.arange(3.0).repeat_interleave(size).view(1, -1))


GATHER = """
def run(inputs):
    group = make_group("data", [list(range(world_size))], cross_memory=CROSS)
    work = all_gather(group, torch.full((SIZE,), float(rank)), dimension=0)
    FAULT
    return [work.wait()]
"""


@pytest.mark.parametrize("cross_memory", [True, False])
@pytest.mark.parametrize("size", [10, APART])
def test_what_an_error_leaves_behind_harms_nobody(size: int, cross_memory: bool) -> None:
    """All have begun a gather, and none waits for it; the next ones are right."""
    pool = Pool.of(2, timeout=20.0)
    text = GATHER.replace("SIZE", str(size)).replace("CROSS", str(cross_memory))
    pool.load("good", text.replace("FAULT", "pass"), None)
    pool.load("bad", text.replace("FAULT", "raise ValueError('a')"), None)
    for _ in range(3):
        with pytest.raises(BackendError, match=r"each raised ValueError: a .*all workers go on"):
            pool.run("bad", [], 1)
        (handle,) = pool.run("good", [], 1)
        made = pool.fetch(handle, 1).data.view(np.float32)
        np.testing.assert_array_equal(made, np.repeat(np.float32([0, 1]), size))
    pool.close()


@pytest.mark.parametrize("cross_memory", [True, False])
def test_nor_in_a_job(tmp_path: pathlib.Path, cross_memory: bool) -> None:
    done = torchrun(2, script(tmp_path, FAILS.replace("CROSS", str(cross_memory))))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" [0.0, 1.0]") == 4


FAILS = """
import torch
import torch.distributed as dist
from mithril_torch.program.runtime_library import all_gather, make_group

dist.init_process_group("gloo")
group = make_group("data", [[0, 1]], cross_memory=CROSS)
assert (group.host is not None) == CROSS

def step(fails):
    work = all_gather(group, torch.full((1,), float(dist.get_rank())), dimension=0)
    if fails:
        raise ValueError
    return work.wait().tolist()

for _ in range(2):
    try:
        step(True)
    except ValueError:
        print(f"after {step(False)}\\n", end="", flush=True)
dist.destroy_process_group()
"""


def test_it_is_told_as_a_gather_if_all_took_part() -> None:
    row = {"op": "all_gather_by_messages", "ranks": [0, 1, 2], "axes": ["data"], "bytes": 8}
    assert to_plan_row({**row, "partners": 2}) == ("all_gather", ("data",), 24)
    assert to_plan_row({**row, "partners": 1}) == ("send", ("data",), 8)


@pytest.mark.parametrize("cross_memory", [True, False])
@pytest.mark.parametrize("ranks", [2, 3])
def test_what_was_carried_out_is_the_plan(ranks: int, cross_memory: bool) -> None:
    backend = ml.TorchBackend(ml.Mesh(data=ranks), device="cpu", cross_memory=cross_memory)
    model = ml.Linear(6, bias=False)
    shapes = {"input": ml.TensorSpec((6, 8), "float32", ml.P("data"))}
    compiled = ml.compile(model, backend, shapes=shapes, at_rest={"weight": ml.P("data")})
    x = np.arange(48, dtype=np.float32).reshape(6, 8)
    weight = np.arange(48, dtype=np.float32).reshape(6, 8)
    params = {"weight": backend.array(weight, sharding=ml.P("data"))}
    given = {"input": backend.array(x, sharding=ml.P("data"))}
    executed: list[object] = []
    for _ in range(2):
        executed.clear()
        outputs = compiled.evaluate(params, given, observe=lambda told: executed.append(told.row))
        np.testing.assert_array_equal(outputs["output"].numpy(), x @ weight.T)
    assert tuple(executed) == compiled.plan.list_issued()
    assert [row[0] for row in compiled.plan.list_issued()] == ["all_gather"]


@pytest.mark.parametrize("place", [0, 2])
def test_receives_are_posted_before_sends_and_in_their_order(place: int) -> None:
    """Those of two processes belong together by their order; Gloo lets a late receive wait."""
    group: Any = Members(3, place)
    large = [torch.zeros(APART // 4 * times) for times in (1, 3, 2)]
    all_gather(group, torch.zeros(5), *large, dimension=0).wait()
    messages = group.process_group.messages
    assert [what for what, _, _ in messages] == ["receive"] * 8 + ["send"] * 8
    for other in {0, 1, 2} - {place}:
        received, sent = (
            [size for kind, rank, size in messages if (kind, rank) == (wanted, other)]
            for wanted in ("receive", "send")
        )
        assert received == sent
        assert len(sent) == 4
