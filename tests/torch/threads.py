"""Ranks as threads of one process: what a text of several stages does, step by step.

Messages pass as between processes: what is sent is on its way only once it is asked for, and who
waits for it waits until then. A wait that would be for ever ends with an error.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from mithril.engine.shards import host_shards
from mithril.plan import Plan
from mithril_torch.program import runtime_library
from mithril_torch.program.codegen_options import CodegenOptions
from mithril_torch.program.staged import write_plan
from mithril_torch.tensors import to_numpy, to_tensor
from torch.utils._python_dispatch import TorchDispatchMode

LONG = 20.0
"""Seconds after which a wait counts as one for ever."""
Sent = tuple[int, int, int]
"""Sender, receiver and tag of a message."""


@dataclass
class Wires:
    """Messages by sender, receiver and tag: asked for, and sent."""

    asked: dict[Sent, Future[None]] = field(default_factory=dict)
    sent: dict[Sent, Future[torch.Tensor]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, key: Sent) -> tuple[Future[None], Future[torch.Tensor]]:
        with self.lock:
            return self.asked.setdefault(key, Future()), self.sent.setdefault(key, Future())


@dataclass
class Message:
    """Either end of a message; who sends keeps the tensor until it is told to wait."""

    own: torch.Tensor
    asked: Future[None]
    sent: Future[torch.Tensor]
    is_here: bool

    def wait(self) -> torch.Tensor:
        if self.is_here:
            return self.own.copy_(self.sent.result(LONG))
        self.asked.result(LONG)
        return self.own


class Live(TorchDispatchMode):
    """Counts the bytes of tensors that are alive in a thread, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for x in made if isinstance(made, tuple | list) else [made]:
            if isinstance(x, torch.Tensor):
                self._count(x.untyped_storage())
        return made

    def _count(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()
        self._known.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


class Steps(list[int]):
    """What a program notes its steps in: keeps all of them."""

    def __setitem__(self, place: Any, step: Any) -> None:
        self.append(step)


@dataclass
class Ran:
    """What ranks did.

    Args:
        outputs: by name, what each rank has of it.
        steps: what each rank came to, in words.
        most: bytes of tensors that were alive at once on each rank, its inputs aside.
    """

    outputs: Mapping[str, list[np.ndarray | None]]
    steps: list[list[str]]
    most: list[int]


def run_in_threads(plan: Plan, inputs: Mapping[str, np.ndarray], *, early: bool = True) -> Ran:
    """Run a plan that has no collectives, each rank in a thread."""
    written = write_plan(plan, {}, CodegenOptions(early=early))
    wires = Wires()
    ranks = range(plan.mesh.size)
    with ThreadPoolExecutor(len(ranks)) as pool:
        waiting = [pool.submit(_rank, plan, written.text, rank, wires, inputs) for rank in ranks]
        found = [each.result() for each in waiting]
    outputs = {
        port.name: [results[number] for results, _, _ in found]
        for number, port in enumerate(plan.outputs)
    }
    steps = [[written.steps[number] for number in steps] for _, steps, _ in found]
    return Ran(outputs, steps, [most for *_, most in found])


def _rank(
    plan: Plan, text: str, rank: int, wires: Wires, inputs: Mapping[str, np.ndarray]
) -> tuple[list[np.ndarray | None], Sequence[int], int]:
    def send(group: Any, x: torch.Tensor, to: int, tag: int) -> Message:
        asked, sent = wires.of((rank, to, tag))
        sent.set_result(torch.from_numpy(to_numpy(x).copy()))  # not counted
        return Message(x, asked, sent, False)

    def receive(group: Any, x: torch.Tensor, source: int, tag: int) -> Message:
        asked, sent = wires.of((source, rank, tag))
        asked.set_result(None)
        return Message(x, asked, sent, True)

    steps, live = Steps(), Live()
    names = {
        **vars(runtime_library), "rank": rank, "device": "cpu", "step": steps, "send": send,
        "receive": receive, "make_group": lambda *_, **how: None,
    }  # fmt: skip
    exec(compile(text, "<stages>", "exec"), names)
    given = []
    for port in plan.inputs:
        flat, host = port.sharding.mesh.flat, inputs[port.name]
        parts = host_shards(port.type, port.sharding, lambda box, host=host: host[box])
        given.append(to_tensor(parts[flat.index(rank)]) if rank in flat else None)
    with torch.inference_mode(), live:
        results = names["run"](given)
    return [None if x is None else to_numpy(x) for x in results], steps, live.most
