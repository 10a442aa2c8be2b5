"""Kernels: how ops run on arrays of one device, written once on the Python array API standard.

A kernel is registered for an op class. It is called once per node when a program is lowered, with
the op, the operand types and the array namespace, and returns the function that runs each time:
whatever depends only on attributes and shapes is worked out beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from mithril.ir import Op
from mithril.types import TensorType

Run = Callable[..., Any]
Kernel = Callable[[Any, Sequence[TensorType], ModuleType], Run]
KERNELS: dict[str, Kernel] = {}


def same_name(table: Mapping[type[Op], str]) -> None:
    """Register kernels that are a function of the namespace, by its name."""
    for op_class, function in table.items():
        KERNELS[op_class.name] = _named(function)


def _named(function: str) -> Kernel:
    def factory(op: object, types: Sequence[TensorType], xp: ModuleType) -> Run:
        run: Run = getattr(xp, function)
        return run

    return factory


def kernel(*op_classes: type[Op]) -> Callable[[Kernel], Kernel]:
    """Register a kernel factory `(op, operand types, namespace) -> function` for op classes.

    The function takes the operands and returns the result, or a tuple when the op has several.
    """

    def add(factory: Kernel) -> Kernel:
        for op_class in op_classes:
            KERNELS[op_class.name] = factory
        return factory

    return add
