"""`process_index`, `process_count` and `is_main` where one process has all devices.

Jobs of several are in `tests/checkpoints/test_processes.py`.
"""

from __future__ import annotations

import subprocess
import sys

import mithril as ml
import pytest
from mithril.engine import Engine

from tests.conformance.engines import BACKENDS, opened
from tests.engine.test_base import Least


@pytest.mark.parametrize("name", ["numpy", *BACKENDS])
def test_one_process_is_alone(name: str) -> None:
    engine = opened(name, data=2).engine
    assert (engine.process_index, engine.process_count) == (0, 1)
    assert (ml.process_index(), ml.process_count(), ml.is_main()) == (0, 1, True)


EARLY = """
import mithril as ml
for ask in (ml.process_index, ml.process_count, ml.is_main):
    try:
        ask()
    except ml.BackendError as error:
        print(error)
ml.NumpyBackend()
print(ml.is_main())
"""


@pytest.mark.slow
def test_nobody_knows_before_a_backend_is_open() -> None:
    done = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, check=True)
    remedy = "is known when a backend is open, and none was opened yet; open one first, such as ml."
    told = done.stdout.splitlines()
    assert [remedy in line for line in told] == [True, True, True, False]
    assert told[0].startswith("process_index()")
    assert told[3] == "True"


def test_a_job_goes_on_when_its_backend_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has one place for all its life; what waits for others needs the backend."""
    from mithril.runtime import processes

    class Second(Least):
        process_index = 1
        process_count = 2

    monkeypatch.setattr(processes, "_places", [])
    monkeypatch.setattr(processes, "_opened", [])
    ml.NumpyBackend()
    backend = ml.Backend(Second(ml.Mesh(data=2)))
    assert (ml.process_index(), ml.process_count(), ml.is_main()) == (1, 2, False)
    ml.NumpyBackend()
    assert isinstance(backend.engine, Engine)
    del backend
    assert (ml.process_index(), ml.process_count(), ml.is_main()) == (1, 2, False)
    with pytest.raises(
        ml.BackendError, match="job has 2 processes, and no backend that spans them"
    ):
        processes.wait_for_processes()
