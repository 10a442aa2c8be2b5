"""What carries out a collective makes what the collective makes, and is issued as listed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mithril.cost import SIMULATED
from mithril.mesh import Mesh
from mithril.ops.collective import AllGather, AllReduce, AllToAll, ReduceScatter, collective_of
from mithril.partition.widen_reductions import widen_reductions
from mithril.plan import Execution, Program
from mithril.plan.issued import Row
from mithril.types import DType, TensorType

from tests.algorithms.cases import REWRITTEN, Case, cases
from tests.conformance.engines import BACKENDS, opened
from tests.engine.programs import execute
from tests.profiles import scaled
from tests.tolerances import TOLERANCE

SEEDS = st.integers(0, 2**16)


def expect_equal(found: object, wanted: object, what: str) -> None:
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), what
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64), what)


@pytest.mark.slow
@settings(max_examples=scaled(600))
@given(cases(), SEEDS)
def test_every_algorithm_equals_the_collective_itself(case: Case, seed: int) -> None:
    values = case.values(seed)
    wanted, _ = execute(case.program(), values)
    rewritten = case.rewritten()
    found, rows = execute(rewritten, values)
    assert rows == list(rewritten.list_issued())
    for name, parts in wanted.items():
        for device, part in enumerate(parts):
            expect_equal(found[name][device], part, f"{case.op} by {case.algorithm} on {device}")


OPS = {
    AllReduce.name: lambda n: (AllReduce(("a",), "sum"), (5, 3)),
    ReduceScatter.name: lambda n: (ReduceScatter(("a",), "sum", 1, n), (2, 3 * n)),
    AllGather.name: lambda n: (AllGather(("a",), 1, n), (2, 3)),
    AllToAll.name: lambda n: (AllToAll(("a",), 0, 1, n), (2 * n, 3)),
}
EVERY = [(kind, algorithm) for kind, known in REWRITTEN.items() for algorithm in known]


@pytest.mark.parametrize(("kind", "algorithm"), EVERY)
@pytest.mark.parametrize("count", range(2, 10))
def test_float_sums_are_the_same_on_all_devices(kind: str, algorithm: str, count: int) -> None:
    """Rounding may differ from the collective's own, within tolerance; replicas never differ."""
    op, shape = OPS[kind](count)
    case = Case(Mesh(a=count), op, (TensorType(shape, DType.float32),), algorithm)
    rng = np.random.default_rng(count)
    values = {"x0": [rng.normal(size=shape).astype(np.float32) for _ in range(count)]}
    wanted, _ = execute(case.program(), values)
    rewritten = case.rewritten()
    found, _ = execute(rewritten, values)
    for device in range(count):
        made = np.asarray(found["y0"][device])
        np.testing.assert_allclose(made, np.asarray(wanted["y0"][device]), *TOLERANCE["float32"])
        if kind == AllReduce.name:
            np.testing.assert_array_equal(made, np.asarray(found["y0"][0]))
    is_prime = all(count % n for n in range(2, count))
    kinds = {collective_of(n.op).name for n in rewritten.graph.nodes if n.op.is_collective}
    if algorithm == "hierarchical":
        assert "permute" not in kinds and is_prime == (rewritten.mesh.names == ("a",))
    else:
        assert kinds == {"permute"}


@pytest.mark.parametrize("algorithm", REWRITTEN[AllReduce.name])
@pytest.mark.parametrize("count", range(2, 10))
def test_extremes_are_not_met_by_zeros(algorithm: str, count: int) -> None:
    """Who gets nothing in a round has zeros, which are above all of these, or below."""
    for reduction, sign in (("max", -1), ("min", 1)):
        for op, shape in (
            (AllReduce(("a",), reduction), (5, 3)),
            (ReduceScatter(("a",), reduction, 0, count), (2 * count, 3)),
        ):
            case = Case(Mesh(a=count), op, (TensorType(shape, DType.int32),), algorithm)
            rng = np.random.default_rng(count)
            parts = [sign * rng.integers(1, 9, shape).astype(np.int32) for _ in range(count)]
            wanted, found = (
                execute(p, {"x0": parts})[0]["y0"] for p in (case.program(), case.rewritten())
            )
            np.testing.assert_array_equal(found, wanted, f"{op} by {algorithm}")


