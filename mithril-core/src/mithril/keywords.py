"""Keywords of public functions: an unknown one is refused with the nearest known name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

from mithril.errors import OptionError, listing, nearest

F = TypeVar("F", bound=Callable[..., Any])


def refuse_unknown(call: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise for the first option that does not exist.

    Args:
        call: what takes the options, for messages.
        given: names of those that are given.
        known: names of those that there are.

    Raises:
        OptionError: one is not known; the message has the nearest known name.
    """
    names = list(known)
    for name in given:
        if name not in names:
            raise OptionError(
                f"{call} has no option '{name}'{nearest(name, names)}; options: {listing(names)}"
            )


def checked_keywords(*more: str) -> Callable[[F], F]:
    """Return a decorator: a function that refuses unknown keywords with an `OptionError`.

    Python's own answer, a TypeError, knows no nearest name, and where keywords are handed on it
    speaks of a function inside.

    Args:
        more: keywords that the function hands on.

    >>> @checked_keywords()
    ... def draw(seed=0): ...
    >>> draw(sed=1)
    Traceback (most recent call last):
    mithril.errors.OptionError: draw() has no option 'sed'; did you mean 'seed'?; options: 'seed'
    """

    def decorate(function: F) -> F:
        names = [*named(function), *more]
        known, call = frozenset(names), f"{function.__name__}()"

        @wraps(function)
        def checked(*arguments: Any, **keywords: Any) -> Any:
            if not known.issuperset(keywords):
                refuse_unknown(call, keywords, names)
            return function(*arguments, **keywords)

        return checked  # type: ignore[return-value]

    return decorate


def named(function: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments of a function that can be given by name."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in kinds and p.name != "self"]
