"""Silence about floats: an overflow or a division by zero makes inf or nan, and no warning.

`np.errstate` says so, and takes longer than a small kernel does. What it sets is a variable of the
context; it is found here once, by what it changes, and set alike from then on.
"""

from __future__ import annotations

from contextvars import ContextVar, copy_context
from typing import Any

import numpy as np


class _ByErrstate:
    """Sets what `np.errstate` does by means of it: for a NumPy that keeps it elsewhere."""

    def set(self, value: object) -> Any:
        """Begin silence, and return what ends it."""
        state = np.errstate(all="ignore")
        state.__enter__()
        return state

    def reset(self, token: Any) -> None:
        """End silence."""
        token.__exit__(None, None, None)


def find_variable() -> tuple[ContextVar[Any] | _ByErrstate, Any]:
    """Return what NumPy keeps its handling of float errors in, and its value for silence."""
    changed = copy_context()
    changed.run(np.seterr, all="ignore")
    before = copy_context()
    found = [(x, value) for x, value in changed.items() if before.get(x) is not value]
    return found[0] if len(found) == 1 else (_ByErrstate(), None)


FLOAT_ERRORS, SILENCE = find_variable()
"""`token = FLOAT_ERRORS.set(SILENCE)` begins silence, `FLOAT_ERRORS.reset(token)` ends it."""

__all__ = ["FLOAT_ERRORS", "SILENCE"]
