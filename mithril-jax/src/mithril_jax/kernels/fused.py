"""Kernels of the fused ops: their expansions, which XLA fuses again.

The plan keeps them as one op, with a gradient of its own; only inside a device are they taken
apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mithril.spi import Builder, Graph, Kernel, KernelRun, Op, Types, op_registry, ops
from mithril.spi.ops import UserOp

from mithril_jax.kernels.attention import attention, attention_gradient
from mithril_jax.kernels.table import CPU_KERNELS, KERNELS
from mithril_jax.loop_weights import lay_loop_weights

_IN_PARTS: dict[type[Op], Callable[..., KernelRun]] = {
    ops.Attention: attention,
    ops.AttentionGradient: attention_gradient,
}
"""Kernels that make expansions of parts."""


def register_fused() -> None:
    """Register a kernel for every op of the core that has an expansion and no kernel yet."""
    for name, op_class in op_registry().items():
        fused = op_class.expand is not Op.expand and not issubclass(op_class, UserOp)
        if fused and name not in KERNELS:
            for table, platform in ((KERNELS, "gpu"), (CPU_KERNELS, "cpu")):
                make = partial(expand, kernels=table, platform=platform)
                if (in_parts := _IN_PARTS.get(op_class)) is not None:
                    make = partial(in_parts, expand=make, platform=platform)
                table.register(op_class)(make)


def expand(op: Op, types: Types, kernels: Mapping[str, Kernel], platform: str) -> KernelRun:
    """The expansion of an op into others with these kernels, as a function."""
    from mithril_jax.lower import graph_function, no_after

    graph = _expansion(op, types)
    run = graph_function(lay_loop_weights(graph) if platform == "cpu" else graph, kernels, no_after)

    def apply(*operands: Any) -> Any:
        results = run(operands, None)
        return results[0] if len(results) == 1 else tuple(results)

    return apply


def _expansion(op: Op, types: Types) -> Graph:
    builder = Builder()
    inputs = [builder.input(type, f"x{i}") for i, type in enumerate(types)]
    results = op.expand(inputs)
    assert results is not None, "only ops with an expansion get here"
    return builder.build({f"y{i}": result for i, result in enumerate(results)})
