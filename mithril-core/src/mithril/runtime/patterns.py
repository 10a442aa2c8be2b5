"""Specs by name patterns, as `model.at_rest` takes them: what is kept how, by the names it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from mithril.errors import ShardingError, listing, near_names
from mithril.mesh import PartitionSpec
from mithril.models.rules import check_rules

Patterns = Mapping[str, PartitionSpec]


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
) -> list[PartitionSpec | None]:
    """Return the spec of each thing by the last pattern that matches one of its names, or None.

    Args:
        patterns: specs by pattern, with `*`, `?` and `[…]` as in `fnmatch`.
        names: what each thing is called, the longest name first; nothing for what cannot match.
        option: what gave the patterns, for messages.

    Raises:
        ShardingError: a pattern matches nothing.
    """
    found: list[PartitionSpec | None] = [None] * len(names)
    for pattern, spec in patterns.items():
        hits = [i for i, known in enumerate(names) if any(fnmatchcase(n, pattern) for n in known)]
        if not hits:
            known = [several[0] for several in names if several]
            raise ShardingError(
                f"pattern '{pattern}' of {option} matches nothing; near names: "
                f"{listing(near_names(pattern, known))}"
            )
        for i in hits:
            found[i] = spec
    return found
