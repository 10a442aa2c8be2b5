"""Which tensors of a state belong to which parameter: by their names, and by their shapes."""

from __future__ import annotations

from collections import Counter

from mithril.optim.form import Form, is_float
from mithril.optim.transformation import State, Tree
from mithril.trees import flatten, names


def match_parameters(state: State, params: Tree) -> dict[str, str]:
    """Return for each tensor of a state that is like a parameter the name of that parameter.

    Such tensors (moments, averages, copies) stand in trees of the form of the parameters, so that
    their names end in a parameter's: `0.mu.up.weight` belongs to `up.weight`. They have its shape,
    and lie as it does; all others, counts and rows of a factored moment, lie for themselves.

    Args:
        state: of an optimiser.
        params: what it was made for; arrays, traced tensors, or whatever has a shape and a dtype.

    Returns:
        Names of parameters by names of tensors, both joined by dots.

    >>> from mithril.optim import adam
    >>> params = {"up.weight": backend.array([1.0])}
    >>> match_parameters(adam(0.1).init(params), params)
    {'0.mu.up.weight': 'up.weight', '0.nu.up.weight': 'up.weight'}
    """
    form = Form(params)
    shapes = {name: tuple(x.shape) for name, x in zip(form.names, form.leaves, strict=True)}
    leaves: list[object] = []
    structure = flatten(state, leaves)
    candidates = {
        path: list(_find_suffixes(path, tuple(x.shape), shapes))  # type: ignore[attr-defined]
        for path, x in zip(names(structure, ""), leaves, strict=True)
        if is_float(x)
    }
    # A tree of the state has many parameters behind one beginning; a name by chance has not.
    hits = Counter(begin for found in candidates.values() for begin, _ in found)
    return {
        path: max(found, key=lambda pair: (hits[pair[0]], len(pair[1])))[1]
        for path, found in candidates.items()
        if found
    }


def _find_suffixes(
    path: str, shape: tuple[int, ...], shapes: dict[str, tuple[int, ...]]
) -> list[tuple[str, str]]:
    """Return pairs of a beginning and a parameter that make a path, where the shapes are equal."""
    parts = path.split(".")
    splits = [(".".join(parts[:i]), ".".join(parts[i:])) for i in range(len(parts) + 1)]
    return [(begin, name) for begin, name in splits if shapes.get(name) == shape]
