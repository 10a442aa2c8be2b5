"""What a model says of parameters by name, as it was said: plain data."""

from __future__ import annotations

from dataclasses import dataclass

from mithril.ir import Source
from mithril.models.initializers import Initializer


@dataclass(frozen=True, slots=True)
class ParameterRule:
    """What `call` says of the parameters that a pattern matches.

    Args:
        call: the method that was called, for messages.
        pattern: over full names.
        value: whether they are trained, or how they start.
        place: the user's line.
    """

    call: str
    pattern: str
    value: bool | Initializer
    place: Source | None
