"""Handles messages in a worker: holds its tensors and programs, and answers every message.

An exception in a program becomes an answer. The namespace of a program is a copy of the runtime
library with `step` (a program writes the number of its step to `step[0]`), `rank`, `world_size`,
`device`.
"""

from __future__ import annotations

import linecache
import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from mithril_torch.executors.pool import memory
from mithril_torch.executors.pool.allocations import count_allocations
from mithril_torch.executors.pool.marks import make_mark
from mithril_torch.executors.pool.messages import SMALL, Message, encode
from mithril_torch.executors.pool.recorder import record_collectives
from mithril_torch.program import runtime_library
from mithril_torch.program.runtime_library.exchange_layout import flatten_row
from mithril_torch.program.runtime_library.groups import GROUPS
from mithril_torch.program.runtime_library.pending import settle_abandoned
from mithril_torch.program.runtime_library.point_to_point import MESSAGES, SENDS

LONGEST = 2000
"""Characters of the text of an exception that are told."""

Run = Callable[[list[torch.Tensor | None]], Sequence[torch.Tensor | None]]


def file_of(program: str) -> str:
    """Return the name under which the lines of a program stand in a traceback."""
    return f"<program {program}>"


class MessageHandler:
    """The tensors and programs of one rank."""

    def __init__(self, setup: dict[str, Any], progress: memory.Progress) -> None:
        self.rank: int = setup["rank"]
        self.size: int = setup["size"]
        self.progress = progress
        self.arena = memory.Arena(setup["arena"])
        self.tensors: dict[int, torch.Tensor | None] = {}  # None: only others have it
        self.programs: dict[str, Run] = {}
        self.blocks: dict[str, torch.Tensor | None] = {}  # in which programs keep results
        self.next_waiting = 0
        self.stamps: list[float] = []
        self.layouts: dict[str, list[tuple[torch.dtype, torch.Size] | None]] = {}
        self.device = _open_device(setup["device"], self.rank)
        self._mark = make_mark(self.stamps, self.device.type)
        self._setup = setup
        self._actions: dict[str, Callable[[dict[str, Any]], tuple[dict[str, Any], bytes]]] = {
            "join": self._join,
            "take": lambda header: ({}, b""),
            "load": self._load,
            "run": self._run,
            "fetch": self._fetch,
            "count": self._count,
            "meet": self._barrier,
        }

    def handle(self, message: Message) -> bytes:
        """Do what a message says and return the answer."""
        header = message.header
        try:
            with torch.inference_mode():
                self._apply_batch(header)
                answer, payload = self._actions[header["do"]](header)
                if self.device.type == "cuda":
                    torch.cuda.synchronize()
            return encode(answer, payload)
        except BaseException as error:  # SystemExit in a program must be told, too
            step, activity = self.progress.read(self.rank)
            program = None if activity == memory.EARLIER else header.get("program")
            return encode({"error": _describe_error(error, program, step, activity)})

    def _join(self, header: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Meet the others, who are there by now: how slow a start was is not held against them."""
        self.progress.enter(self.rank, memory.STARTING)
        setup = self._setup
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        torch.set_num_threads(max(1, (cores or 1) // self.size))
        dist.init_process_group(
            setup["backend"],
            store=FileStore(setup["store"], self.size),
            rank=self.rank,
            world_size=self.size,
            timeout=timedelta(seconds=setup["timeout"]),
            device_id=self.device if self.device.type == "cuda" else None,
        )
        return {}, b""

    def _apply_batch(self, header: dict[str, Any]) -> None:
        """Copy new arrays out of the arena, run what waited, drop what no one needs any more."""
        puts = header.get("put", ())
        if puts or "fetch" in header:
            self.progress.enter(self.rank, memory.TAKING)
            self.arena.follow(header["arena"])
        for number, dtype, parts in puts:
            part = parts[self.rank] if len(parts) > 1 else parts[0]
            self.tensors[number] = part and self._copy(part[0], getattr(torch, dtype), part[1])
        for row in header.get("runs", ()):
            self._run_deferred(*row)
        for program in header.get("unload", ()):
            self._unload(program)
        for number in header["drop"]:
            self.tensors.pop(number, None)

    def _run_deferred(self, program: str, inputs: list[int], first: int, count: int) -> None:
        """Run a program whose run waited for a message, unless an earlier try of it did."""
        if first >= self.next_waiting:
            self.progress.enter(self.rank, memory.EARLIER)
            outputs = self.programs[program]([self.tensors[number] for number in inputs])
            self.tensors.update(zip(range(first, first + count), outputs, strict=True))
            self.next_waiting = first + count

    def _copy(self, start: int, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=dtype, device=self.device)
        if tensor.numel():
            size = tensor.numel()
            tensor.view(-1).copy_(
                torch.frombuffer(self.arena.buffer, dtype=dtype, count=size, offset=start)
            )
        return tensor

    def _load(self, header: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        self.progress.enter(self.rank, memory.LOADING)
        name, source = header["program"], header["source"]
        namespace = dict(vars(runtime_library))
        namespace.update(
            __name__=name,
            step=self.progress.steps(self.rank),
            rank=self.rank,
            world_size=self.size,
            device=self.device,
            mark=self._mark,
        )
        file = file_of(name)
        linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
        exec(compile(source, file, "exec", dont_inherit=True), namespace)
        self.programs[name] = namespace["run"]
        self.blocks[name] = namespace.get("arena")
        return {}, b""

    def _unload(self, program: str) -> None:
        self.programs.pop(program, None)
        self.blocks.pop(program, None)
        self.layouts.pop(program, None)
        linecache.cache.pop(file_of(program), None)

    def _run(self, header: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        name = header["program"]
        self.progress.enter(self.rank, memory.RUNNING)
        inputs = [self.tensors[number] for number in header["in"]]
        for position in header["donate"]:
            self.tensors.pop(header["in"][position], None)
        steps, kind = self.progress.steps(self.rank), header["record"]
        measured: dict[str, Any] = {}
        with record_collectives(steps) if kind == "collectives" else nullcontext() as rows:
            if kind.startswith("times"):
                outputs, measured = self._measure(name, inputs, kind)
            else:
                outputs = self.programs[name](inputs)
        first, count = header["out"]
        if len(outputs) != count:
            raise ValueError(f"the program returned {len(outputs)} tensors; {count} were expected")
        self.tensors.update(enumerate(outputs, first))
        answer: dict[str, Any] = {} if rows is None else {"rows": rows}
        if measured:
            answer["measured"] = measured
        layout = [None if x is None else (x.dtype, x.shape) for x in outputs]
        if self.layouts.get(name) != layout or header["is_first"]:
            self.layouts[name] = layout
            answer["layout"] = [
                None if x is None else [_name(x.dtype), list(x.shape), x.nbytes] for x in outputs
            ]
        return answer, _pack_small(outputs)

    def _measure(
        self, name: str, inputs: list[torch.Tensor | None], kind: str
    ) -> tuple[Sequence[torch.Tensor | None], dict[str, Any]]:
        """Run a program, and return also the times at its marks and the most memory in use."""
        self.stamps.clear()
        device = self.device.type
        held = [*inputs, self.blocks[name]]
        counting = count_allocations(device, held) if kind.endswith("memory") else nullcontext()
        with counting as peak:
            outputs = self.programs[name](inputs)
            if device == "cuda":
                torch.cuda.synchronize()
            self.stamps += (0, perf_counter())
        return outputs, {"stamps": list(self.stamps), "peak": peak or []}

    def _fetch(self, header: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        for number, start in header["fetch"][self.rank]:
            held = self.tensors[number]
            assert held is not None, "only who has a part is asked for it"
            data = _bytes(held)
            if data.numel():
                torch.frombuffer(
                    self.arena.buffer, dtype=torch.uint8, count=data.numel(), offset=start
                ).copy_(data)
        return {}, b""

    def _count(self, header: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Tell how many collectives each group has issued: after an error all must agree."""
        groups: list[Any] = list(dist.distributed_c10d._world.pg_map)
        counts = {
            g.group_name: g._get_sequence_number_for_group()
            for g in groups
            if g.group_desc != SENDS
        }
        found = [group for group in GROUPS.values() if group is not None]
        gathered = {f"gathered over {group.name}": group.gathered for group in found}
        read = {f"read over {g.name}": g.host.number for g in found if g.host is not None}
        return {"counts": {**counts, **gathered, **read, **self._count_messages()}}, b""

    def _count_messages(self) -> dict[str, int]:
        """Return how many messages went from rank to rank; both ends tell the same if all is well.

        Each is told twice: that it was asked for, and that it came.
        """
        found: dict[str, int] = {}
        for other in range(self.size):
            for what, own in (("asked of", "asked"), ("came from", "came")):
                found[f"{self.rank} to {other} {own}"] = MESSAGES.get(f"sent to {other}", 0)
                found[f"{other} to {self.rank} {own}"] = MESSAGES.get(f"{what} {other}", 0)
        return found

    def _barrier(self, header: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Show that the groups still work, after what was begun on all ranks has ended."""
        for own in GROUPS.values():
            if own is not None:
                settle_abandoned(own)
        for group in list(dist.distributed_c10d._world.pg_map):
            dist.barrier(group)
        return {}, b""


def _open_device(name: str, rank: int) -> torch.device:
    if name != "cuda":
        return torch.device(name)
    count = torch.cuda.device_count()
    if rank >= count:
        raise ValueError(f"there is no cuda:{rank}, PyTorch sees {count} CUDA devices")
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    return flatten_row(plain).view(torch.uint8)


def _pack_small(outputs: Sequence[torch.Tensor | None]) -> bytes:
    """Return the bytes of the small results, one after the other."""
    small = [_bytes(x) for x in outputs if x is not None and x.nbytes <= SMALL]
    return bytes(torch.cat(small).cpu().numpy()) if small else b""


def _describe_error(
    error: BaseException, program: str | None, step: int, activity: int
) -> dict[str, Any]:
    """Return what the controller is told about an exception."""
    file = file_of(program or "")
    lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == file]
    text = str(error).partition("\nException raised from")[0].strip()[:LONGEST]
    return {
        "text": f"{type(error).__name__}: {text}" if text else type(error).__name__,
        "line": lines[-1] if lines else None,
        "step": step,
        "activity": activity,
        "traceback": "".join(traceback.format_exception(error))[-4 * LONGEST :],
    }
