"""Random local graphs, and running them on one device with and without an arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from mithril import ops
from mithril.cost.liveness import arrange
from mithril.engine import Engine
from mithril.ir import Builder, Graph, Repeat, Tensor
from mithril.mesh import Mesh, Sharding
from mithril.ops.shape import Transpose
from mithril.types import DType, TensorType

from tests.engine.programs import program_of
from tests.tolerances import TOLERANCE

SIDE = 4
SQUARE = TensorType((SIDE, SIDE), DType.float32)
UNARY = ("exp", "tanh", "negate", "relu", "gelu", "softmax", "cast", "transpose", "flip", "reshape",
         "slice", "sum", "after", "stop")  # fmt: skip
BINARY = ("add", "multiply", "matmul", "where", "concatenate", "divide")


def apply(builder: Builder, name: str, x: Tensor, y: Tensor) -> Tensor:
    """Apply an op, or two that bring the result back to a square."""
    if name == "sum":
        (total,) = builder.apply(ops.Sum((0,), False), x)
        return builder.apply(ops.Broadcast((SIDE, SIDE)), total)[0]
    if name == "reshape":
        (flat,) = builder.apply(ops.Reshape((SIDE * SIDE,)), x)
        return builder.apply(ops.Reshape((SIDE, SIDE)), flat)[0]
    if name == "slice":
        (part,) = builder.apply(ops.Slice((0, 0), (2, SIDE), (1, 1)), x)
        return builder.apply(ops.Pad((1, 0), (1, 0), (0, 0)), part)[0]
    if name == "concatenate":
        (both,) = builder.apply(ops.Concatenate(0), x, y)
        return builder.apply(ops.Slice((1, 0), (1 + SIDE, SIDE), (1, 1)), both)[0]
    if name == "where":
        (is_less,) = builder.apply(ops.Less(), x, y)
        return builder.apply(ops.Where(), is_less, x, y)[0]
    if name == "after":
        return builder.apply(ops.After(), x, y)[0]
    if name == "divide":
        (positive,) = builder.apply(ops.Exp(), builder.apply(ops.Tanh(), y)[0])
        return builder.apply(ops.Divide(), builder.apply(ops.Tanh(), x)[0], positive)[0]
    made = {
        "exp": ops.Exp(), "tanh": ops.Tanh(), "negate": ops.Negate(), "relu": ops.Relu(),
        "gelu": ops.Gelu(False), "softmax": ops.Softmax(1), "cast": ops.Cast(DType.float32),
        "transpose": ops.Transpose((1, 0)), "flip": ops.Flip((0,)), "stop": ops.StopGradient(),
    }  # fmt: skip
    if name in made:
        return builder.apply(made[name], builder.apply(ops.Tanh(), x)[0])[0]
    two: dict[str, Any] = {
        "add": ops.Add(), "multiply": ops.Multiply(), "matmul": ops.Einsum("ab,bc->ac"),
    }  # fmt: skip
    operands = (builder.apply(ops.Tanh(), operand)[0] for operand in (x, y))
    return builder.apply(two[name], *operands)[0]


def draw_values(draw: st.DrawFn, builder: Builder, known: list[Tensor], count: int) -> None:
    """Apply random ops to values that are there, and add the results to them."""
    for _ in range(count):
        name = draw(st.sampled_from((*UNARY, *BINARY)))
        x, y = draw(st.sampled_from(known[-6:])), draw(st.sampled_from(known[-6:]))
        known.append(apply(builder, name, x, y))


def draw_loop(draw: st.DrawFn, builder: Builder, known: list[Tensor]) -> None:
    """Add a loop with a carry, an invariant, a stacked operand and stacked results."""
    inner = Builder()
    carry, other, part = (inner.input(SQUARE, name) for name in ("c", "i", "s"))
    values = [carry, other, part]
    draw_values(draw, inner, values, draw(st.integers(1, 6)))
    outs = {"next": values[-1], "made": draw(st.sampled_from(values)), "again": values[-1]}
    body, count = inner.build(outs), draw(st.integers(1, 3))
    x, y = draw(st.sampled_from(known)), draw(st.sampled_from(known))
    (row,) = builder.apply(ops.Reshape((1, SIDE, SIDE)), x)
    (stack,) = builder.apply(ops.Broadcast((count, SIDE, SIDE)), row)
    (stack,) = builder.apply(ops.Exp(), builder.apply(ops.Tanh(), stack)[0])
    loop = Repeat(body, count, 1, 1, draw(st.booleans()))
    last, *stacks = builder.apply(loop, x, y, stack)
    known += [last, *(builder.apply(ops.Sum((0,), False), s)[0] for s in stacks)]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Return a graph of squares with views, loops, and results that may be anything."""
    builder = Builder()
    known = [builder.input(SQUARE, f"x{i}") for i in range(2)]
    draw_values(draw, builder, known, draw(st.integers(1, 8)))
    for _ in range(draw(st.integers(0, 2))):
        draw_loop(draw, builder, known)
        draw_values(draw, builder, known, draw(st.integers(0, 6)))
    kept = draw(st.lists(st.sampled_from(known), min_size=1, max_size=4))
    return builder.build({f"y{i}": value for i, value in enumerate(kept)})


def run(engine: Engine, graph: Graph, calls: Sequence[Mapping[str, np.ndarray]]) -> list[Any]:
    """Run a graph on one device several times; results are read after the last call."""
    mesh = Mesh()
    program = program_of(mesh, graph)
    execute = engine.lower(program)
    made = [execute([_put(engine, values[p.name]) for p in program.inputs]) for values in calls]
    ports = program.outputs
    return [
        [
            engine.shard(x, Sharding.replicated(mesh, len(p.type.shape)), 0).copy()
            for x, p in zip(results, ports, strict=True)
        ]
        for results in made
    ]


def _put(engine: Engine, value: np.ndarray) -> Any:
    type = TensorType(value.shape, DType(value.dtype.name))
    return engine.put(type, Sharding.replicated(Mesh(), value.ndim), lambda box: value[box])


def assert_equal_in_arena(engine: Engine, graph: Graph) -> None:
    """Compare results of three calls with those that take memory as they run.

    They are equal bit for bit on NumPy, unless something is transposed. Results have the strides of
    their operands there, and on PyTorch: what is transposed goes through another loop of the same
    function, whose last bit may differ.
    """
    calls = [
        {v.name: _numbers(v.type.shape, 10 * call + i) for i, v in enumerate(graph.inputs)}
        for call in range(3)
    ]
    is_turned = any(isinstance(node.op, Transpose) for node in graph.nodes)
    expected = run(engine, graph, calls)
    found = run(engine.in_arena(arrange), graph, calls)
    for one, other in zip(expected, found, strict=True):
        for a, b in zip(one, other, strict=True):
            if engine.name == "numpy" and not is_turned:
                assert np.array_equal(a, b, equal_nan=True)
            rtol, atol = TOLERANCE["float32"]
            np.testing.assert_allclose(b, a, rtol=rtol, atol=atol)


def _numbers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
