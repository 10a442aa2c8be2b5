"""Checks of single options, those of backends, too.

Modules that declare plugins import them: neither NumPy nor a dtype is needed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mithril.errors import OptionError, listing, nearest

MEMORY_FORMATS = ("channels_first", "channels_last", "channel_last")
"""How images may lie in memory; the last is another spelling of the one before."""


def check_choice(option: str, value: object, known: Sequence[str]) -> None:
    """Raise unless the value of an option is one of several names.

    Args:
        option: the option's name, for messages.
        value: what it is given.
        known: the names.

    Raises:
        OptionError: it is none of them.
    """
    if value not in known:
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


__all__ = ["MEMORY_FORMATS", "check_choice", "check_flag", "choose_name"]
