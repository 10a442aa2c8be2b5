"""Trees: arguments and results made of dicts, lists, tuples and None, with arrays as leaves.

The structure of a tree is plain data that compares and hashes; together with the leaves it gives
the tree back. A prefix is a smaller tree of the same form: what stands at one of its leaves goes
for everything below that place.
"""

from __future__ import annotations

import reprlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mithril.errors import GraphError, listing
from mithril.ir import Operand
from mithril.mesh import PartitionSpec, read_spec

Kind = TypeVar("Kind", bound=type[dict[Any, Any]])


class Branch(NamedTuple):
    """A place of a tree with something below.

    Args:
        kind: the type of the container.
        keys: its keys, field names or positions.
        children: the structures below.
    """

    kind: type
    keys: tuple[Hashable, ...]
    children: tuple[Structure, ...]


class Leaf(NamedTuple):
    """A place of a tree with an array; or, with `fixed`, with a value that is a part of the form.

    Args:
        fixed: nothing for an array, else the types in a value and the value.
        is_number: whether it is a number of Python or a scalar of NumPy, which takes the dtype of
            the array it meets.
    """

    fixed: tuple[Any, ...] = ()
    is_number: bool = False


Structure = Branch | Leaf | None
LEAF, NUMBER = Leaf(), Leaf(is_number=True)
_KEPT: set[type] = {dict, OrderedDict}
MOST_DEEP = 100
"""Containers in each other; what goes through a tree calls itself for each."""


def keep_kind(kind: Kind) -> Kind:
    """Have trees give mappings of a class back as such; of other classes they make dicts."""
    _KEPT.add(kind)
    return kind


def flatten(
    tree: object,
    leaves: list[Any],
    is_fixed: Callable[[object], bool] | None = None,
    depth: int = 0,
) -> Structure:
    """Return the structure of a tree, and add its leaves to a list.

    Args:
        tree: anything; what is no container is a leaf.
        leaves: the list.
        is_fixed: tells which leaves are parts of the structure instead.
        depth: how many containers it is in.

    Raises:
        GraphError: containers are nested too deep, or one holds itself.

    >>> found = []
    >>> structure = flatten({"w": 1.0, "rest": [2.0, None]}, found)
    >>> found, rebuild(structure, [10, 20])
    ([1.0, 2.0], {'w': 10, 'rest': [20, None]})
    """
    if isinstance(tree, Operand):  # first, because most leaves are
        leaves.append(tree)
        return LEAF
    if tree is None:
        return None
    if isinstance(tree, dict):
        _check_depth(depth)
        kind = type(tree) if type(tree) in _KEPT else dict
        kinds = set(map(type, tree.values()))
        if len(kinds) == 1 and issubclass(kinds.pop(), Operand):  # hundreds, in every call
            leaves.extend(tree.values())
            return Branch(kind, tuple(tree), (LEAF,) * len(tree))
        below = [flatten(item, leaves, is_fixed, depth + 1) for item in tree.values()]
        return Branch(kind, tuple(tree), tuple(below))
    if isinstance(tree, list | tuple):
        _check_depth(depth)
        below = [flatten(item, leaves, is_fixed, depth + 1) for item in tree]
        keys = getattr(tree, "_fields", None) or range(len(below))
        return Branch(list if isinstance(tree, list) else type(tree), tuple(keys), tuple(below))
    if is_fixed is not None and is_fixed(tree):
        return Leaf((type(tree), tree))
    leaves.append(tree)
    return NUMBER if isinstance(tree, bool | int | float | np.generic) else LEAF


def collect_leaves(tree: object, structure: Structure, leaves: list[Any]) -> bool:
    """Add the leaves of a tree to a list, and return whether it has a structure that is known.

    It takes a fraction of the time of `flatten`, because no leaf is looked at: what stands at one
    may also be a container, or a number.

    Args:
        tree: anything.
        structure: of a tree with nothing but arrays; any other is none that is recognised.
        leaves: the list; of a tree of another structure some leaves may be added.

    >>> structure = flatten({"w": np.ones(2), "rest": [np.ones(3), None]}, [])
    >>> found = []
    >>> collect_leaves({"w": 1, "rest": [2, None]}, structure, found), found
    (True, [1, 2])
    >>> collect_leaves({"w": 1, "rest": [2]}, structure, []), collect_leaves([1], structure, [])
    (False, False)
    """
    if structure is None:
        return tree is None
    if isinstance(structure, Leaf):
        leaves.append(tree)
        return structure == LEAF
    if type(tree) is not structure.kind:
        return False
    container: Any = tree
    if issubclass(structure.kind, dict):
        if tuple(container) != structure.keys:
            return False
        container = container.values()
    elif len(container) != len(structure.keys):
        return False
    if structure.children == (LEAF,) * len(structure.children):
        leaves.extend(container)
        return True
    return all(map(collect_leaves, container, structure.children, repeat(leaves)))


