"""Options of a backend that `mithril launch` was given: how they reach the script.

They travel in the variable `MITHRIL_OPTIONS` of every process that is started. What the script says
itself, as it opens the backend, stands before them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace

from mithril.errors import OptionError
from mithril.plugins.launch import Command

VARIABLE = "MITHRIL_OPTIONS"


def hand_on(command: Command, backend: str, options: Mapping[str, object]) -> Command:
    """Return a command whose process opens a backend with some options.

    Args:
        command: what is started.
        backend: the backend's name.
        options: of the backend.

    Raises:
        OptionError: one is nothing that JSON has.
    """
    if not options:
        return command
    try:
        text = json.dumps({backend: dict(options)})
    except TypeError as error:
        raise OptionError(
            f"options {dict(options)} of backend '{backend}' cannot be handed on to processes; "
            f"{error}; give numbers, texts, lists and dicts"
        ) from error
    return replace(command, environment={**command.environment, VARIABLE: text})


def read_handed_on(backend: str) -> dict[str, object]:
    """Return the options that this process was started with for a backend.

    Raises:
        OptionError: the variable holds something else.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return {}
    try:
        found = json.loads(text)
        return dict(found.get(backend, {}))
    except (ValueError, TypeError, AttributeError) as error:
        raise OptionError(
            f"{VARIABLE} is {text!r}, which holds no options of backends; unset it, and let "
            f"`mithril launch --option` set it"
        ) from error
