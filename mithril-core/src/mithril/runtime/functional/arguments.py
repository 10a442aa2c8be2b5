"""What a function is called with: by position or name, static or not, as a form and leaves."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

from mithril.errors import OptionError, listing, nearest
from mithril.trees import Leaf, Structure, flatten, names, numbers, rebuild
from mithril.types import to_python

Choice = int | str | Sequence[int | str]
"""Arguments chosen by position or name."""

_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
"""Parameters that take any number of arguments."""
_REST = "argument"
"""What arguments by position are called that a signature has no name for."""


class Form(NamedTuple):
    """Everything about a call but its arrays; it compares and hashes.

    Args:
        positional: names and structures of the arguments by position.
        keyword: those of the others.
    """

    positional: tuple[tuple[str, Structure], ...]
    keyword: tuple[tuple[str, Structure], ...]

    @property
    def arguments(self) -> tuple[tuple[str, Structure], ...]:
        """All of them."""
        return (*self.positional, *self.keyword)

    def leaf_names(self) -> list[str]:
        """Return the name of each leaf, such as `params.0.w`."""
        return [name for argument, form in self.arguments for name in names(form, argument)]

    def leaf_arguments(self) -> list[str]:
        """Return the name of the argument each leaf belongs to."""
        return [argument for argument, form in self.arguments for _ in names(form, argument)]

    def leaf_numbers(self) -> list[bool]:
        """Return for each leaf whether it is a Python number."""
        return [is_number for _, form in self.arguments for is_number in numbers(form)]

    def call(self, function: Callable[..., Any], leaves: Iterator[Any]) -> Any:
        """Return what a function returns for this form with other leaves."""
        given = [rebuild(form, leaves) for _, form in self.positional]
        named = {name: rebuild(form, leaves) for name, form in self.keyword}
        return function(*given, **named)


def name_of(function: Callable[..., Any]) -> str:
    """Return what a function is called, for people."""
    name = getattr(function, "__name__", type(function).__name__)
    return "lambda" if name == "<lambda>" else name


def types_in(value: object) -> Any:
    """Return types of a value and of those inside: 2 and 2.0, 0.0 and -0.0 are equal and differ.

    >>> types_in((2, (2.0,))) == (tuple, int, (tuple, (float, 1.0)))
    True
    """
    if isinstance(value, tuple):
        return (type(value), *map(types_in, value))
    if isinstance(value, frozenset):
        return (type(value), frozenset(map(types_in, value)))
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value), *(types_in(getattr(value, field.name)) for field in fields(value)))
    if isinstance(value, float):
        return (type(value), math.copysign(1.0, value))
    return type(value)


@dataclass(frozen=True, slots=True)
class Arguments:
    """Some of the arguments of a function, by the names that they have in a `Form`.

    Args:
        names: of parameters, places in `*args` such as `args.0`, and keywords in `**kwargs`.
        known: the names of all parameters that take one argument.
        rest: what the names of places in `*args` begin with.
        has_rest: whether all arguments in `*args` are among them.
        has_keywords: whether all in `**kwargs` are.
    """

    names: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()
    rest: str = ""
    has_rest: bool = False
    has_keywords: bool = False

    def __contains__(self, name: str) -> bool:
        if name in self.names or name in self.known:
            return name in self.names
        is_place = name.startswith(self.rest) and name.removeprefix(self.rest).isdigit()
        return self.has_rest if is_place else self.has_keywords

    def overlaps(self, other: Arguments) -> bool:
        """Return whether an argument is, or may be, among both."""
        return (
            any(name in other for name in self.names)
            or any(name in self for name in other.names)
            or (self.has_rest and other.has_rest)
            or (self.has_keywords and other.has_keywords)
        )


class Signature:
    """The parameters of a function: how its arguments are called.

    Args:
        function: any callable.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = name_of(function)
        try:
            self._signature = inspect.signature(function)
        except ValueError:  # of a function written in C
            self._signature = inspect.signature(lambda *argument: None)
        known = self._signature.parameters.values()
        by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._positional = [p.name for p in known if p.kind in by_position]
        self._names = [p.name for p in known]
        collecting = {p.kind: p.name for p in known if p.kind in _COLLECTING}
        self._rest = collecting.get(inspect.Parameter.VAR_POSITIONAL)
        self._keywords = collecting.get(inspect.Parameter.VAR_KEYWORD)

    def select_arguments(self, choice: Choice, option: str) -> Arguments:
        """Return the arguments that an option names; `args` of `*args` names all that it takes.

        Raises:
            OptionError: there is no such argument.
        """
        choice = to_python(choice)
        several = [choice] if isinstance(choice, int | str) else choice
        if not isinstance(several, Sequence):
            raise OptionError(
                f"{option}={choice!r} chooses no arguments; give positions or names, such as "
                f"{option}=(0,)"
            )
        chosen = {self._select_argument(item, option) for item in several}
        collecting = {self._rest, self._keywords}
        return Arguments(
            frozenset(chosen - collecting),
            frozenset(name for name in self._names if name not in collecting),
            rest=f"{self._rest or _REST}.",
            has_rest=self._rest in chosen,
            has_keywords=self._keywords in chosen,
        )

    def canonical(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the arguments, those by position first, whichever way they are passed."""
        if not kwargs:
            return args, kwargs
        bound = self._signature.bind(*args, **kwargs)
        return bound.args, bound.kwargs

    def read(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        static: Arguments,
        leaves: list[Any],
        is_fixed: Callable[[object], bool] | None = None,
    ) -> Form:
        """Return the form of a call, and add its leaves to a list.

        Args:
            args: by position.
            kwargs: by name.
            static: arguments that are values of Python.
            leaves: the list.
            is_fixed: tells which leaves are such values, too.

        Raises:
            OptionError: such a value cannot be hashed.
        """
        args, kwargs = self.canonical(args, kwargs)

        def form(name: str, value: object) -> Structure:
            if name in static:
                return self._check_hashable(Leaf((types_in(value), value)), name)
            found = flatten(value, leaves, is_fixed)
            return found if is_fixed is None else self._check_hashable(found, name)

        positional = [(n, form(n, x)) for n, x in zip(self.places(len(args)), args, strict=True)]
        return Form(tuple(positional), tuple((n, form(n, x)) for n, x in kwargs.items()))

    def places(self, count: int) -> list[str]:
        """Return the names of so many arguments by position."""
        known = self._positional[:count]
        rest = self._rest or _REST
        return known + [f"{rest}.{i}" for i in range(count - len(known))]

    def _check_hashable(self, form: Structure, name: str) -> Structure:
        try:
            hash(form)
        except TypeError:
            raise OptionError(
                f"static argument '{name}' of function '{self._function}' holds a value that "
                f"cannot be hashed; give one that can, such as a tuple for a list"
            ) from None
        return form

    def _is_keyword(self, name: str) -> bool:
        """Return whether `**kwargs` may take a name, and it is not that of a parameter misspelt."""
        is_slip = bool(nearest(name, self._names))
        return self._keywords is not None and bool(name) and not is_slip

    def _select_argument(self, item: Any, option: str) -> str:
        if isinstance(item, str) and (item in self._names or self._is_keyword(item)):
            return item
        is_position = isinstance(item, int) and not isinstance(item, bool) and item >= 0
        if is_position and (item < len(self._positional) or self._rest is not None):
            return self.places(item + 1)[-1]
        raise OptionError(
            f"{option}={item!r} is no argument of function '{self._function}'"
            f"{nearest(str(item), self._names)}; arguments: {listing(self._names)}, by name or by "
            f"position from 0"
        )
