"""Programs in an arena: random graphs and all ops compute what they do without, bit for bit."""

from __future__ import annotations

from functools import cache

import mithril as ml
import numpy as np
import pytest
from hypothesis import given, settings
from mithril import ops
from mithril.cost.liveness import Liveness, arrange
from mithril.engine import Engine
from mithril.ir import Builder, Constant, Graph, Node, Repeat, Tensor, Value
from mithril.testing.cases import CASES, Case
from mithril.testing.evaluate import type_of
from mithril.types import DType, TensorType

from tests.arena.programs import assert_equal_in_arena, graphs, run
from tests.profiles import quick, scaled

ENGINES = ("numpy", "torch")


@cache
def engine_of(name: str) -> Engine:
    return ml.open_backend(name).engine


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
@settings(max_examples=scaled(120), deadline=None)
@given(graph=graphs())
def test_random_graphs_compute_the_same_and_keep_results(name: str, graph: Graph) -> None:
    assert_equal_in_arena(engine_of(name), graph)


@settings(max_examples=scaled(120), deadline=None)
@given(graph=graphs())
def test_an_arena_is_no_smaller_than_its_bound(graph: Graph) -> None:
    execution = engine_of("torch").in_arena(arrange).execution
    arena = Liveness(execution).measure(graph).arena
    assert arena.size >= arena.bound
    assert all(offset < arena.size for offset in arena.offsets.values())
    for node, (start, inner) in arena.bodies.items():
        assert node in graph.nodes
        assert start + inner.size <= arena.size
    leaving = set(graph.outputs.values())
    assert leaving.isdisjoint(arena.offsets)


def surround(case: Case) -> Graph:
    """Return an op on operands that lie in an arena, with work before and after it.

    What comes after takes the memory of whatever nobody needs any more; results leave, themselves
    and as copies, and are used late.
    """
    builder = Builder()
    given = [builder.input(type_of(x), f"x{i}") for i, x in enumerate(case.arrays)]
    operands = [_copy(builder, x) for x in given]
    made = builder.apply(case.op, *operands)
    junk = [_copy(builder, x) for x in given]
    junk = [_copy(builder, x) for x in junk]
    late = [_copy(builder, y) for y in made]
    outputs = {f"late{i}": y for i, y in enumerate(late)} | {f"y{i}": y for i, y in enumerate(made)}
    return builder.build(outputs | {f"junk{i}": x for i, x in enumerate(junk)})


def _copy(builder: Builder, x: Tensor) -> Tensor:
    if x.type.dtype.is_float:
        return builder.apply(ops.Multiply(), x, _one(builder, x.type))[0]
    return x


def _one(builder: Builder, type: TensorType) -> Tensor:
    return builder.apply(Constant(1.0, type.dtype))[0]


@quick(lambda name, case: name == "numpy" and case.number % 3 == 0)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", ENGINES)
def test_results_of_every_op_are_its_own(name: str, case: Case) -> None:
    engine = engine_of(name)
    if case.op.name not in engine.kernels:
        pytest.skip(f"{name} expands {case.op.name}")
    graph = surround(case)
    values = {f"x{i}": x for i, x in enumerate(case.arrays)}
    calls = [
        values,
        {n: x[::-1].copy() if x.ndim and x.dtype.kind == "f" else x for n, x in values.items()},
    ]
    expected = run(engine, graph, calls)
    found = run(engine.in_arena(arrange), graph, calls)
    for one, other in zip(expected, found, strict=True):
        for a, b in zip(one, other, strict=True):
            assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def test_plans_know_by_name_whose_results_torch_puts_into_an_arena() -> None:
    """What is written may depend on dtypes and attributes; the first case of an op stands for it."""
    arena = pytest.importorskip("mithril_torch.program.arena")
    kernels, first = engine_of("torch").kernels, {}
    for case in CASES:
        if case.op.name in kernels:
            first.setdefault(case.op.name, case)
    written = set()
    for name, case in first.items():
        types = [type_of(x) for x in case.arrays]
        inputs, outputs = map(Value, types), map(Value, case.op.infer(types))
        if arena.list_written(Node(case.op, tuple(inputs), tuple(outputs))):
            written.add(name)
    assert {*arena.IN_ARENA} == written | {Repeat.name}


def test_a_view_that_leaves_takes_its_memory_out_of_the_arena() -> None:
    builder = Builder()
    x = builder.input(TensorType((4, 4), DType.float32), "x")
    (y,) = builder.apply(ops.Exp(), x)
    (view,) = builder.apply(ops.Transpose((1, 0)), y)
    (other,) = builder.apply(ops.Exp(), y)
    (total,) = builder.apply(ops.Sum((0,), False), other)
    graph = builder.build({"view": view, "total": total})
    execution = engine_of("numpy").in_arena(arrange).execution
    held = {
        value.name or node.op.name
        for node in graph.nodes
        for value in node.outputs
        if value in Liveness(execution).measure(graph).arena.offsets
    }
    assert held == {"exp"}
    assert len(Liveness(execution).measure(graph).arena.offsets) == 1  # `other` alone
