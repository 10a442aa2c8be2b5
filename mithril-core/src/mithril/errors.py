"""Every error Mithril raises, as one tree.

A message reads `Subject verb fact; numbers; remedy` and uses the user's own names: layer path,
tensor, mesh axis, file and line. Catch `MithrilError` to catch them all.
"""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable, Sequence

FRAMEWORKS = {"jax": "jax", "jaxlib": "jax", "torch": "torch", "mlx": "mlx.core", "numpy": "numpy"}
"""Packages whose classes a message names with their package, and how users write it."""


class MithrilError(Exception):
    """Something the user can put right; the base of every error below."""


class GraphError(MithrilError):
    """A model or graph is put together wrongly: names, connections, cycles."""


class ShapeError(MithrilError):
    """Shapes or dtypes do not fit together."""


class ShardingError(MithrilError):
    """A tensor cannot be split as asked."""


class MeshError(MithrilError):
    """A device mesh does not exist, does not fit, or lacks an axis."""


class PlanError(MithrilError):
    """A plan cannot be made, or would break a limit the user set."""


class BackendError(MithrilError):
    """A backend is absent, cannot be opened, or failed while running."""


class FaultyBackendError(BackendError):
    """A kernel raised, or something that a backend returned is not what it has to be."""


class CheckpointError(MithrilError):
    """A checkpoint cannot be written or read."""


class OptionError(MithrilError):
    """An option is unknown, has a wrong value, or is not available here."""


class UnknownNameError(GraphError, KeyError):
    """A name is not known where it is looked up: no key of a mapping, no op; a KeyError, too."""

    __str__ = Exception.__str__  # that of KeyError quotes the text


class MithrilWarning(UserWarning):
    """What runs, and probably not as the user wants it."""


def warn(text: str) -> None:
    """Warn at the line outside of Mithril that led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _is_own(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, MithrilWarning, stacklevel=level)


def _is_own(module: str) -> bool:
    return module.partition(".")[0] == "mithril"


def nearest(name: object, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the known name closest to `name`, or an empty string.

    >>> nearest("wieght", ["weight", "bias"])
    "; did you mean 'weight'?"
    >>> nearest("ReLU", ["Relu", "Gelu"])
    "; did you mean 'Relu'?"
    >>> nearest("zzz", ["weight"])
    ''
    """
    name, names = str(name), list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if not close:  # other spellings differ in their capitals
        lower = {other.lower(): other for other in reversed(names)}
        found = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
        close = [lower[other] for other in found]
    return f"; did you mean '{close[0]}'?" if close else ""


def near_names(pattern: str, names: Sequence[str]) -> list[str]:
    """Return a few names that look like a pattern, or the first ones."""
    return difflib.get_close_matches(pattern, names, n=5, cutoff=0.3) or list(names[:5])


def listing(names: Iterable[str]) -> str:
    """Return names quoted and joined for a message, or `none`.

    >>> listing(["a", "b"])
    "'a', 'b'"
    """
    return ", ".join(f"'{name}'" for name in names) or "none"


def kind_of(value: object) -> str:
    """Return what a message calls a value that is something else than it should be.

    A class of another package is named as its users write it.

    >>> kind_of(None), kind_of([1]), kind_of(2), kind_of(object())
    ('None', 'a list', 'an int', 'an object')
    """
    if value is None:
        return "None"
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    name = "jax.Array" if kind.__name__ == "ArrayImpl" else kind.__name__
    if package in FRAMEWORKS and "." not in name:
        name = f"{FRAMEWORKS[package]}.{name}"
    return f"{'an' if name[0].lower() in 'aeio' else 'a'} {name}"
