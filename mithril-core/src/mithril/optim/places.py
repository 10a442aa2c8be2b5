"""Which tensors of a state belong to which parameter: by their names, and by their shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from mithril.errors import GraphError, kind_of
from mithril.optim.transformation import State, Tree
from mithril.trees import flatten, names
from mithril.types import as_dtype


def match_parameters(state: State, params: Tree) -> dict[str, str]:
    """Return for each tensor of a state that is like a parameter the name of that parameter.

    Such tensors (moments, averages, copies) stand in trees of the form of the parameters, so that
    their names end in a parameter's: `0.mu.up.weight` belongs to `up.weight`. They have its shape,
    and lie as it does; all others, counts and rows of a factored moment, lie for themselves.

    Args:
        state: of an optimiser; arrays, traced tensors, or whatever has a shape and a dtype.
        params: what it was made for, of the same.

    Returns:
        Names of parameters by names of tensors, both joined by dots.

    Raises:
        GraphError: a leaf has no shape or no dtype.

    >>> from mithril.optim import adam
    >>> params = {"up.weight": backend.array([1.0])}
    >>> match_parameters(adam(0.1).init(params), params)
    {'0.mu.up.weight': 'up.weight', '0.nu.up.weight': 'up.weight'}
    """
    shapes = {name: tuple(x.shape) for name, x in _name_leaves(params)}
    candidates = {
        path: list(_find_suffixes(path, tuple(x.shape), shapes))
        for path, x in _name_leaves(state)
        if as_dtype(x.dtype).is_float
    }
    # A tree of the state has many parameters behind one beginning; a name by chance has not.
    hits = Counter(begin for found in candidates.values() for begin, _ in found)
    return {
        path: max(found, key=lambda pair: (hits[pair[0]], len(pair[1])))[1]
        for path, found in candidates.items()
        if found
    }


def _name_leaves(tree: Tree) -> Iterator[tuple[str, Any]]:
    leaves: list[Any] = []
    structure = flatten(tree, leaves)
    for name, x in zip(names(structure, ""), leaves, strict=True):
        if not hasattr(x, "shape") or not hasattr(x, "dtype"):
            raise GraphError(
                f"match_parameters() is given {kind_of(x)} as '{name}', which has no shape and "
                f"dtype; give the state and the parameters of an optimiser"
            )
        yield name, x


def _find_suffixes(
    path: str, shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, str]]:
    """Yield pairs of a beginning and a parameter that make a path, where the shapes are equal."""
    parts = path.split(".")
    for i in range(len(parts) + 1):
        name = ".".join(parts[i:])
        if shapes.get(name) == shape:
            yield ".".join(parts[:i]), name
