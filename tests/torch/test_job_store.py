"""The store in which ranks have met as the store of a job, and what is told where it is gone."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from mithril.errors import BackendError
from mithril_torch.launch.job_store import open_job_store


def use(store: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: store is not None)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)


def test_without_a_process_group_there_is_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    use(None, monkeypatch)
    assert open_job_store(300.0, 2) is None


def test_texts_are_written_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    use(dist.HashStore(), monkeypatch)
    store = open_job_store(5.0, 3)
    assert store is not None
    assert (store.timeout, store.owners) == (5.0, (0, 1, 2))
    assert store.get("a", 0.02) is None
    for text in ("früh", ""):
        store.set("a", text)
        assert store.get("a", 60.0) == text


def test_a_store_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    use(dist.TCPStore("127.0.0.1", kept.port, wait_for_workers=False), monkeypatch)
    store = open_job_store(5.0, 2)
    assert store is not None
    del kept
    for call in (lambda: store.set("a", "text"), lambda: store.get("a", 1.0)):
        with pytest.raises(BackendError, match="store in which the processes have met is gone: "):
            call()
            call()
