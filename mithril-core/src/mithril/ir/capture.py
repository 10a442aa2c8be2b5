"""Captured arrays: what a trace takes in though nobody passed it as an argument.

A function or a layer may use arrays of values from around it. Each becomes a hidden input of the
graph, once however often it is used, and its values go in with every run: a plan holds its type and
name only, however large it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mithril.ir.tensor import Builder, Tensor
from mithril.types import DType, TensorType


class Typed(Protocol):
    """Anything with a shape and dtype."""

    @property
    def type(self) -> TensorType:
        """Shape and dtype."""


@dataclass(frozen=True, slots=True, eq=False)
class Converted:
    """Values as an array that a graph may have as an input.

    Args:
        array: the array.
        is_free: whether it may lie as the plan needs it; what nobody has placed may.
    """

    array: Typed
    is_free: bool


@dataclass(frozen=True, slots=True, eq=False)
class CapturedArray:
    """An array that a trace uses without having got it.

    Args:
        tensor: the hidden input.
        array: its values.
        given: what was used, kept so that it is known again.
        is_free: whether it may lie as the plan needs it.
    """

    tensor: Tensor
    array: Typed
    given: object
    is_free: bool

    @property
    def name(self) -> str:
        """The name of the hidden input."""
        return self.tensor.value.name


Convert = Callable[[object, DType | None], Converted | None]
"""Gives values as an array, of a dtype if one is said; None for what holds none."""


class CapturingBuilder(Builder):
    """A builder that takes arrays of values in; `captured_arrays` are those it took.

    Args:
        convert: what makes arrays of values.
        default_float: the float dtype of what is made of Python numbers alone.
    """

    def __init__(self, convert: Convert, default_float: DType) -> None:
        super().__init__()
        self.captured_arrays: list[CapturedArray] = []
        self.default_float = default_float
        self._convert = convert
        self._taken: dict[int, Tensor] = {}

    def adopt(self, x: object, dtype: DType | None = None) -> Tensor | None:
        """Return an array of values as a hidden input, the same one each time."""
        known = self._taken.get(id(x))
        if known is not None:
            return known
        found = self._convert(x, dtype)
        if found is None:
            return None
        name = self.free_name(f"captured.{len(self.captured_arrays)}")
        hidden = self.input(found.array.type, name)
        self.captured_arrays.append(CapturedArray(hidden, found.array, x, found.is_free))
        self._taken[id(x)] = hidden if dtype else self.enter(hidden)
        return self._taken[id(x)]

    def enter(self, hidden: Tensor) -> Tensor:
        """Return a captured array as the trace computes with it: as it is, by default."""
        return hidden