@pytest.mark.parametrize("algorithm", REWRITTEN[AllReduce.name])
def test_narrow_sums_are_rounded_once(algorithm: str) -> None:
    """Of 1 and many times 1/256 a sum in bfloat16 stays 1; one in float32 does not."""
    case = Case(
        Mesh(a=8), AllReduce(("a",), "sum"), (TensorType((3, 2), DType.bfloat16),), algorithm
    )
    small = np.full((3, 2), 2**-8).astype(DType.bfloat16.numpy)
    values = {"x0": [np.ones_like(small), *[small] * 7]}
    found, _ = execute(case.rewritten(), values)
    exact = np.full((3, 2), 1 + 7 * 2**-8).astype(DType.bfloat16.numpy)
    for part in found["y0"]:
        expect_equal(part, exact, algorithm)


def test_nan_and_infinity_pass_through() -> None:
    for kind, algorithm in EVERY:
        op, shape = OPS[kind](6)
        case = Case(Mesh(a=6), op, (TensorType(shape, DType.float32),), algorithm)
        values = case.values(1)
        values["x0"][2][0, 0], values["x0"][4][1, 1] = np.nan, np.inf
        wanted, found = (execute(p, values)[0]["y0"] for p in (case.program(), case.rewritten()))
        for made, part in zip(found, wanted, strict=True):
            expect_equal(made, part, f"{kind} by {algorithm}")


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=scaled(60), suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), SEEDS)
def test_every_backend_carries_algorithms_out(backend: str, data: st.DataObject, seed: int) -> None:
    most = 8 if backend == "jax" else 9  # as many devices as tests start JAX with
    drawn = data.draw(cases(most, ("float32", "bfloat16", "int32", "bool")))
    compare_on(backend, drawn, seed)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("algorithm", ["ring", "recursive_halving"])
def test_backends_carry_an_all_reduce_out(backend: str, algorithm: str) -> None:
    op = AllReduce(("a",), "sum")
    compare_on(backend, Case(Mesh(a=3), op, (TensorType((4, 2), DType.float32),), algorithm), 0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [DType.bool_, DType.int8, DType.float16])
def test_the_least_of_narrow_values_is_as_narrow_as_planned(backend: str, dtype: DType) -> None:
    op = AllReduce(("a",), "min")
    compare_on(backend, Case(Mesh(a=2), op, (TensorType((4, 3), dtype),), "native"), 0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reduction", ["sum", "max"])
def test_several_operands_are_scattered_together(backend: str, reduction: str) -> None:
    op, types = ReduceScatter(("a",), reduction, 0, 2), (TensorType((2, 1), DType.float32),) * 2
    compare_on(backend, Case(Mesh(a=2), op, types, "native"), 0)


def compare_on(backend: str, case: Case, seed: int) -> None:
    values, rewritten = case.values(seed), case.rewritten()
    wanted, _ = execute(case.program(), values)
    engine = opened(backend, **case.mesh.sizes).engine
    execution = Execution(compares_wide=engine.execution.compares_wide)
    rewritten = widen_reductions(rewritten, replace(SIMULATED, execution=execution))
    whole = {name: np.concatenate(parts) for name, parts in values.items()}
    handles = [
        engine.put(port.type, port.sharding, lambda box, name=port.name: whole[name][box].copy())
        for port in rewritten.inputs
    ]
    rows: list[object] = []
    made = engine.lower(rewritten)(handles, lambda told: rows.append(told.row))
    for port, handle in zip(rewritten.outputs, made, strict=True):
        for device in range(case.mesh.size):
            found = engine.shard(handle, port.sharding, device)
            expect_equal(found, wanted[port.name][device], f"{case} on {device}")
    if (backend, case.types[0].dtype) != ("jax", "bfloat16"):  # XLA moves float32 there on CPU
        assert sorted(rows) == sorted(list_expected(backend, case, rewritten))


def list_expected(backend: str, case: Case, rewritten: Program) -> list[Row]:
    """Return what a backend issues: JAX scatters sums alone, a maximum is reduced and then cut."""
    rows = rewritten.list_issued()
    if backend != "jax" or getattr(case.op, "reduction", "sum") == "sum":
        return rows
    return [(AllReduce.name, *row[1:]) if row[0] == ReduceScatter.name else row for row in rows]
