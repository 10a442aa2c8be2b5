"""The processes of the job that this one is part of, as the backends opened here know them.

A script that one process runs is a job of one. Under `mithril launch`, torchrun, mlx.launch or
mpirun every process runs the same script, and a backend whose mesh spans them knows how many there
are. What has to happen once, such as printing, is done where `is_main()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import ref

import numpy as np

from mithril.errors import BackendError
from mithril.mesh import PartitionSpec
from mithril.runtime.array import ArrayBackend
from mithril.runtime.gathering import announce_end

_opened: list[ref[ArrayBackend]] = []
"""The backends that are in use, the latest last."""
_places: list[tuple[int, int]] = []
"""The number of this process and how many there are, as backends said, the largest job last."""


def list_backends() -> list[ArrayBackend]:
    """Return the backends that are in use, the latest first."""
    alive = [(mark, backend) for mark in _opened if (backend := mark()) is not None]
    _opened[:] = [mark for mark, _ in alive]
    return [backend for _, backend in reversed(alive)]


def meet(backend: ArrayBackend) -> None:
    """Take note of a backend that was opened."""
    _opened.append(ref(backend))
    place = backend.engine.process_index, backend.engine.process_count
    if not _places or place[1] > _places[-1][1]:
        _places.append(place)
    if backend.engine.job_store is not None:
        announce_end(backend.engine.job_store, backend.name, place[0])


def find_place() -> tuple[int, int]:
    """Return the number of this process and how many there are; alone where nobody knows."""
    return _places[-1] if _places else (0, 1)


def process_count() -> int:
    """Return how many processes this job has; 1 where one process has all devices.

    Raises:
        BackendError: no backend was opened yet, so nobody knows.

    >>> import mithril as ml
    >>> backend = ml.NumpyBackend(ml.Mesh(data=4))
    >>> ml.process_count(), ml.process_index(), ml.is_main()
    (1, 0, True)
    """
    _check_opened("process_count")
    return find_place()[1]


def process_index() -> int:
    """Return the number of this process in its job, from 0.

    Raises:
        BackendError: no backend was opened yet, so nobody knows.
    """
    _check_opened("process_index")
    return find_place()[0]


def is_main() -> bool:
    """Return whether this is process 0, the one that prints and writes for all of them.

    Raises:
        BackendError: no backend was opened yet, so nobody knows.
    """
    _check_opened("is_main")
    return find_place()[0] == 0


def wait_for_processes() -> None:
    """Return when every process of the job has come here.

    Raises:
        BackendError: no backend that spans the job is in use any more, or a process is gone.
    """
    _exchange_in_job(0)


def agree(number: int) -> int:
    """Return the number that process 0 gives, once every process of the job has come here.

    Args:
        number: from 0, of 31 bits.

    Raises:
        BackendError: no backend that spans the job is in use any more, or a process is gone.
    """
    return int(_exchange_in_job(number if find_place()[0] == 0 else 0).max())


def is_any(fact: bool) -> bool:
    """Return whether something is so in any process, once every process of the job has come here.

    Raises:
        BackendError: no backend that spans the job is in use any more, or a process is gone.
    """
    return bool(_exchange_in_job(int(fact)).any())


def _exchange_in_job(number: int) -> np.ndarray:
    """Return the numbers that all processes give, on the latest backend that spans the job."""
    count = find_place()[1]
    if count == 1:
        return np.array([[number]])
    spans = [b for b in list_backends() if b.engine.process_count == count]
    if not spans:
        raise BackendError(
            f"job has {count} processes, and no backend that spans them is in use any more; "
            f"keep the backend while you save or load"
        )
    return exchange(spans[0], [number])


def exchange(backend: ArrayBackend, numbers: Sequence[int]) -> np.ndarray:
    """Return the numbers that each process of a backend gives, once all of them have come here.

    Args:
        backend: it has devices of all of them.
        numbers: as many in each process, of 31 bits and a sign.

    Returns:
        A row for each device.
    """
    mesh = backend.mesh
    own = np.tile(np.array(numbers, np.int32), (mesh.size, 1))
    rows: np.ndarray = backend.array(own, sharding=PartitionSpec(mesh.names)).numpy()
    return rows


def _check_opened(function: str) -> None:
    if not _places:
        raise BackendError(
            f"{function}() is known when a backend is open, and none was opened yet; open one "
            f"first, such as ml.NumpyBackend()"
        )
