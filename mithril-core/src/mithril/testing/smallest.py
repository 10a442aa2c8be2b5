"""The smallest operands on which a backend is wrong: what an author wants to see first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mithril.errors import MithrilError
from mithril.ir import Op, Rule
from mithril.testing.evaluate import apply, type_of
from mithril.types import TensorType

ATTEMPTS = 24
"""How many smaller operands are tried at most: each is compiled and run."""
SHOWN = 12
"""Elements of an operand up to which all of them are shown."""

Arrays = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Difference:
    """What is wrong of a result.

    Args:
        text: in words.
        cause: what others may have in common with it; see `Outcome`.
    """

    text: str
    cause: str = ""


Judge = Callable[[Op, Arrays], Difference | None]
"""Returns what is wrong of an op on operands; None if nothing is."""


@dataclass(frozen=True)
class Failing:
    """An op, operands on which it is wrong, and how."""

    op: Op
    arrays: Arrays
    difference: Difference

    def __str__(self) -> str:
        operands = ", ".join(show(array) for array in self.arrays) or "no operands"
        return f"{self.difference.text}; smallest failing case: {self.op} of {operands}"


def shrink(failing: Failing, judge: Judge) -> Failing:
    """Return the same failure on operands of which some dimensions are cut to one entry.

    A factor of the op's rule is cut in all operands that have it, at its first, its last and its
    middle index, and what still fails is cut further along the next factor.

    Args:
        failing: an op that fails.
        judge: runs an op on operands and compares the result.
    """
    attempts = ATTEMPTS
    for factor in _rule_of(failing).splittable:
        size = _rule_of(failing).sizes.get(factor, 1)
        for index in sorted({0, size - 1, size // 2}) if size > 1 else ():
            smaller = _cut(failing, factor, index) if attempts else None
            if smaller is None:
                continue
            attempts -= 1
            difference = judge(*smaller)
            if difference is not None:
                failing = Failing(*smaller, difference)
                break
    return failing


def show(array: np.ndarray) -> str:
    """Return an array as `float32[2] [1.0, 2.0]`, the numbers of a large one left out.

    >>> show(np.float32([1, 2])), show(np.zeros((9, 9)))
    ('float32[2] [1.0, 2.0]', 'float64[9, 9]')
    """
    type = str(type_of(array))
    return f"{type} {array.tolist()}" if array.size <= SHOWN else type


def _rule_of(failing: Failing) -> Rule:
    types = [type_of(array) for array in failing.arrays]
    return failing.op.rule(types, list(failing.op.infer(types)))


def _cut(failing: Failing, factor: str, index: int) -> tuple[Op, Arrays] | None:
    """Return an op and its operands with one entry of a factor, None where it has no such form."""
    rule = _rule_of(failing)
    arrays = []
    for number, (array, dims) in enumerate(zip(failing.arrays, rule.operands, strict=True)):
        if any(factor in dim and dim != (factor,) for dim in dims) or number in rule.ignored:
            return None
        cut = tuple(slice(index, index + 1) if dim == (factor,) else slice(None) for dim in dims)
        arrays.append(np.ascontiguousarray(array[cut]) if array.ndim else array)
    outputs = []
    types = [type_of(array) for array in failing.arrays]
    for type, dims in zip(failing.op.infer(types), rule.results, strict=True):
        if any(factor in dim and dim != (factor,) for dim in dims):
            return None
        shape = (1 if dim == (factor,) else n for dim, n in zip(dims, type.shape, strict=True))
        outputs.append(TensorType(tuple(shape), type.dtype))
    try:
        op = failing.op.resize(outputs)
        apply(op, *arrays)
    except (MithrilError, AssertionError, ValueError, IndexError):  # it has no such form
        return None
    return op, tuple(arrays)
