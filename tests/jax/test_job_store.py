"""JAX's coordination service as the store of a job, and what is told where it is gone."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import pytest
from jax._src import distributed
from mithril.errors import BackendError
from mithril_jax.job_store import open_job_store


class Service:
    """A client of a service that fails with an error."""

    def __init__(self, error: str) -> None:
        self.error = error

    def key_value_set(self, key: str, text: str, allow_overwrite: bool) -> None:
        raise jax.errors.JaxRuntimeError(self.error)

    def key_value_try_get(self, key: str) -> str:
        raise jax.errors.JaxRuntimeError(self.error)

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
        assert milliseconds > 0
        raise jax.errors.JaxRuntimeError(self.error)


def use(client: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed.global_state, "client", client)


def test_without_a_service_there_is_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    use(None, monkeypatch)
    assert open_job_store(300.0, []) is None


def test_nothing_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    use(Service("DEADLINE_EXCEEDED: GetKeyValue() timed out with key: a"), monkeypatch)
    store = open_job_store(5.0, [SimpleNamespace(process_index=i) for i in (0, 0, 1)])
    assert store is not None
    assert (store.timeout, store.owners) == (5.0, (0, 0, 1))
    assert store.get("a", 0.2) is None


def test_what_is_not_there_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits: a request with a limit of a millisecond would miss what is there, too."""
    service = Service("NOT_FOUND: Config key a not found.")
    monkeypatch.delattr(Service, "blocking_key_value_get")
    use(service, monkeypatch)
    store = open_job_store(5.0, [])
    assert store is not None
    assert store.get("a", 0.0) is None
    monkeypatch.setattr(Service, "key_value_try_get", lambda self, key: f"text of {key}")
    assert store.get("a", 0.0) == "text of a"


def test_a_service_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    use(Service("UNAVAILABLE: failed to connect"), monkeypatch)
    store = open_job_store(5.0, [])
    assert store is not None
    text = "coordination service of the job cannot be reached: UNAVAILABLE: failed to connect; "
    for call in (lambda: store.set("a", "text"), lambda: store.get("a", 1.0)):
        with pytest.raises(BackendError, match=text):
            call()
