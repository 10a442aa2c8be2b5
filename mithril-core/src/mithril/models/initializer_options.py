"""What users give where an initializer is asked for: one, a function, or some by name pattern."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from mithril.errors import OptionError, kind_of, listing, nearest
from mithril.mesh import Box
from mithril.models.initializers import Initializer, RandomKey
from mithril.types import Shape


@dataclass(frozen=True, slots=True)
class FromFunction(Initializer):
    """A function `(key, shape, box) -> numbers` as an initializer."""

    function: Callable[[RandomKey, Shape, Box], np.ndarray]

    def draw(self, key: RandomKey, shape: Shape, box: Box) -> np.ndarray:
        """Return the part of a parameter that a box cuts out."""
        return self.function(key, shape, box)


def as_initializer(given: object, what: str) -> Initializer:
    """Return what a user gave as an initializer; a function of key, shape and box is one.

    Args:
        given: what the user gave.
        what: names it in the message.

    Raises:
        OptionError: it is none.
    """
    if isinstance(given, Initializer):
        return given
    if isinstance(given, type) and issubclass(given, Initializer):
        raise OptionError(
            f"{what} is the class {given.__name__}; make one of it, such as ml.{given.__name__}(…)"
        )
    if callable(given):
        _check_arguments(given, what)
        return FromFunction(given)
    shown = "None" if given is None else f"{given!r}, {kind_of(given)}"
    raise OptionError(
        f"{what} is {shown}; give an initializer, such as ml.Normal(0.02), or a function of key, "
        f"shape and box"
    )


def _check_arguments(function: Callable[..., object], what: str) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a function in C, which does not say
        return
    try:
        signature.bind("key", "shape", "box")
    except TypeError:
        raise OptionError(
            f"{what} is a function of {signature}, and is called with 3 arguments: key, shape and "
            f"box; take these"
        ) from None


def read_initializers(
    layer: str, parameters: Sequence[str], weights: Sequence[Sequence[str]], given: object
) -> dict[str, Initializer]:
    """Return how parameters start, from a layer's option `initializer`.

    Args:
        layer: the layer's name, for messages.
        parameters: names of its parameters.
        weights: which of them are weights, in groups; a lone initializer is for these, or for all
            parameters where there are none.
        given: an initializer, a mapping of such by name pattern, or None.

    Raises:
        OptionError: it is something else, or a pattern matches no parameter.
    """
    if given is None:
        return {}
    if not parameters:
        raise OptionError(f"{layer} has no parameters to initialize; remove initializer={given!r}")
    if not isinstance(given, Mapping):
        lone = as_initializer(given, f"{layer} option initializer")
        named = [name for group in weights for name in group if name in parameters]
        return dict.fromkeys(named or parameters, lone)
    found: dict[str, Initializer] = {}
    for pattern, one in given.items():
        hits = [name for name in parameters if fnmatchcase(name, str(pattern))]
        if not hits:
            raise OptionError(
                f"{layer} option initializer names '{pattern}', which matches no parameter; "
                f"parameters: {listing(parameters)}{nearest(str(pattern), parameters)}"
            )
        start = as_initializer(one, f"{layer} option initializer for '{pattern}'")
        found.update(dict.fromkeys(hits, start))
    return found
