"""Keywords of public functions: an unknown one is refused with the nearest known name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

from mithril.errors import OptionError, listing, nearest

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


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


def read_entries(
    option: str, given: object, known: Sequence[str], example: str
) -> Mapping[str, Any]:
    """Return an option that is a mapping, with no entries but those that there are.

    Args:
        option: its name, for messages.
        given: what is given.
        known: names of the entries that there are.
        example: of a mapping, for messages.

    Raises:
        OptionError: it is no mapping, or an entry is not known; the message has the nearest one.
    """
    if not isinstance(given, Mapping):
        raise OptionError(
            f"{option}={given!r} is no mapping; write {example}; entries: {listing(known)}"
        )
    for name in given:
        if name not in known:
            raise OptionError(
                f"{option} has no entry {name!r}{nearest(str(name), known)}; entries: "
                f"{listing(known)}"
            )
    return given


def checked_keywords(*more: str) -> Callable[[F], F]:
    """Return a decorator: a function that refuses keywords it cannot take with an `OptionError`.

    Python's own answer, a TypeError, knows no nearest name, and where keywords are handed on it
    speaks of a function inside. Of a function that takes any keyword, only those are refused that
    are given by position, too.

    Args:
        more: keywords that the function hands on.

    >>> @checked_keywords()
    ... def draw(seed=0): ...
    >>> draw(sed=1)
    Traceback (most recent call last):
    mithril.errors.OptionError: draw() has no option 'sed'; did you mean 'seed'?; options: 'seed'
    """

    def decorate(function: F) -> F:
        return _check_keywords(function, f"{function.__name__}()", more)

    return decorate


def checked_options(cls: type[T]) -> type[T]:
    """Return a class of options that refuses unknown ones with an `OptionError`.

    Args:
        cls: a dataclass.
    """
    checked = _check_keywords(cls.__init__, cls.__name__, ())
    cls.__init__ = checked  # type: ignore[method-assign]
    return cls


def _check_keywords(function: F, call: str, more: Sequence[str]) -> F:
    names = [*list_argument_names(function), *more]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in _parameters(function)) and not more
    known = frozenset(names)

    @wraps(function)
    def check_and_call(*arguments: Any, **keywords: Any) -> Any:
        if not takes_any and not known.issuperset(keywords):
            refuse_unknown(call, keywords, names)
        try:
            return function(*arguments, **keywords)
        except TypeError:
            _refuse_twice(call, function, len(arguments), keywords)
            raise

    return check_and_call  # type: ignore[return-value]


def _refuse_twice(
    call: str, function: Callable[..., Any], count: int, given: Iterable[str]
) -> None:
    by_position = [p.name for p in _parameters(function)][:count]
    for name in given:
        if name in by_position:
            raise OptionError(
                f"{call} is given '{name}' by position and by name; give it once"
            ) from None


def list_argument_names(function: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments of a function that can be given by name."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in _parameters(function) if p.kind in kinds and p.name != "self"]


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())
