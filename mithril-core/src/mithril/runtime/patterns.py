"""Specs by name patterns, as `model.at_rest` takes them: what is kept how, by the names it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from mithril.errors import ShardingError, listing, near_names
from mithril.mesh import PartitionSpec
from mithril.models.rules import check_rules, is_general
from mithril.types import TensorType

Patterns = Mapping[str, PartitionSpec]


class Match(NamedTuple):
    """What a pattern says of something that it matches.

    Args:
        spec: how it lies.
        is_general: whether the pattern may match many things; it says nothing of numbers then.
    """

    spec: PartitionSpec
    is_general: bool

    def find_spec(self, type: TensorType) -> PartitionSpec | None:
        """Return what is said of something of a type, None for nothing."""
        return None if self.is_general and not type.rank else self.spec


def read_patterns(given: object, option: str) -> Patterns:
    """Return the specs that an option gives by pattern; a lone one is for every name.

    Args:
        given: a PartitionSpec, a mapping of such by pattern, or None for nothing.
        option: its name and call, for messages.

    Raises:
        ShardingError: it is something else.
    """
    if given is None:
        return {}
    if isinstance(given, PartitionSpec):
        return {"*": given}
    return check_rules(given, option)


def match_patterns(
    patterns: Patterns, names: Sequence[Sequence[str]], option: str
) -> list[Match | None]:
    """Return what the last pattern that matches one of its names says of each thing, or None.

    Args:
        patterns: specs by pattern, with `*`, `?` and `[…]` as in `fnmatch`.
        names: what each thing is called, the longest name first; nothing for what cannot match.
        option: what gave the patterns, for messages.

    Raises:
        ShardingError: a pattern matches nothing.
    """
    found: list[Match | None] = [None] * len(names)
    for pattern, spec in patterns.items():
        hits = [i for i, known in enumerate(names) if any(fnmatchcase(n, pattern) for n in known)]
        if not hits:
            known = [several[0] for several in names if several]
            raise ShardingError(
                f"pattern '{pattern}' of {option} matches nothing; near names: "
                f"{listing(near_names(pattern, known))}"
            )
        for i in hits:
            found[i] = Match(spec, is_general(pattern))
    return found
