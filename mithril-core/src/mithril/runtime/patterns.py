"""Specs by name patterns, as `model.at_rest` takes them: what is kept how, by the names it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from mithril.errors import ShardingError, listing, near_names
from mithril.mesh import Mesh, PartitionSpec, check_spec_mesh, read_spec
from mithril.models.rules import check_rules, find_least_rank
from mithril.types import TensorType

Patterns = Mapping[str, PartitionSpec]


class Match(NamedTuple):
    """What a pattern says of something that it matches.

    Args:
        spec: how it lies.
        least_rank: of the tensors that it says this of.
    """

    spec: PartitionSpec
    least_rank: int

    def find_spec(self, type: TensorType) -> PartitionSpec | None:
        """Return what is said of something of a type, None for nothing."""
        return self.spec if type.rank >= self.least_rank else None


def read_patterns(given: object, option: str, mesh: Mesh | None = None) -> Patterns:
    """Return the specs that an option gives by pattern; a lone one is for every name.

    Args:
        given: a PartitionSpec or the sharding of an array, a mapping of such by pattern, or None
            for nothing.
        option: its name and call, for messages.
        mesh: of the backend; None where it is not known yet, and shardings are checked later.

    Raises:
        ShardingError: it is something else.
        MeshError: a sharding is of another mesh.
    """
    if given is None:
        return {}
    lone = read_spec(given)
    patterns = check_rules(given, option) if lone is None else {"*": lone}
    if mesh is not None:
        for pattern, spec in patterns.items():
            check_spec_mesh(spec, mesh, f"'{pattern}' by {option}")
    return patterns


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
            found[i] = Match(spec, find_least_rank(pattern))
    return found
