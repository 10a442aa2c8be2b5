"""The pool as a backend uses it: arrays and programs in, arrays out, and one clear error.

One call is one message to each worker and one answer from each. Whatever goes wrong, either all
workers have answered and the pool goes on, or none of them is left and `BackendError` says why.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from mithril.spi import BackendError

from mithril_torch.executors.pool.batching import Batcher
from mithril_torch.executors.pool.connection import Connection
from mithril_torch.executors.pool.faults import SourceMap
from mithril_torch.executors.pool.memory import Arena
from mithril_torch.executors.pool.messages import Message
from mithril_torch.executors.pool.remote_array import Layout, Part, RemoteArray, Results, Spec

FLUSH = 1 << 26
"""Bytes of new arrays that are held back for the next message, at most."""
QUEUED = 256
"""Runs of programs that wait for the next message, at most."""
Array = np.ndarray[Any, Any]


class Pool:
    """Worker processes, one a rank; made by `Pool.of`, which keeps them for the next backend.

    Example:
        >>> pool = Pool.of(1)
        >>> pool.load("double", "def run(inputs): return [inputs[0] * 2]", source_map=None)
        >>> numbers = pool.put([np.float32([1, 2])])
        >>> [doubled] = pool.run("double", [numbers], 1)
        >>> pool.fetch(doubled, 0).data.view(np.float32)
        array([2., 4.], dtype=float32)
        >>> pool.close()
    """

    def __init__(self, size: int, device: str, backend: str, timeout: float) -> None:
        self.size = size
        self.timeout = timeout
        self.dropped: deque[int] = deque()
        self._unloaded: deque[str] = deque()
        self._lost: dict[int, str] = {}
        self._next_id = 0
        self._source_maps: dict[str, SourceMap | None] = {}
        self._layouts: dict[str, list[Layout]] = {}
        self._forgotten = 0
        self._connection = Connection(
            size, timeout, {"device": device, "backend": backend}, self._count_arrays
        )
        self._batcher = Batcher(self._connection.workers.arena)

    @classmethod
    def of(
        cls, size: int, device: str = "cpu", backend: str = "gloo", timeout: float = 300.0
    ) -> Pool:
        """Return the pool with these settings, started now if there is none that is alive.

        Args:
            size: how many workers.
            device: `cpu`, or `cuda`: rank r uses `cuda:r`.
            backend: the library of the collectives: `gloo`, `nccl`.
            timeout: seconds that a collective, or a stopped worker, is waited for.

        Raises:
            BackendError: the workers cannot be started.

        Example:
            >>> Pool.of(1) is Pool.of(1)
            True
        """
        key = size, device, backend, timeout
        with _lock:
            found = _pools.get(key)
            if found is None or not found.is_alive:
                found = _pools[key] = cls(*key)
            return found

    @property
    def is_alive(self) -> bool:
        """Whether it can be used: it has not failed and was not closed."""
        return self._connection.end_reason is None

    @property
    def pids(self) -> list[int]:
        """The process of each rank."""
        return [process.pid for process in self._connection.workers.processes]

    def load(self, program: str, source: str, source_map: SourceMap | None) -> None:
        """Load a program in every worker.

        Args:
            program: its name, which no other program of this pool has.
            source: Python text that defines `run(inputs)`, which returns a list of tensors; None
                stands for one that is on other ranks only.
            source_map: says what its steps and lines are, for errors.

        Raises:
            BackendError: the text cannot be executed, a worker failed, or the name is taken.
        """
        with self._connection.lock:
            self._check(())
            self._forget_unloaded()
            if program in self._source_maps:
                raise BackendError(
                    f"Program '{program}' is loaded already; {len(self._source_maps)} programs "
                    "are; unload it first, or choose another name"
                )
            self._source_maps[program] = source_map
            try:
                self._request({"do": "load", "program": program, "source": source}, program)
            except BaseException:
                del self._source_maps[program]
                self._unloaded.append(program)  # some workers, or after Ctrl-C all, have it
                raise

    def unload(self, program: str) -> None:
        """Forget a program, with the next message.

        It takes no lock, so it may be called from anywhere, also by the garbage collector.

        Args:
            program: its name, which is free again.
        """
        self._unloaded.append(program)

    def put(self, parts: Sequence[Array | None], dtype: str | None = None) -> RemoteArray:
        """Give each worker its part of an array, with the next message.

        Args:
            parts: one array a rank, copied now; an array that stands there often is copied once.
                A rank with None gets nothing.
            dtype: PyTorch's name of the type, if it is not the array's.

        Raises:
            BackendError: the memory cannot be had, or the pool has ended.
        """
        name = dtype or next(part.dtype.name for part in parts if part is not None)
        results = Results()
        results.layouts = [
            Layout([None if part is None else Spec(name, part.shape, part.nbytes)])
            for part in parts
        ]
        with self._connection.lock:
            self._check(())
            handle = RemoteArray(self, self._allocate_ids(1), results, 0)
            try:
                self._batcher.put(handle.id, parts, name)
            except OSError as error:
                size = sum(part.nbytes for part in parts if part is not None)
                raise _no_memory(size, error) from error
            if self._batcher.arena.top > FLUSH:
                self._request({"do": "take"})
                self._batcher.shrink()
            return handle

    def run(
        self, program: str, handles: Sequence[RemoteArray], n_out: int, donate: Sequence[int] = ()
    ) -> list[RemoteArray]:
        """Run a program on all workers, and return when all are done.

        Args:
            program: its name.
            handles: what `run` gets, on each rank the part of that rank.
            n_out: how many tensors it returns.
            donate: positions of handles that no one uses any more: their memory is the program's.

        Raises:
            BackendError: the program or a worker failed, or a handle cannot be used.
        """
        return self._run(program, handles, n_out, donate)[0]

    def queue(self, program: str, handles: Sequence[RemoteArray], n_out: int) -> list[RemoteArray]:
        """Run a program with the next message, whatever that is about.

        Args:
            program: its name; it exchanges nothing, and its results always have the same shapes.
            handles: as for `run`.
            n_out: as for `run`.

        Raises:
            BackendError: as for `run`, where it runs at once: the first time, or after many others.
        """
        with self._connection.lock:
            self._check(handles)
            layouts = self._layouts.get(program)
            if layouts is not None:
                first = self._allocate_ids(n_out)
                self._batcher.run(program, [handle.id for handle in handles], first, n_out)
                results = Results()
                results.layouts = layouts
                queued = [
                    RemoteArray(self, first + index, results, index) for index in range(n_out)
                ]
                if len(self._batcher.runs) >= QUEUED:
                    self._request({"do": "take"})
                    self._batcher.shrink()
                return queued
        return self.run(program, handles, n_out)

    def run_recorded(
        self, program: str, handles: Sequence[RemoteArray], n_out: int, donate: Sequence[int] = ()
    ) -> tuple[list[RemoteArray], list[list[dict[str, Any]]]]:
        """Run as `run` does, and return also a row for each collective, by rank.

        Args:
            program: as for `run`.
            handles: as for `run`.
            n_out: as for `run`.
            donate: as for `run`.

        Raises:
            BackendError: as for `run`.
        """
        outputs, answers = self._run(program, handles, n_out, donate, record="collectives")
        return outputs, [answer.header["rows"] for answer in answers]

    def run_measured(
        self, program: str, handles: Sequence[RemoteArray], n_out: int, *, counts_memory: bool
    ) -> tuple[list[RemoteArray], list[dict[str, Any]]]:
        """Run as `run` does, and return also what each rank measured.

        Args:
            program: as for `run`.
            handles: as for `run`.
            n_out: as for `run`.
            counts_memory: whether allocations are counted.

        Returns:
            The handles, and by rank `stamps` (see `executors.timing`) and `peak`, a list of the
            most bytes in use at once, empty where they were not counted.

        Raises:
            BackendError: as for `run`.
        """
        record = "times and memory" if counts_memory else "times"
        outputs, answers = self._run(program, handles, n_out, (), record=record)
        return outputs, [answer.header["measured"] for answer in answers]

    def fetch(self, handle: RemoteArray, rank: int) -> Part:
        """Return the bytes of one part; those of a small result are here already.

        Raises:
            BackendError: a worker failed, or the handle cannot be used.
        """
        return self.fetch_all([(handle, rank)])[0]

    def fetch_all(self, wanted: Sequence[tuple[RemoteArray, int]]) -> list[Part]:
        """Return the bytes of many parts with as few messages as the arena allows.

        Args:
            wanted: handles and ranks.

        Raises:
            BackendError: as for `fetch`.
        """
        with self._connection.lock:
            self._check([handle for handle, _ in wanted])
            parts = [handle.small(rank) for handle, rank in wanted]
            missing = [place for place, part in enumerate(parts) if part is None]
            while missing:
                batch: list[tuple[RemoteArray, int]] = []
                size = 0
                while missing[len(batch) :] and (not batch or size < FLUSH):
                    batch.append(wanted[missing[len(batch)]])
                    size += batch[-1][0].spec(batch[-1][1]).nbytes
                for place, part in zip(missing, self._fetch(batch), strict=False):
                    parts[place] = part
                missing = missing[len(batch) :]
        return [part for part in parts if part is not None]

    def wait(self, handles: Sequence[RemoteArray] = ()) -> None:
        """Return once workers have what waits for a message; they answer when all is done.

        Raises:
            BackendError: a worker failed, or one of the handles cannot be used.
        """
        with self._connection.lock:
            self._check(handles)
            if self._batcher.runs or self._batcher.puts:
                self._request({"do": "take"})
                self._batcher.shrink()

    def close(self) -> None:
        """End all workers; handles cannot be used any more."""
        self._connection.close()

    def forget(self) -> None:
        """Let go in a forked child, to which the workers do not belong."""
        self._connection.forget()

    def _run(
        self,
        program: str,
        handles: Sequence[RemoteArray],
        n_out: int,
        donate: Sequence[int],
        record: str = "",
    ) -> tuple[list[RemoteArray], list[Message]]:
        results = Results()
        with self._connection.lock:
            self._check(handles)
            first = self._allocate_ids(n_out)
            outputs = [RemoteArray(self, first + index, results, index) for index in range(n_out)]
            numbers = [handle.id for handle in handles]
            for position in donate:
                self._lost[numbers[position]] = "it was donated to a program"
            action = {
                "do": "run",
                "program": program,
                "in": numbers,
                "out": [first, n_out],
                "donate": list(donate),
                "record": record,
                "is_first": program not in self._layouts,
            }
            answers = self._request(action, program)
            self._batcher.shrink()
            layouts = self._layouts.setdefault(program, [Layout(())] * self.size)
            if any("layout" in answer.header for answer in answers):
                layouts = self._layouts[program] = [
                    _layout(answer) or old for answer, old in zip(answers, layouts, strict=True)
                ]
            results.layouts = layouts
            results.payloads = [answer.payload for answer in answers]
        return outputs, answers

    def _fetch(self, batch: Sequence[tuple[RemoteArray, int]]) -> list[Part]:
        arena = self._batcher.arena
        rows: list[list[tuple[int, int]]] = [[] for _ in range(self.size)]
        places = []
        for handle, rank in batch:
            spec = handle.spec(rank)
            try:
                places.append((spec, arena.reserve(spec.nbytes)))
            except OSError as error:
                raise _no_memory(spec.nbytes, error) from error
            rows[rank].append((handle.id, places[-1][1]))
        self._request({"do": "fetch", "fetch": rows})
        found = [Part(spec, _copy_bytes(arena, start, spec.nbytes)) for spec, start in places]
        self._batcher.shrink()
        return found

    def _forget_unloaded(self) -> None:
        while self._unloaded:
            program = self._unloaded.popleft()
            self._source_maps.pop(program, None)
            self._layouts.pop(program, None)
            self._batcher.unloads.append(program)

    def _count_arrays(self) -> int:
        """Return how many arrays somebody still holds."""
        return self._next_id - self._forgotten - len(self.dropped)

    def _allocate_ids(self, count: int) -> int:
        first = self._next_id
        self._next_id += count
        return first

    def _check(self, handles: Sequence[RemoteArray]) -> None:
        """Refuse what cannot work: an ended pool, handles of another one or of lost arrays."""
        self._connection.check()
        for handle in handles:
            if handle.pool is not self:
                raise BackendError(
                    f"Array {handle.id} is on another worker pool, of {handle.pool.size}; "
                    "open the backend again, and make the array anew"
                )
            if handle.id in self._lost:
                raise BackendError(
                    f"Array {handle.id} cannot be used; {self._lost[handle.id]}; make it anew"
                )

    def _request(self, action: dict[str, Any], program: str | None = None) -> list[Message]:
        """Send an action, with all that waited for a message, and return the answers."""
        for number in list(self.dropped) if self._lost else ():
            self._lost.pop(number, None)
        self._forgotten += self._batcher.drop(self.dropped)
        self._forget_unloaded()
        source_map = self._source_maps.get(program) if program is not None else None
        try:
            answers = self._connection.request({**self._batcher.fields(), **action}, source_map)
        except BaseException as error:
            # Some ranks may have told their layout, others not: the next run asks anew.
            self._layouts.pop(program or "", None)
            if isinstance(error, BackendError):
                # On some ranks the new arrays are there, on others not.
                self._lost.update(dict.fromkeys(self._batcher.puts, "its transfer failed"))
                for _, _, first, count in self._batcher.runs:
                    made = range(first, first + count)
                    self._lost.update(dict.fromkeys(made, "what makes it failed"))
                self._batcher.discard()
            raise
        self._batcher.clear()
        return answers


def _layout(answer: Message) -> Layout | None:
    rows = answer.header.get("layout")
    if rows is None:
        return None
    return Layout([row and Spec(row[0], tuple(row[1]), row[2]) for row in rows])


def _copy_bytes(arena: Arena, start: int, count: int) -> np.ndarray:
    """Return bytes of an arena; one that nobody has put anything into has no memory."""
    if not count:
        return np.empty(0, np.uint8)
    return np.frombuffer(arena.buffer, np.uint8, count, start).copy()


def _no_memory(size: int, error: OSError) -> BackendError:
    return BackendError(
        f"Worker pool cannot get shared memory; {size} bytes: {error.strerror}; "
        "use smaller arrays, or free memory"
    )


_pools: dict[tuple[int, str, str, float], Pool] = {}
_lock = threading.Lock()


def close_all() -> None:
    """End the workers of all pools of this process."""
    for pool in list(_pools.values()):
        pool.close()
    _pools.clear()


def _after_fork() -> None:
    """In a forked child: another process has the workers, and maybe had the lock."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    for pool in _pools.values():
        pool.forget()
    _pools.clear()


atexit.register(close_all)
os.register_at_fork(after_in_child=_after_fork)
