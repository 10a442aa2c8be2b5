"""A key-value store that the processes of a job share, beside their collectives.

Who waits for a text in it can give up, which nobody in a collective can, and what one process asks
there meets nothing that another one exchanges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobStore:
    """Texts by key that every process of a job reads and writes.

    Both functions raise a `BackendError` where the store is gone.

    Args:
        set: writes a text under a key, also over another one.
        get: returns the text under a key, once there is one; None if there is none after so many
            seconds.
        timeout: seconds for which a process waits for the others.
        owners: the number of the process of each device of the mesh.
    """

    set: Callable[[str, str], None]
    get: Callable[[str, float], str | None]
    timeout: float
    owners: tuple[int, ...]


__all__ = ["JobStore"]
