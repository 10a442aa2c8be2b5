"""The table of MLX kernels by op name.

A kernel is registered for an op class as a factory `(op, operand types) -> function`, called once
when a program is lowered. Whatever depends only on attributes and shapes is worked out by the
factory; the function builds a few nodes of MLX's lazy graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx
from mithril.engine.kernels.registry import Kernel, Run
from mithril.ir import Op
from mithril.types import TensorType

from mithril_mlx.tensors import mlx_dtype

Types = Sequence[TensorType]
Factory = Callable[[Any, Types], Run]
KERNELS: dict[str, Kernel] = {}


def kernel(*op_classes: type[Op]) -> Callable[[Factory], Factory]:
    """Register a kernel factory for op classes."""

    def add(factory: Factory) -> Factory:
        for op_class in op_classes:
            KERNELS[op_class.name] = factory
        return factory

    return add


def zero_without_elements(factory: Factory) -> Factory:
    """Return the factory of a kernel that gives zeros where an operand has no elements.

    MLX's sums of such operands may be anything, or never come to an end.
    """

    def make(op: Any, types: Types) -> Run:
        if all(type.size for type in types):
            return factory(op, types)
        results = [(type.shape, mlx_dtype(type.dtype)) for type in op.infer(types)]

        def zeros(*operands: mx.array) -> Any:
            found = tuple(mx.zeros(shape, dtype) for shape, dtype in results)
            return found[0] if len(found) == 1 else found

        return zeros

    return make


def same(table: Mapping[type[Op], Run]) -> None:
    """Register functions that are kernels as they are, whatever the attributes and types."""
    for op_class, function in table.items():
        kernel(op_class)(_always(function))


def _always(function: Run) -> Factory:
    return lambda op, types: function


def wide(type: TensorType) -> mx.Dtype:
    """Return the dtype to accumulate in: float32 for 16-bit floats."""
    small = type.dtype.is_float and type.dtype.itemsize == 2
    return mx.float32 if small else mlx_dtype(type.dtype)
