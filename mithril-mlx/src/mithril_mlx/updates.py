"""Updates of AdamW: what is the same for all parameters once, and one kernel for the rest.

MLX on CPU runs a kernel an op, so that an update is a dozen passes over each parameter, and the
corrections of its moments are as many small ops again, for each. Here the corrections are computed
once for all parameters, and `mx.compile` makes one kernel of what remains: for that it starts a C++
compiler, once for all numbers and shapes, whose work MLX keeps on disk. It is done for programs
whose parameters are large.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import mlx.core as mx
from mithril.spi import (
    DType,
    Graph,
    KernelRun,
    Node,
    Op,
    Program,
    TensorType,
    Types,
    Value,
    all_nodes,
    join_equal_scalars,
    map_bodies,
    promote,
)
from mithril.spi.ops import AdamWStep

from mithril_mlx.kernels.precision import accumulator
from mithril_mlx.kernels.table import kernel
from mithril_mlx.tensors import mlx_dtype

COMPILER = "g++"
"""What MLX starts on Linux; on macOS programs run on the GPU."""
LARGE = 1 << 18
"""So many elements are updated in the time of some hundred small ops."""


@dataclass(frozen=True)
class AdamWNumbers(Op):
    """What is the same for all elements; operands (learning rate, count), results five scalars.

    It is no op of the core: it exists only while a program is lowered, as the next one.
    """

    name: ClassVar[str] = "adamw_numbers"
    step: AdamWStep
    dtype: DType

    def infer(self, inputs: Types) -> Types:
        """Return the types of five scalars."""
        return [TensorType((), self.dtype)] * 5


@dataclass(frozen=True)
class AdamWApply(Op):
    """The rest of an update; operands (parameter, gradient, moments, numbers)."""

    name: ClassVar[str] = "adamw_apply"
    is_compiled: bool

    def infer(self, inputs: Types) -> Types:
        """Return the types of parameter and moments."""
        return [inputs[0], inputs[2], inputs[3]]


def share_numbers(program: Program, compiles: bool) -> Program:
    """Return the program with the numbers of its updates computed once.

    Args:
        program: what runs on a device.
        compiles: whether updates may be compiled.
    """
    updates = [node for node in all_nodes(program.graph) if isinstance(node.op, AdamWStep)]
    if not updates:
        return program
    is_large = sum(node.inputs[0].type.size for node in updates) >= LARGE
    return replace(program, graph=_share(program.graph, compiles and is_large))


def _share(graph: Graph, is_compiled: bool) -> Graph:
    joined = join_equal_scalars(graph)
    nodes = tuple(_split(joined.nodes, is_compiled))
    return Graph(graph.inputs, nodes, graph.outputs)


def _split(nodes: Sequence[Node], is_compiled: bool) -> Iterator[Node]:
    made: dict[object, tuple[Value, ...]] = {}
    for node in nodes:
        if not isinstance(node.op, AdamWStep):
            yield map_bodies(node, lambda body: _share(body, is_compiled))
            continue
        numbers = AdamWNumbers(replace(node.op, in_place=()), _wide(node))
        key = numbers, node.inputs[4:]
        if key not in made:
            made[key] = tuple(map(Value, numbers.infer([])))
            yield replace(node, op=numbers, inputs=node.inputs[4:], outputs=made[key])
        yield replace(node, op=AdamWApply(is_compiled), inputs=(*node.inputs[:4], *made[key]))


def _wide(node: Node) -> DType:
    dtype = promote(node.inputs[0].type.dtype, node.inputs[2].type.dtype)
    return DType.float32 if dtype.itemsize < 4 else dtype


# ------------------------------------------------------------------ kernels


@kernel(AdamWStep)
def adamw_step(op: AdamWStep, types: Types) -> KernelRun:
    """Both parts, for who runs the op as it is."""
    wide, apply = accumulator(promote(types[0].dtype, types[2].dtype)), _apply(types, False)

    def run(*operands: mx.array) -> tuple[mx.array, ...]:
        rate, count = (x.astype(wide) for x in operands[4:])
        made: tuple[mx.array, ...] = apply(*operands[:4], *_compute_numbers(op, rate, count))
        return made

    return run


@kernel(AdamWNumbers)
def adamw_numbers(op: AdamWNumbers, types: Types) -> KernelRun:
    """The five numbers."""
    wide = mlx_dtype(op.dtype)
    return lambda rate, count: _compute_numbers(op.step, rate.astype(wide), count.astype(wide))


def _compute_numbers(op: AdamWStep, rate: mx.array, count: mx.array) -> tuple[mx.array, ...]:
    # With c = sqrt(1 - b2^t): (m / a) / (sqrt(v) / c + eps) = m c / a / (sqrt(v) + c eps).
    root = mx.sqrt(_sum_of_weights(op.b2, count))
    scale = rate * root / _sum_of_weights(op.b1, count)
    new = (mx.array(1 - b, rate.dtype) for b in (op.b1, op.b2))
    return (*new, scale, root * op.eps, 1 - rate * op.weight_decay)


def _sum_of_weights(b: float, count: mx.array) -> mx.array:
    """Return 1 - b ** count, exact where that is small."""
    return -mx.expm1(count * math.log(b)) if b else mx.ones_like(count)


@kernel(AdamWApply)
def adamw_apply(op: AdamWApply, types: Types) -> KernelRun:
    """The pass, or the passes, over a parameter."""
    return _apply(types, op.is_compiled)


def _apply(types: Types, is_compiled: bool) -> KernelRun:
    wide = accumulator(promote(types[0].dtype, types[2].dtype))
    dtypes = [mlx_dtype(types[i].dtype) for i in (0, 2, 3)]
    update = _compile_update() if is_compiled else _update

    def run(p: mx.array, g: mx.array, m: mx.array, v: mx.array, *numbers: mx.array) -> Any:
        made = update(*(x.astype(wide) for x in (p, g, m, v)), *numbers)
        return tuple(x.astype(dtype) for x, dtype in zip(made, dtypes, strict=True))

    return run


@cache
def _compile_update() -> KernelRun:
    compiled: KernelRun = mx.compile(_update, shapeless=False)
    return compiled


def _update(
    p: mx.array,
    g: mx.array,
    m: mx.array,
    v: mx.array,
    new1: mx.array,
    new2: mx.array,
    scale: mx.array,
    eps: mx.array,
    keep: mx.array,
) -> tuple[mx.array, mx.array, mx.array]:
    m = m + (g - m) * new1
    v = v + (mx.square(g) - v) * new2
    return p * keep - m * scale / (mx.sqrt(v) + eps), m, v
