"""Trees as names and leaves, and their form as plain data.

The name of a leaf is its keys with slashes: `params/up.weight`, `optimizer/0/mu/up.weight`. Arrays
are leaves, and so are Python's numbers and texts, which stand in the index itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mithril.errors import CheckpointError, kind_of
from mithril.trees import Branch, Leaf, Structure, flatten, names

ROOT = "value"
"""The name of what is saved by itself, without a tree around it."""
RESERVED = "__metadata__"
"""The one name that safetensors keeps for itself."""
Node = Any
"""A part of the form of a tree, as JSON holds it."""
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # JSON has no such numbers


def name_leaves(tree: object) -> tuple[Structure, dict[str, Any]]:
    """Return the structure of a tree, and its leaves by name.

    Raises:
        CheckpointError: two leaves have one name, or a key is neither a text nor an integer.
    """
    leaves: list[Any] = []
    structure = flatten(tree, leaves)
    _check_keys(structure, "")
    found: dict[str, Any] = {}
    for name, leaf in zip(names(structure, "", "/"), leaves, strict=True):
        name = name or ROOT
        if name in found or name == RESERVED:
            why = "is kept for safetensors" if name == RESERVED else "stands for two leaves"
            raise CheckpointError(f"name '{name}' {why}; give a key of the tree another name")
        found[name] = leaf
    return structure, found


def _check_keys(structure: Structure, path: str) -> None:
    if not isinstance(structure, Branch):
        return
    for key, child in zip(structure.keys, structure.children, strict=True):
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise CheckpointError(
                f"tree has the key {key!r} at '{path or '/'}', which is {kind_of(key)}; keys are "
                f"texts or integers"
            )
        if isinstance(key, str) and not key.isprintable():
            raise CheckpointError(
                f"tree has the key {key!r} at '{path or '/'}'; keys are printable texts"
            )
        _check_keys(child, f"{path}/{key}" if path else str(key))


def to_node(structure: Structure, leaves: Iterator[Node]) -> Node:
    """Return the form of a tree as plain data, with nodes in the places of leaves."""
    if structure is None:
        return {"value": None}
    if isinstance(structure, Leaf):
        return next(leaves)
    below = [to_node(child, leaves) for child in structure.children]
    if issubclass(structure.kind, dict):
        return {"dict": [list(item) for item in zip(structure.keys, below, strict=True)]}
    if structure.kind is list:
        return {"list": below}
    if hasattr(structure.kind, "_fields"):
        fields = [list(item) for item in zip(structure.keys, below, strict=True)]
        return {"namedtuple": fields, "class": structure.kind.__name__}
    return {"tuple": below}


def to_value_node(value: float | str) -> Node:
    """Return the node of a leaf that is a number or a text of Python."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    # What stands in a text, and not what `str` makes of it: a member of an Enum has a name, too.
    return {"value": str.__str__(value) if isinstance(value, str) else value}


def is_value(leaf: object) -> bool:
    """Whether a leaf is a number or a text of Python, which the index holds itself."""
    return type(leaf) in (bool, int, float) or isinstance(leaf, str)


def of_node(node: Node, tensor: Callable[[str], Any]) -> Any:
    """Return the tree of a form; named tuples come back as dicts.

    Args:
        node: plain data that `check_node` has seen.
        tensor: returns what stands for a tensor.
    """
    match node:
        case {"dict": items} | {"namedtuple": items}:
            return {key: of_node(child, tensor) for key, child in items}
        case {"list": items}:
            return [of_node(child, tensor) for child in items]
        case {"tuple": items}:
            return tuple(of_node(child, tensor) for child in items)
        case {"tensor": name}:
            return tensor(name)
        case {"float": text}:
            return _FLOATS[text]
    return node["value"]


def leaves_of_node(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """Yield name and node of each leaf, but not of None, which is a part of the form."""
    match node:
        case {"dict": items} | {"namedtuple": items}:
            for key, child in items:
                yield from leaves_of_node(child, f"{path}/{key}" if path else str(key))
        case {"list": items} | {"tuple": items}:
            for key, child in enumerate(items):
                yield from leaves_of_node(child, f"{path}/{key}" if path else str(key))
        case {"value": None}:
            return
        case _:
            yield path or ROOT, node


def find_node(node: Node, path: str) -> Node | None:
    """Return the node at a path of keys, None where there is none."""
    if not path:
        return node
    for key, child in list_children(node):
        if path == key:
            return child
        if path.startswith(f"{key}/"):
            found = find_node(child, path[len(key) + 1 :])
            if found is not None:
                return found
    return None


def list_children(node: Node) -> Iterator[tuple[str, Node]]:
    """Yield key and node of what is below a node."""
    match node:
        case {"dict": items} | {"namedtuple": items}:
            yield from ((str(key), child) for key, child in items)
        case {"list": items} | {"tuple": items}:
            yield from ((str(key), child) for key, child in enumerate(items))


def check_node(node: Node, tensors: Mapping[str, object]) -> None:
    """Raise a ValueError unless a node is one, and its tensors are there."""
    match node:
        case {"dict": [*items]} | {"namedtuple": [*items]}:
            for key, child in items:
                if isinstance(key, bool) or not isinstance(key, str | int):
                    raise ValueError(f"{key!r} is no key")
                check_node(child, tensors)
        case {"list": [*items]} | {"tuple": [*items]}:
            for child in items:
                check_node(child, tensors)
        case {"tensor": str(name)} if name in tensors:
            return
        case {"float": "nan" | "inf" | "-inf"}:
            return
        case {"value": None | bool() | int() | float() | str()}:
            return
        case _:
            raise ValueError(f"{str(node)[:80]} is no part of a tree")
