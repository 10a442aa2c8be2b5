"""The processes of the job that this one is part of, as the backends opened here know them.

A script that one process runs is a job of one. Under `mithril launch`, torchrun, mlx.launch or
mpirun every process runs the same script, and a backend whose mesh spans them knows how many there
are. What has to happen once, such as printing, is done where `is_main()`.
"""

from __future__ import annotations

from weakref import ref

import numpy as np

from mithril.errors import BackendError
from mithril.mesh import PartitionSpec
from mithril.runtime.array import ArrayBackend

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
    agree(0)


def agree(number: int) -> int:
    """Return the number that process 0 gives, once every process of the job has come here.

    Every process gives one that all of them get, on the latest backend that spans the job.

    Args:
        number: from 0, of 31 bits.

    Raises:
        BackendError: no such backend is in use any more, or a process is gone.
    """
    index, count = find_place()
    if count == 1:
        return number
    spans = [b for b in list_backends() if b.engine.process_count == count]
    if not spans:
        raise BackendError(
            f"job has {count} processes, and no backend that spans them is in use any more; "
            f"keep the backend while you save or load"
        )
    mesh = spans[0].mesh
    given = np.full(mesh.size, number if index == 0 else 0, np.int32)
    return int(spans[0].array(given, sharding=PartitionSpec(mesh.names)).numpy().max())


def _check_opened(function: str) -> None:
    if not _places:
        raise BackendError(
            f"{function}() is known when a backend is open, and none was opened yet; open one "
            f"first, such as ml.NumpyBackend()"
        )
