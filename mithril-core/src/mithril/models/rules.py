"""`model.shard` and `model.at_rest` patterns matched against the names of a traced model.

Rules of a nested model speak of the names inside it, and come before those of the model around it;
the last rule that matches a name wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from mithril.errors import ShardingError, listing, near_names
from mithril.ir.source import at
from mithril.mesh import PartitionSpec, read_spec
from mithril.models.annotations import Annotation
from mithril.models.composition import Composition, ShardRule


def find_least_rank(pattern: str) -> int:
    """Return the least rank of the tensors that a rule about how they are kept is for.

    A pattern that may match many names says nothing of scalars among them.

    Args:
        pattern: of names.

    >>> find_least_rank("up.*"), find_least_rank("up.weight")
    (1, 0)
    """
    return int(any(character in pattern for character in "*?["))


def check_rules(given: object, call: str, place: str = "") -> Mapping[str, PartitionSpec]:
    """Return specs by name pattern, of specs and of the shardings of arrays.

    Args:
        given: what a user said.
        call: how it was said, for messages.
        place: where, for messages.

    Raises:
        ShardingError: a pattern is not a string, or a spec is neither a PartitionSpec nor the
            sharding of an array.
    """
    if not isinstance(given, Mapping):
        raise ShardingError(
            f"{call} got {given!r}{place}; give a mapping from name patterns to partition specs, "
            f'such as {{"*.weight": P("tensor", None)}}'
        )
    found: dict[str, PartitionSpec] = {}
    for pattern, value in given.items():
        spec = read_spec(value)
        if not isinstance(pattern, str) or spec is None:
            raise ShardingError(
                f"{call} got {pattern!r}: {value!r}{place}; give a name pattern and a partition "
                f'spec, such as {{"*.weight": P("tensor", None)}}'
            )
        found[pattern] = spec
    return found


def match_rules(
    composition: Composition, names: Sequence[str], *, at_rest: bool = False
) -> list[tuple[str, Annotation]]:
    """Return every name a rule matches with its annotation; later pairs overrule earlier ones.

    Args:
        composition: the model with its rules, nested ones included.
        names: full names of all parameters and values.
        at_rest: match the rules of `model.at_rest` instead of those of `model.shard`.

    Raises:
        ShardingError: a pattern matches no name.
    """
    found: list[tuple[str, Annotation]] = []
    rules = (pair for pair in _rules(composition, "") if pair[1].at_rest == at_rest)
    for prefix, rule in rules:
        inner = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        hits = [name for name in inner if fnmatchcase(name, rule.pattern)]
        if not hits:
            raise ShardingError(
                f"pattern '{rule.pattern}' of {rule.call}{at(rule.place)} matches no "
                f"{'parameter' if at_rest else 'parameter or value'}; near names: "
                f"{listing(near_names(rule.pattern, inner))}"
            )
        least_rank = find_least_rank(rule.pattern) if at_rest else 0
        annotation = Annotation(rule.spec, place=at(rule.place), least_rank=least_rank)
        found += [(prefix + name, annotation) for name in hits]
    return found


def _rules(composition: Composition, prefix: str) -> Iterator[tuple[str, ShardRule]]:
    for member in composition.members:
        if isinstance(member.component, Composition):
            yield from _rules(member.component, f"{prefix}{member.name}.")
    for rule in composition.rules:
        yield prefix, rule
