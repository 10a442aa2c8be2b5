"""What users give functions besides tensors: integers, sizes, lists of numbers."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, TypeGuard

import numpy as np

from mithril.errors import ShapeError, kind_of
from mithril.option_checks import check_flag


def read_integer(value: object, what: str) -> int:
    """Return an integer of Python.

    Args:
        value: an integer of Python or NumPy.
        what: what it is, for messages: `roll's shift`, say.

    Raises:
        ShapeError: it is none; True and False are none.

    >>> read_integer(np.int8(3), "roll's shift")
    3
    """
    number = _find_integer(value)
    if number is None:
        raise ShapeError(f"{what} is {_show(value)}, which is no integer; give one")
    return number


def read_flag(value: object, what: str) -> bool:
    """Return whether something is so, as `True` or `False` say it, or 1 or 0.

    Args:
        value: one of these, of Python or NumPy.
        what: what it is, for messages: `sum's keepdims`, say.

    Raises:
        OptionError: it is none of them.

    >>> read_flag(np.bool_(True), "sum's keepdims")
    True
    """
    is_number = isinstance(value, int | np.generic) and value in (0, 1)
    return check_flag(what, bool(value) if is_number else value)


def read_integers(values: object, what: str) -> tuple[int, ...]:
    """Return integers; a lone one stands for itself, as in NumPy.

    Args:
        values: an integer, or several.
        what: what they are, for messages: `reshape's shape`, say.

    Raises:
        ShapeError: one of them is no integer.

    >>> read_integers(6, "reshape's shape"), read_integers([2, 3], "reshape's shape")
    ((6,), (2, 3))
    """
    if is_list(values):
        return tuple(read_integer(value, f"a number in {what}") for value in values)
    return (read_integer(values, what),)


def is_list(values: object) -> TypeGuard[Iterable[Any]]:
    """Return whether there are several of something: an array without dimensions is one."""
    is_scalar: bool = getattr(values, "ndim", None) == 0
    return isinstance(values, Iterable) and not is_scalar


def read_values(values: object) -> np.ndarray:
    """Return numbers in lists as an array of NumPy.

    Raises:
        ShapeError: they form none.
    """
    try:
        host = np.asarray(values)
    except ValueError as error:
        raise ShapeError(f"values do not form an array; {error}; give equal lengths") from error
    if host.dtype.kind not in "biufV":
        raise ShapeError(f"values are of type {host.dtype}; give lists of numbers, or tensors")
    return host


def _find_integer(value: Any) -> int | None:
    """Return an integer of Python; None of what is none, as True and False are."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _show(value: Any) -> str:
    return repr(value) if isinstance(value, int | float | str | None) else kind_of(value)


__all__: list[str] = []
