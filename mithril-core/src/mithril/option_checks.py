"""Checks of single options, those of backends, too.

Modules that declare plugins import them: neither NumPy nor a dtype is needed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any, TypeGuard

from mithril.errors import OptionError, listing, nearest

MEMORY_FORMATS = ("channels_first", "channels_last", "channel_last")
"""How images may lie in memory; the last is another spelling of the one before."""
MOST_SECONDS = 2_000_000
"""What libraries can wait for: they count milliseconds in 31 bits."""


def check_choice(option: str, value: object, known: Sequence[str]) -> None:
    """Raise unless the value of an option is one of several names.

    Args:
        option: the option's name, for messages.
        value: what it is given.
        known: the names.

    Raises:
        OptionError: it is none of them.
    """
    if not isinstance(value, str) or value not in known:
        raise OptionError(
            f"{option}={value!r} does not exist{nearest(str(value), known)}; known: "
            f"{listing(known)}"
        )


def check_flag(option: str, value: object) -> bool:
    """Return the value of an option that is True or False.

    Args:
        option: the option's name, for messages.
        value: what it is given.

    Raises:
        OptionError: it is neither.

    >>> check_flag("jit", True)
    True
    """
    if not isinstance(value, bool):
        raise OptionError(f"{option}={value!r} is neither True nor False; give one of them")
    return value


def check_seconds(option: str, value: object) -> float:
    """Return the value of an option that says for how many seconds something is waited for.

    Args:
        option: the option's name, for messages.
        value: what it is given.

    Raises:
        OptionError: it is no number above 0, or a longer time than can be waited for.

    >>> check_seconds("timeout", 300)
    300.0
    """
    seconds: Any = value  # `Real` declares no comparison with an int
    if not isinstance(value, Real) or isinstance(value, bool) or not seconds > 0:
        raise OptionError(
            f"{option}={value!r} is no number of seconds above 0; give one, such as 300"
        )
    if seconds > MOST_SECONDS:
        raise OptionError(
            f"{option}={value!r} is longer than can be waited for; the most is {MOST_SECONDS} "
            f"seconds, 23 days; give at most that"
        )
    return float(seconds)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number of Python; truth values are none.

    >>> is_number(2), is_number(0.5), is_number(True), is_number("2")
    (True, True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_output(option: str, path: object) -> Path:
    """Return the path of a file that is to be written, as a text or a path names it.

    Args:
        option: the option's name, for messages.
        path: what it is given.

    Raises:
        OptionError: it is none, or that of a directory, or lies in one that is not there.
    """
    if not isinstance(path, str | PathLike) or not str(path):
        raise OptionError(f"{option}={path!r} is no path of a file; give a text or a pathlib.Path")
    found = Path(path)
    if found.is_dir():
        raise OptionError(f"{option}={str(path)!r} is a directory; give the path of a file")
    if not (directory := found.absolute().parent).is_dir():
        raise OptionError(
            f"{option}={str(path)!r} lies in '{directory}', which is no directory; make it first"
        )
    return found


def choose_name(given: Mapping[str, object]) -> tuple[str, object]:
    """Return under which of its names an option is given, by default the first, and its value.

    Args:
        given: what each name is given; None where it is not.

    Raises:
        OptionError: two of them are given, and differ.

    >>> choose_name({"checkpointing": None, "activation_checkpointing": "all"})
    ('activation_checkpointing', 'all')
    """
    said = [(name, value) for name, value in given.items() if value is not None]
    name, value = said[0] if said else (next(iter(given)), None)
    for other, what in said[1:]:
        if what != value:
            raise OptionError(
                f"{name}={value!r} and {other}={what!r} are two names of one option and differ; "
                f"give one of them"
            )
    return name, value


__all__ = [
    "MEMORY_FORMATS",
    "check_choice",
    "check_flag",
    "check_seconds",
    "choose_name",
    "is_number",
]