def _check_depth(depth: int) -> None:
    if depth >= MOST_DEEP:
        raise GraphError(
            f"a tree holds containers nested more than {MOST_DEEP} deep, or one that holds itself; "
            f"give arrays in fewer dicts, lists and tuples"
        )


def together(structures: Sequence[Structure]) -> Structure:
    """Return the structure of a tuple of trees."""
    return Branch(tuple, tuple(range(len(structures))), tuple(structures))


def rebuild(structure: Structure, leaves: Iterable[Any]) -> Any:
    """Return the tree of a structure with other leaves; of an iterator it takes what it needs."""
    leaves = iter(leaves)
    if structure is None:
        return None
    if isinstance(structure, Leaf):
        return structure.fixed[1] if structure.fixed else next(leaves)
    kind: Any = structure.kind
    items: Any
    if structure.children == (LEAF,) * len(structure.children):
        items = islice(leaves, len(structure.children))
    else:
        items = [rebuild(child, leaves) for child in structure.children]
    if issubclass(kind, dict):
        return kind(zip(structure.keys, items, strict=True))
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


def names(structure: Structure, path: str, separator: str = ".") -> Iterator[str]:
    """Yield a name for each leaf: its keys behind the name of the tree, with dots in between."""
    if isinstance(structure, Branch):
        for key, child in zip(structure.keys, structure.children, strict=True):
            below = f"{path}{separator}{key}" if path else str(key)
            yield from names(child, below, separator)
    elif isinstance(structure, Leaf) and not structure.fixed:
        yield path


def numbers(structure: Structure) -> Iterator[bool]:
    """Yield for each leaf whether it is a Python number."""
    if isinstance(structure, Branch):
        for child in structure.children:
            yield from numbers(child)
    elif isinstance(structure, Leaf) and not structure.fixed:
        yield structure.is_number


def spread(prefix: object, structure: Structure, what: str) -> Iterator[PartitionSpec | None]:
    """Yield the spec that a prefix tree has for each leaf, None where it says nothing.

    Args:
        prefix: a PartitionSpec, a Sharding, None, or a tree of them in the form of the tree they
            are for.
        structure: of the tree.
        what: names the tree, for messages.

    Raises:
        GraphError: the prefix is of another form.
    """
    spec = read_spec(prefix)
    if prefix is None or spec is not None:
        yield from (spec for _ in names(structure, ""))
    elif isinstance(structure, Branch) and _fits(prefix, structure):
        for key, child in zip(structure.keys, structure.children, strict=True):
            part = prefix[key] if isinstance(prefix, Mapping) else None
            if isinstance(prefix, list | tuple):
                part = prefix[structure.keys.index(key)]
            yield from spread(part, child, f"{what}.{key}")
    else:
        raise GraphError(
            f"the shardings of {what} are {shorten(prefix)}; give P(…) or None for all of it, or "
            f"a tree of its form, {_form(structure)}"
        )


def shorten(tree: object) -> str:
    """Return a tree as a message shows it: without what is deep inside, or one of very many."""
    short = reprlib.Repr()
    short.maxdict = short.maxlist = short.maxtuple = 12
    short.maxother = 200
    return short.repr(tree)


def _fits(prefix: object, structure: Branch) -> bool:
    if isinstance(prefix, Mapping):
        return issubclass(structure.kind, dict) and set(prefix) == set(structure.keys)
    if isinstance(prefix, list | tuple):
        return not issubclass(structure.kind, dict) and len(prefix) == len(structure.keys)
    return False


def _form(structure: Structure) -> str:
    if not isinstance(structure, Branch):
        return "one array" if isinstance(structure, Leaf) else "None"
    if issubclass(structure.kind, dict):
        return f"a dict with the keys {listing(map(str, structure.keys))}"
    return f"a {structure.kind.__name__} of {len(structure.keys)}"
