"""Collectives between processes: operands given twice, every type, and what an observer sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mithril as ml
import numpy as np
import pytest
from mithril.engine import Engine
from mithril.ir import Builder, Tensor
from mithril.mesh import Mesh, P, Sharding
from mithril.ops import Multiply
from mithril.ops.collective import AllReduce, Permute, ReduceScatter
from mithril.plan import Port, Program
from mithril.types import DType, TensorType

from tests.profiles import quick

Written = Callable[[Builder, Tensor], Sequence[Tensor]]
Row = tuple[str, tuple[str, ...], int]
REDUCTIONS = ["sum", "max", "min"]
NARROW = ["int8", "int16", "uint8", "uint16", "uint32"]


@pytest.fixture(scope="module", params=["as written", "over sockets", "compiled"])
def engine(request: pytest.FixtureRequest) -> Engine:
    jit, cross_memory = request.param == "compiled", request.param != "over sockets"
    return ml.TorchBackend(Mesh(a=2), device="cpu", jit=jit, cross_memory=cross_memory).engine


def run(engine: Engine, written: Written, x: np.ndarray, *observe: Callable[..., None]):
    """Return what a program makes of an array split in two: for each result its parts."""
    mesh, builder = engine.mesh, Builder()

    def port(name: str, local: TensorType) -> Port:
        whole = local.with_shape((2 * local.shape[0], *local.shape[1:]))
        return Port(name, whole, Sharding.of(mesh, P("a"), whole.rank))

    local = TensorType((len(x) // 2, *x.shape[1:]), DType(x.dtype.name))
    results = written(builder, builder.input(local, "x"))
    entering = port("x", local)
    leaving = tuple(port(f"y{i}", y.type) for i, y in enumerate(results))
    graph = builder.build({p.name: y for p, y in zip(leaving, results, strict=True)})
    given = engine.put(entering.type, entering.sharding, lambda box: x[box].copy())
    made = engine.lower(Program(mesh, graph, (entering,), leaving))([given], *observe)
    return [
        [engine.shard(y, p.sharding, device) for device in range(2)]
        for p, y in zip(leaving, made, strict=True)
    ]


@quick(lambda engine: engine != "compiled")
def test_a_value_may_be_reduced_twice_at_once(engine: Engine) -> None:
    def written(builder: Builder, x: Tensor) -> Sequence[Tensor]:
        (square,) = builder.apply(Multiply(), x, x)
        return builder.apply(AllReduce(("a",), "sum"), x, square, square, x)

    total, squares, same, again = run(engine, written, np.float32([[1, 2], [3, 4]]))
    for part in (*total, *again):
        np.testing.assert_array_equal(part, [[4, 6]])
    for part in (*squares, *same):
        np.testing.assert_array_equal(part, [[10, 20]])


@quick(lambda engine: engine != "compiled")
@pytest.mark.parametrize("dtype", NARROW)
def test_integers_are_reduced_in_their_own_type(engine: Engine, dtype: str) -> None:
    def written(builder: Builder, x: Tensor) -> Sequence[Tensor]:
        ops = [AllReduce(("a",), r) for r in REDUCTIONS]
        ops += [ReduceScatter(("a",), r, 0, 2) for r in REDUCTIONS]
        return [builder.apply(op, x)[0] for op in ops]

    ends = np.iinfo(dtype)
    x = np.array([[ends.min, 7], [ends.max, 3], [1, 5], [ends.max, 2]], dtype)
    parts = np.split(x, 2)
    whole = [parts[0] + parts[1], np.maximum(*parts), np.minimum(*parts)]
    found = run(engine, written, x)
    for made, wanted in zip(found, whole * 2, strict=True):
        halves = [wanted] * 2 if len(made[0]) == 2 else np.split(wanted, 2)
        for part, half in zip(made, halves, strict=True):
            assert part.dtype == x.dtype
            np.testing.assert_array_equal(part, half)


@quick(lambda engine: engine != "compiled")
def test_an_observer_sees_collectives_and_changes_nothing(engine: Engine) -> None:
    def written(builder: Builder, x: Tensor) -> Sequence[Tensor]:
        (total,) = builder.apply(AllReduce(("a",), "sum"), x)
        return builder.apply(Permute(("a",), ((0, 1),)), total)

    x, seen = np.float32([[1, 2], [3, 4]]), list[Row]()
    for observe in ((), (lambda told: seen.append(told.row),), ()):
        ((first, second),) = run(engine, written, x, *observe)
        np.testing.assert_array_equal([first, second], [[[0, 0]], [[4, 6]]])
    assert seen == [("all_reduce", ("a",), 8), ("permute", ("a",), 8)]
