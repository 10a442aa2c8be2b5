"""What a kernel gives where an operand has no elements."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mithril.spi import Kernel, KernelRun, Types

from mithril_mlx.tensors import mlx_dtype


def zero_without_elements(factory: Kernel) -> Kernel:
    """Return the factory of a kernel that gives zeros where an operand has no elements.

    MLX's sums of such operands may be anything, or never come to an end.
    """

    def make(op: Any, types: Types) -> KernelRun:
        if all(type.size for type in types):
            return factory(op, types)
        results = [(type.shape, mlx_dtype(type.dtype)) for type in op.infer(types)]

        def zeros(*operands: mx.array) -> Any:
            found = tuple(mx.zeros(shape, dtype) for shape, dtype in results)
            return found[0] if len(found) == 1 else found

        return zeros

    return make
