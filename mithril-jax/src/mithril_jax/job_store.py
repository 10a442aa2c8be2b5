"""JAX's coordination service as the store of a job: texts by key beside the collectives.

JAX has no public name for its key-value store; `multihost_utils`, which is public, exchanges by
collectives, which nobody who waits in one can leave.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any

import jax
from mithril.spi import BackendError, JobStore

_LATE = "DEADLINE_EXCEEDED"
_MISSING = "NOT_FOUND"


def open_job_store(timeout: float, devices: Sequence[Any]) -> JobStore | None:
    """Return the store of this job; None where it has no coordination service.

    Args:
        timeout: seconds for which a process waits for the others.
        devices: those of the mesh.
    """
    from jax._src import distributed

    client = distributed.global_state.client
    if client is None:
        return None

    def set_text(key: str, text: str) -> None:
        with _telling():
            client.key_value_set(key, text, allow_overwrite=True)

    def get_text(key: str, seconds: float) -> str | None:
        with _telling():
            try:
                if seconds <= 0.0:  # a limit of no time may pass before the answer is here
                    found: str = client.key_value_try_get(key)
                else:
                    found = client.blocking_key_value_get(key, ceil(1000 * seconds))
            except jax.errors.JaxRuntimeError as error:
                if str(error).startswith((_LATE, _MISSING)):
                    return None
                raise
        return found

    owners = tuple(device.process_index for device in devices)
    return JobStore(set_text, get_text, timeout, owners)


@contextmanager
def _telling() -> Iterator[None]:
    """Tell of a service that is gone in the user's words."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        raise BackendError(
            f"coordination service of the job cannot be reached: {error}; start the job again"
        ) from error


__all__ = ["open_job_store"]
