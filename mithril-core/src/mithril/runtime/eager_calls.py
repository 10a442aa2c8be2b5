"""Operators on arrays: one that has run for such operands runs the same plan again at once.

What an operator makes follows from the kinds of the arrays, and from the numbers, that it is given.
Where that was one op, on these arrays and on numbers as arrays, the next such call needs neither to
look at dtypes nor to find the op and its plan.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mithril.runtime.lru import LRUCache

if TYPE_CHECKING:
    from mithril.runtime.array import Array
    from mithril.runtime.call import Bound

Key = tuple[Hashable, ...]
_Ran = tuple["Bound[None]", Sequence["Array"], Sequence["Array"]]
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
        is_in_order: whether the operands are just the arguments.
        result: which of the results is the operator's.
    """

    bound: Bound[None]
    operands: tuple[int | Array, ...]
    is_in_order: bool
    result: int

    def run(self, arguments: Sequence[Any]) -> Array:
        """Return the result for arguments of the kinds that were met."""
        if not self.is_in_order:
            arguments = [arguments[x] if type(x) is int else x for x in self.operands]
        return self.bound.run(arguments)[self.result]


class EagerCalls:
    """The calls of operators that a backend has met, and the ops that ran.

    Args:
        capacity: how many calls are kept.
    """

    def __init__(self, capacity: int) -> None:
        self._known: LRUCache[Key, EagerCall] = LRUCache(capacity)
        self._ran: list[_Ran] | None = None

    def note(self, bound: Bound[None], operands: Sequence[Array], results: Sequence[Array]) -> None:
        """Take note of an op that has run, if an operator runs that is new."""
        if self._ran is not None:
            self._ran.append((bound, operands, results))

    def call(
        self,
        key: Key,
        arguments: Sequence[Any],
        function: Callable[..., Any],
        is_constant: Callable[[Array], bool],
    ) -> Any:
        """Return what an operator makes.

        Args:
            key: of the operator, the kinds of its arrays, and its numbers.
            arguments: arrays and numbers.
            function: the operator, for a call that is new.
            is_constant: whether an array is that of a number.
        """
        known = self._known.get(key)
        if known is not None:
            return known.run(arguments)
        self._ran = ran = list[_Ran]()
        try:
            result = function(*arguments)
        finally:
            self._ran = None
        found = _describe(*ran[0], arguments, result, is_constant) if len(ran) == 1 else None
        if found is not None:
            self._known.put(key, found)
        return result


def _describe(
    bound: Bound[None],
    operands: Sequence[Array],
    results: Sequence[Array],
    arguments: Sequence[Any],
    result: object,
    is_constant: Callable[[Array], bool],
) -> EagerCall | None:
    """Return how an op served an operator; None if the operator did anything besides."""
    places: list[int | Array] = []
    for operand in operands:
        own = next((i for i, x in enumerate(arguments) if x is operand), None)
        if own is None and not is_constant(operand):
            return None
        places.append(operand if own is None else own)
    made = next((i for i, x in enumerate(results) if x is result), None)
    if made is None:
        return None
    # An array would be compared element by element.
    own_places = [place for place in places if type(place) is int]
    is_in_order = len(own_places) == len(places) and own_places == [*range(len(arguments))]
    return EagerCall(bound, tuple(places), is_in_order, made)


__all__ = ["EagerCall", "EagerCalls", "Key", "name_call"]
