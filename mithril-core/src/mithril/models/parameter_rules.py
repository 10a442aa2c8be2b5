"""What a model says of parameters by name: which are trained, how they start, which are one.

Rules of a nested model, or of a repeated block, speak of the names inside it, and come before those
of the model around it; the last rule that matches a name wins. Where two parameters are one, what
is said of either name holds for it, and both names may not say different things.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from typing import TypeVar

from mithril.errors import GraphError, MithrilError, OptionError, ShardingError, listing, near_names
from mithril.ir.source import at
from mithril.models.annotations import Annotation
from mithril.models.composition import Composition
from mithril.models.initializers import Initializer
from mithril.models.layer import Layer
from mithril.models.parameter_rule import ParameterRule
from mithril.models.prefixes import parameter_places

Said = TypeVar("Said")
Rules = Iterator[tuple[str, ParameterRule]]


def ties_of(component: Composition | Layer) -> dict[str, str]:
    """Return for each parameter of a model that is tied to another the name of that one."""
    found = dict(_ties(component, ""))

    def end(name: str) -> str:
        while name in found:
            name = found[name]
        return name

    return {name: end(kept) for name, kept in found.items()}


def frozen_of(component: Composition | Layer) -> frozenset[str]:
    """Return the full names of the parameters that are not trained; needs no shapes.

    Raises:
        GraphError: a pattern matches no parameter, or a parameter is both trained and not.
    """
    said = merge_tied(_match(component, bool), ties_of(component), "is trained")
    return frozenset(name for name, is_trained in said.items() if not is_trained)


def starts_of(component: Composition | Layer) -> dict[str, Initializer]:
    """Return how parameters start, where `model.initialize` says so; needs no shapes.

    Raises:
        GraphError: a pattern matches no parameter, or a parameter shall start in two ways.
    """
    return merge_tied(_match(component, Initializer), ties_of(component), "starts")


def merge_tied(
    said: Iterable[tuple[Sequence[str], Said]],
    ties: Mapping[str, str],
    what: str,
    error: type[MithrilError] = GraphError,
    compare: Callable[[Said], object] = lambda value: value,
) -> dict[str, Said]:
    """Return what is said of parameters last, by the names that they keep.

    What is said of both names of tied parameters may be said otherwise of one of them later.

    Args:
        said: names and what is said of them, in order.
        ties: for each tied parameter the name that is kept.
        what: the verb of what is said, for messages.
        error: raised where each name is said something else of.
        compare: what of it has to agree.

    Raises:
        MithrilError: they do not.
    """
    groups: dict[str, dict[str, tuple[Said, set[str]]]] = {}
    for names, value in said:
        meant: dict[str, set[str]] = {}
        for name in names:
            meant.setdefault(ties.get(name, name), set()).add(name)
        for kept, together in meant.items():
            group = groups.setdefault(kept, {})
            overruled = [n for n, (_, earlier) in group.items() if earlier & together]
            for name in overruled:
                del group[name]
            group.update(dict.fromkeys(together, (value, together)))
    for group in groups.values():
        (one, (first, _)), *others = group.items()
        for other, (value, _) in others:
            if compare(value) != compare(first):
                raise error(
                    f"parameters '{one}' and '{other}' are tied, and one {what} as {first}, the "
                    f"other as {value}; say it of one of them, or the same of both"
                )
    return {kept: next(iter(group.values()))[0] for kept, group in groups.items()}


def merge_tied_annotations(
    said: Iterable[tuple[str, Annotation]], ties: Mapping[str, str], what: str
) -> dict[str, Annotation]:
    """Return annotations by the names that parameters keep.

    Args:
        said: a name and its annotation, in order; those of one rule have one annotation.
        ties: for each tied parameter the name that is kept.
        what: the verb of what is said, for messages.

    Raises:
        ShardingError: two that are tied have different ones.
    """

    def wish(one: Annotation) -> object:
        return one.spec, one.device_mesh, one.device_mesh_partition

    rules = (list(pairs) for _, pairs in groupby(said, lambda pair: id(pair[1])))
    steps = (([name for name, _ in pairs], pairs[0][1]) for pairs in rules)
    return merge_tied(steps, ties, what, ShardingError, wish)


def read_rules(
    given: object, call: str, place: str, read: Callable[[object, str], bool | Initializer]
) -> list[tuple[str, bool | Initializer]]:
    """Return what a user said by name pattern.

    Args:
        given: what a user said.
        call: how it was said, for messages.
        place: where, for messages.
        read: returns a value that was given, or raises.

    Raises:
        OptionError: it is no mapping from patterns, or a value cannot be.
    """
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise OptionError(
            f"{call} got {given!r}{place}; give a mapping from name patterns, such as "
            f'{{"*.weight": …}}'
        )
    return [(name, read(value, f"{call} of '{name}'{place}")) for name, value in given.items()]


def _match(component: Composition | Layer, kind: type[Said]) -> Iterator[tuple[list[str], Said]]:
    """Yield what each rule says, and of which parameters, by their first places."""
    names = parameter_places(component)
    for prefix, rule in _rules(component, ""):
        if not isinstance(rule.value, kind):
            continue
        inner = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        hits = [name for name in inner if fnmatchcase(name, rule.pattern)]
        if not hits:
            raise GraphError(
                f"pattern '{rule.pattern}' of {rule.call}{at(rule.place)} matches no parameter; "
                f"near names: {listing(near_names(rule.pattern, inner))}"
            )
        yield [names[prefix + name] for name in hits], rule.value


def list_rules(component: Composition | Layer) -> Rules:
    """Yield the rules of a model, and what the names that they speak of begin with."""
    yield from _rules(component, "")


def _rules(component: Composition | Layer, prefix: str) -> Rules:
    for path, inside in _inside(component, prefix):
        yield from _rules(inside, path)
    if isinstance(component, Layer):
        for part in component.parts.names:
            yield from ((prefix + start, rule) for start, rule in part.rules)
    if isinstance(component, Composition):
        for rule in component.parameter_rules:
            yield prefix, rule


def _ties(component: Composition | Layer, prefix: str) -> Iterator[tuple[str, str]]:
    for path, inside in _inside(component, prefix):
        yield from _ties(inside, path)
    if isinstance(component, Composition):
        for name, kept in component.ties:
            yield prefix + name, prefix + kept


def _inside(
    component: Composition | Layer, prefix: str
) -> Iterable[tuple[str, Composition | Layer]]:
    """Yield the members of a model, and the block of a Repeat, whose names are its own."""
    if isinstance(component, Composition):
        return [(f"{prefix}{member.name}.", member.component) for member in component.members]
    block = component.config.get("block")
    return [(prefix, block)] if isinstance(block, Composition | Layer) else []
