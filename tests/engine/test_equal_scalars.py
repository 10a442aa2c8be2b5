"""Scalars that are computed more than once are computed once, and nothing else changes."""

from __future__ import annotations

import numpy as np
from mithril import ops
from mithril.engine.equal_scalars import join_equal_scalars
from mithril.ir import Builder, Graph
from mithril.testing.evaluate import evaluate
from mithril.types import DType, TensorType

SCALAR, VECTOR = TensorType((), DType.float64), TensorType((3,), DType.float64)


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def test_what_follows_from_equal_scalars_is_equal() -> None:
    builder = Builder()
    rate, x = builder.input(SCALAR, "rate"), builder.input(VECTOR, "x")
    made = {f"y{i}": x * ops.exp(rate * 0.5) for i in range(3)}
    found = join_equal_scalars(builder.build(made))
    assert names(found) == ["constant", "multiply", "exp", *["multiply"] * 3]
    given = {"rate": np.asarray(2.0), "x": np.asarray([1.0, 2.0, 3.0])}
    first = evaluate(found, given)
    assert (first["y0"] == first["y2"]).all()
    assert (first["y0"] == evaluate(builder.build(made), given)["y0"]).all()


def test_zeros_of_both_signs_vectors_and_outputs_stay() -> None:
    builder = Builder()
    rate, x = builder.input(SCALAR, "rate"), builder.input(VECTOR, "x")
    signs = [rate / builder.constant(zero, DType.float64) for zero in (0.0, -0.0)]
    twice = [ops.exp(rate), ops.exp(rate)]
    vectors = [ops.exp(x), ops.exp(x)]
    graph = builder.build({f"y{i}": y for i, y in enumerate([*signs, *twice, *vectors])})
    assert names(join_equal_scalars(graph)) == names(graph)
