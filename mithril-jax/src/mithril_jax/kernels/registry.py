"""The table of JAX kernels by op name.

A kernel is registered for an op class as a factory `(op, operand types) -> function`, called once
when a program is lowered; the function is traced. Whatever depends only on attributes and shapes is
worked out by the factory. Functions bind `lax` primitives where they are called often: tracing
`jax.numpy` takes two to ten times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mithril.engine.kernels.registry import Kernel, Run
from mithril.ir import Op
from mithril.types import TensorType

Types = Sequence[TensorType]
Factory = Callable[[Any, Types], Run]
KERNELS: dict[str, Kernel] = {}
CPU_KERNELS: dict[str, Kernel] = {}
"""What runs on CPU devices instead: XLA:CPU has costs of its own."""


def kernel(
    *op_classes: type[Op], table: dict[str, Kernel] = KERNELS
) -> Callable[[Factory], Factory]:
    """Register a kernel factory for op classes, in one of the tables."""

    def add(factory: Factory) -> Factory:
        for op_class in op_classes:
            table[op_class.name] = factory
        return factory

    return add


def kernels_on(platform: str) -> dict[str, Kernel]:
    """Return the kernels for devices of a platform."""
    return {**KERNELS, **CPU_KERNELS} if platform == "cpu" else KERNELS


def same(table: Mapping[type[Op], Run]) -> None:
    """Register functions that are kernels as they are, whatever the attributes and types."""
    for op_class, function in table.items():
        kernel(op_class)(_always(function))


def _always(function: Run) -> Factory:
    return lambda op, types: function
