"""Bindings: bound plans, found again for arrays of kinds that were passed before."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import repeat
from typing import Any, Generic, NamedTuple, TypeVar

from mithril.mesh import Sharding
from mithril.runtime.array import Array, Kind
from mithril.runtime.call import Bound, Source
from mithril.runtime.lru import LRUCache

Form = TypeVar("Form", bound=Hashable)
_KIND, _NONE = repeat("kind"), repeat(None)


class LastCall(NamedTuple, Generic[Form, Source]):
    """What ran last, and for what; a whole, which another thread may replace.

    Args:
        form: of the call.
        kinds: of the arrays, as its plan took them; one may become an equal one.
        said: what was said of each.
        bound: what ran.
    """

    form: Form
    kinds: list[Kind]
    said: list[Kind]
    bound: Bound[Source]

    def find(self, given: Sequence[Any]) -> Bound[Source] | None:
        """Return what ran, if it serves another call of the same form; what is no array never is.

        Args:
            given: arrays, or what users passed for them.
        """
        return self.bound if are_of_kinds(given, self.kinds) else None

    def find_others(self, given: Sequence[Any]) -> list[int]:
        """Return the positions of what is not of the very kinds of this call.

        All others are arrays, and lie as its plan takes them.

        Args:
            given: arrays, or what users passed for them, in a call of the same form.
        """
        kinds = zip(map(getattr, given, _KIND, _NONE), self.kinds)  # noqa: B905 - of equal length
        return [position for position, (kind, known) in enumerate(kinds) if kind is not known]

    def serves(self, arrays: Sequence[Array], others: Sequence[int]) -> bool:
        """Return whether the same is said of the arrays of another call.

        Args:
            arrays: what is passed in it.
            others: the positions of those that are not of the very kinds of this one.
        """
        for position in others:
            kind = arrays[position].kind
            if kind != self.kinds[position] and kind.said != self.said[position]:
                return False
        return True


class Bindings(Generic[Form, Source]):
    """Bound plans, by the form of a call and the kinds of the arrays in it.

    Of an unplaced array the key has the type alone (`Kind.said`): a plan is not made twice because
    it lies otherwise. A loop calls with arrays of the same kinds again and again: the last call is
    recognised without a look into the table.

    Args:
        capacity: how many are kept; the one unused for longest goes first.
    """

    def __init__(self, capacity: int) -> None:
        self.made = 0
        self._known: LRUCache[tuple[Form, tuple[Kind, ...]], Bound[Source]] = LRUCache(capacity)
        self._alike: LRUCache[Any, list[tuple[tuple[Kind, ...], Bound[Source]]]]
        self._alike = LRUCache(capacity)
        self.last: LastCall[Form, Source] | None = None

    def of_last(self, form: Form, given: Sequence[Any]) -> Bound[Source] | None:
        """Return what the last call ran, if this one is alike; what is no array never is.

        Args:
            form: of the call.
            given: arrays, or what users passed for them.
        """
        last = self.last
        return None if last is None or last.form != form else last.find(given)

    def of_last_said(
        self,
        form: Form,
        given: Sequence[Any],
        convert: Callable[[Sequence[int] | None], list[Array]],
    ) -> tuple[list[Array], Bound[Source] | None, Sequence[int] | None]:
        """Return arrays for what is passed, and what the last call ran if the same is said of them.

        Args:
            form: of the call.
            given: arrays, or what users passed for them.
            convert: returns all of it as arrays; only what is at some positions may be no such
                array yet, or, with None, anything.

        Returns:
            The arrays; what ran, or None; and the positions of those that may lie otherwise than
            its plan takes them, None for any.
        """
        last = self.last
        if last is None or last.form != form:
            return convert(None), None, None
        others = last.find_others(given)
        arrays = convert(others)
        return (arrays, last.bound, others) if last.serves(arrays, others) else (arrays, None, None)

    def remember(self, form: Form, arrays: Sequence[Array], bound: Bound[Source]) -> None:
        """Remember a call, so that the next one like it is recognised.

        Args:
            form: of the call.
            arrays: as the plan takes them.
            bound: what runs.
        """
        kinds = [x.kind for x in arrays]
        self.last = LastCall(form, kinds, [kind.said for kind in kinds], bound)

    def find(self, form: Form, kinds: Sequence[Kind]) -> Bound[Source] | None:
        """Return what is bound for such a call, None if nothing is (any more).

        What was bound for unplaced arrays serves placed ones, too, that lie as its plan wants.
        """
        key = form, tuple(kinds)
        bound = self._known.get(key)
        if bound is not None:
            return bound
        for planned, bound in self._alike.get(_types(*key)) or ():
            if all(map(_serves, planned, key[1], bound.settled)):
                self._known.put(key, bound)
                return bound
        return None

    def keep(
        self, form: Form, kinds: Sequence[Kind], bound: Bound[Source], *, is_planned: bool = True
    ) -> None:
        """Keep what was bound for such a call.

        Args:
            form: of the call.
            kinds: what is said of its arrays.
            bound: what runs.
            is_planned: whether a plan was made for it; it may be that of another form.
        """
        self.made += is_planned
        key = form, tuple(kinds)
        self._known.put(key, bound)
        if any(kind.sharding is None for kind in key[1]):
            alike = self._alike.get(_types(*key)) or []
            self._alike.put(_types(*key), [(key[1], bound), *alike[: ALIKE - 1]])

    def __len__(self) -> int:
        return len(self._known)


ALIKE = 16
"""How many plans for arrays of the same types are tried for arrays that lie otherwise."""


def are_of_kinds(given: Sequence[Any], kinds: list[Kind]) -> bool:
    """Return whether these are arrays of some kinds; what is no array is of none.

    Args:
        given: anything.
        kinds: become the arrays' own, which next time are known without a comparison.
    """
    try:
        found = [x.kind for x in given]
    except AttributeError:
        return False
    if found != kinds:
        return False
    kinds[:] = found
    return True


def _types(form: Hashable, kinds: Sequence[Kind]) -> Hashable:
    return form, tuple(kind.type for kind in kinds)


def _serves(planned: Kind, given: Kind, settled: Sharding) -> bool:
    """Return whether a plan takes an array: it is what was planned for, or lies as it wants."""
    return given == planned or (planned.sharding is None and given.sharding == settled)
