"""Operators on arrays: one that has run for such operands runs the same plan again at once.

What an operator makes follows from the kinds of the arrays, and from the numbers, that it is given.
Where that was one op, on these arrays and on numbers as arrays, the next such call needs neither to
look at dtypes nor to find the op and its plan. The last call of an operator is not even looked up:
a loop applies it to arrays whose kinds are the very same objects.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from mithril.runtime.lru import LRUCache

Key = tuple[Hashable, ...]
Array = Any
"""An array of a backend, whose module imports this one."""


class Runs(Protocol):
    """A plan that runs on arrays; see `mithril.runtime.call.Bound`."""

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the results."""

    def run_for(self, arrays: Sequence[Array], place: int) -> Array:
        """Return one of the results."""


_Ran = tuple[Runs, Sequence[Array], Sequence[Array]]
"""An op's plan, its operands and its results."""


def name_call(function: str, arguments: Sequence[Any], array: type) -> Key | None:
    """Return what says which op an operator runs, and on what; None if that is not known by then.

    An array that meets itself is told from two: of its operands nobody could say which is which.

    Args:
        function: name of the operator.
        arguments: at least one.
        array: the class of arrays that may be used.
    """
    if len(arguments) > 2:
        return None
    key: list[Any] = [function, arguments[0] is arguments[-1]]
    for x in arguments:
        kind = type(x)
        if kind is array:
            key.append(x.kind)
        elif kind is float or kind is int:  # 2 and 2.0 are equal, and so are 0.0 and -0.0
            key += (kind, x or str(x))
        else:
            return None
    return tuple(key)


@dataclass(frozen=True, slots=True)
class EagerCall:
    """An op that has run for an operator.

    Args:
        bound: its plan.
        operands: of each, its position among the operator's arguments, or the array of a number.
        numbers: those arrays.
        is_in_order: whether the operands are just the arguments.
        result: which of the results is the operator's.
        array: the class of arrays that hold values.
    """

    bound: Runs
    operands: tuple[int | Array, ...]
    numbers: tuple[Array, ...]
    is_in_order: bool
    result: int
    array: type[Array]

    def run(self, arguments: Sequence[Any]) -> Array | None:
        """Return the result for arguments of the kinds that were met.

        None if somebody has given up the array of a number.
        """
        for number in self.numbers:
            if type(number) is not self.array:
                return None
        if not self.is_in_order:
            arguments = [arguments[x] if type(x) is int else x for x in self.operands]
        return self.bound.run_for(arguments, self.result)


class _Latest(NamedTuple):
    """The last call of an operator that ran a plan which was known.

    Args:
        arity: how many arguments it had.
        first: the kind of the first one, or the number itself.
        last: the same of the last one.
        is_same: whether they are one.
        call: what ran.
    """

    arity: int
    first: object
    last: object
    is_same: bool
    call: EagerCall


@dataclass(frozen=True, slots=True)
class _Noted:
    """What took place while an operator ran that is new; of other threads, too."""

    ran: list[_Ran] = field(default_factory=list)
    numbers: list[Array] = field(default_factory=list)


class EagerCalls:
    """The calls of operators that a backend has met, and the ops that ran.

    Threads may call at once: what one of them notes for another is not what that was given.

    Args:
        capacity: how many calls are kept.
    """

    def __init__(self, capacity: int) -> None:
        self._known: LRUCache[Key, EagerCall] = LRUCache(capacity)
        self._latest: dict[Hashable, _Latest] = {}
        self._noted: _Noted | None = None

    def note(self, bound: Runs, operands: Sequence[Array], results: Sequence[Array]) -> None:
        """Take note of an op that has run, if an operator runs that is new."""
        noted = self._noted
        if noted is not None:
            noted.ran.append((bound, operands, results))

    def note_number(self, number: Array) -> None:
        """Take note of the array of a number that was met before, if an operator runs that is new.

        One that changes from call to call is not worth an entry each time.
        """
        noted = self._noted
        if noted is not None:
            noted.numbers.append(number)

    def repeat(self, function: str, arguments: Sequence[Any]) -> Any:
        """Return what an operator makes if its last call was alike, None if it was not.

        Args:
            function: name of the operator.
            arguments: arrays and numbers.
        """
        latest = self._latest.get(function)
        if latest is None:
            return None
        arity, first, last, is_same, call = latest
        x, y, array = arguments[0], arguments[-1], call.array
        if (x.kind if type(x) is array else x) is not first:
            return None
        if (y.kind if type(y) is array else y) is not last or (x is y) is not is_same:
            return None
        return call.run(arguments) if len(arguments) == arity else None

    def call(self, key: Key, arguments: Sequence[Any], function: Callable[..., Any]) -> Any:
        """Return what an operator makes.

        Args:
            key: of the operator, the kinds of its arrays, and its numbers.
            arguments: arrays and numbers.
            function: the operator, for a call that is new.
        """
        known = self._known.get(key)
        made = None if known is None else known.run(arguments)
        if known is not None and made is not None:
            self._remember(key, arguments, known)
            return made
        self._noted = noted = _Noted()
        try:
            result = function(*arguments)
        finally:
            self._noted = None
        found = _describe(noted, arguments, result)
        if found is not None:
            self._known.put(key, found)
        return result

    def _remember(self, key: Key, arguments: Sequence[Any], call: EagerCall) -> None:
        """Remember a call as the last one of its operator."""
        x, y = arguments[0], arguments[-1]
        first, last = (z.kind if type(z) is call.array else z for z in (x, y))
        self._latest[key[0]] = _Latest(len(arguments), first, last, x is y, call)


def _describe(noted: _Noted, arguments: Sequence[Any], result: Any) -> EagerCall | None:
    """Return how an op served an operator; None if the operator did anything besides."""
    if len(noted.ran) != 1:
        return None
    bound, operands, results = noted.ran[0]
    places: list[int | Array] = []
    for operand in operands:
        own = _find(operand, arguments)
        if own is None and _find(operand, noted.numbers) is None:
            return None
        places.append(operand if own is None else own)
    made = _find(result, results)
    if made is None:
        return None
    own_places = [place for place in places if type(place) is int]
    numbers = tuple(place for place in places if not isinstance(place, int))
    is_in_order = not numbers and own_places == [*range(len(arguments))]
    return EagerCall(bound, tuple(places), numbers, is_in_order, made, type(result))


def _find(wanted: Any, among: Sequence[Any]) -> int | None:
    """Return where this very object is; arrays would be compared element by element."""
    return next((i for i, x in enumerate(among) if x is wanted), None)


__all__ = ["EagerCall", "EagerCalls", "Key", "name_call"]
