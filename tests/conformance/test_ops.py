"""Every op, and its gradient, on every installed backend equals the numpy kernels."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from mithril import ops
from mithril.engine import Engine
from mithril.ir import Op
from mithril.ops.random import RandomBits
from mithril.testing.arrays import floats
from mithril.testing.cases import CASES, Case
from mithril.testing.cases_primitive import CHOSEN, infinite
from mithril.testing.evaluate import (
    assert_close,
    coarsest,
    evaluate,
    graph_of,
    inputs_of,
    type_of,
)

from tests.conformance.engines import ON_ONE_DEVICE, narrowed, opened, run
from tests.conformance.merged import MergedCases
from tests.ops.test_forward import FLOATING
from tests.ops.test_gradients import FLOATING as DIFFERENTIABLE
from tests.profiles import runs_all

pytestmark = pytest.mark.parametrize("backend", ON_ONE_DEVICE)


OPS = sorted({case.op.name for case in CASES})
SMALL = ("bfloat16", "float16")


def cases_of(op: str, chosen: list[Case]) -> list[Case]:
    return [case for case in chosen if case.op.name == op]


@pytest.mark.parametrize("op", OPS)
def test_results_and_gradients_equal_numpy(backend: str, op: str) -> None:
    """All cases of an op, and one of them with floats of 16 bits; with `--all` each of them."""
    merged, small = MergedCases(opened(backend).engine), cases_of(op, FLOATING)
    for case in cases_of(op, CASES):
        merged.add(case, has_gradient=case in DIFFERENTIABLE)
    for case, dtype in product(small if runs_all() else small[:1], SMALL):
        merged.add(case, dtype)
    merged.check()


@pytest.mark.parametrize("kind", ["result", "gradient"])
def test_a_wrong_case_is_named(backend: str, kind: str) -> None:
    merged = MergedCases(opened(backend).engine)
    for case in cases_of("multiply", DIFFERENTIABLE)[:2]:
        merged.add(case, has_gradient=True)
    first, second = {name.rpartition(".")[0] for name in merged.values}
    expected = evaluate(*merged.graph())
    wrong = f"{second}.y0" if kind == "result" else f"gradients.{second}.x1"
    with pytest.raises(AssertionError, match=rf"^{wrong}: (?!.*{first}\.)"):
        merged.compare({**expected, wrong: expected[wrong] + 1}, expected)


def check(engine: Engine, op: Op, arrays: tuple[np.ndarray, ...]) -> None:
    graph, values = graph_of(op, [type_of(a) for a in arrays]), inputs_of(arrays)
    found = run(engine, graph, values)
    for name, expected in evaluate(graph, values).items():
        assert_close(found[name], expected, coarsest(*arrays, expected))


def test_random_bits_are_equal_beyond_32_bits_of_index(backend: str) -> None:
    """A part of a tensor of 2 ** 36 elements, far from its start."""
    op = RandomBits((2, 3), (1 << 18, 1 << 18), 5)
    seed = np.asarray(77, np.uint32)
    offsets = [np.asarray(n, np.int32) for n in ((1 << 18) - 2, (1 << 17) + 1)]
    check(opened(backend).engine, op, (seed, *offsets))


@pytest.mark.parametrize("op", [ops.Softmax(1), ops.Sum((0,), False), ops.Einsum("ab,cb->ac")])
def test_an_empty_batch_gives_what_numpy_gives(backend: str, op: Op) -> None:
    empty = np.zeros((0, 4), np.float32)
    more = (floats(3, 4).astype(np.float32),) if isinstance(op, ops.Einsum) else ()
    check(opened(backend).engine, op, (empty, *more))


@pytest.mark.parametrize("op", [ops.Sort(0, True), ops.Argsort(0, True), ops.TopK(0, 3)], ids=str)
def test_order_of_ties_and_nan(backend: str, op: Op) -> None:
    x = np.array([1, np.nan, 3, 1, -np.inf, 3, np.inf, np.nan, -0.0, 0.0], np.float32)
    check(opened(backend).engine, op, (x,))


def test_blocks_without_rows(backend: str) -> None:
    engine = opened(backend).engine
    left, right, stack = (np.zeros(s, np.float32) for s in ((2, 4, 0, 5), (2, 4, 0, 6), (3, 6, 5)))
    check(engine, ops.GroupedMatmul(), (left, CHOSEN, stack))
    check(engine, ops.GroupedOuter(3), (left, right, CHOSEN))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_block_that_is_no_number_touches_no_other_entry(backend: str, dtype: str) -> None:
    """Zero times infinity is no zero: what others have must not be multiplied by zero."""
    engine = opened(backend).engine
    with np.errstate(invalid="ignore"):  # kernels of BLAS multiply what they do not add
        check(engine, ops.GroupedOuter(3), tuple(narrowed(x, engine) for x in infinite(dtype)))


def test_an_id_that_names_no_row_is_nan(backend: str) -> None:
    """A compiled program cannot refuse it."""
    graph = graph_of(ops.Take(), [type_of(x) for x in (TABLE, IDS)])
    found = run(opened(backend).engine, graph, inputs_of((TABLE, IDS)))["y0"]
    assert np.isnan(found[[1, 3]]).all()
    np.testing.assert_array_equal(found[[0, 2]], TABLE[[2, 0]])


TABLE, IDS = floats(3, 4).astype(np.float32), np.array([2, 3, 0, -1], np.int32)
