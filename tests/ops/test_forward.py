"""Results: against plain NumPy in float64, and in the other float dtypes against float64."""

from __future__ import annotations

import numpy as np
import pytest
from mithril import ops
from mithril.testing.cases import CASES, Case, booleans, is_first_of_its_op
from mithril.testing.evaluate import apply, assert_close, coarsest
from mithril.types import DType

from tests.ops.oracles import ORACLES
from tests.ops.test_gradients import arrays_for
from tests.profiles import quick

FLOATING = [case for case in CASES if any(a.dtype.kind == "f" for a in case.arrays)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_result_equals_plain_numpy(case: Case) -> None:
    expected = ORACLES[case.op.name](case.op, *case.arrays)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for found, wanted in zip(apply(case.op, *case.arrays), expected, strict=True):
        assert_close(found, np.asarray(wanted), coarsest(*case.arrays, found))


@quick(lambda case, dtype: dtype == "bfloat16" and is_first_of_its_op(case))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("case", FLOATING, ids=str)
def test_result_in_another_dtype(case: Case, dtype: str) -> None:
    """The same rounded operands give the same results, up to the dtype's precision."""
    rounded = arrays_for(case, dtype)
    wide = [
        a.astype(np.float64) if r is not a else a for a, r in zip(rounded, case.arrays, strict=True)
    ]
    for found, exact in zip(apply(case.op, *rounded), apply(case.op, *wide), strict=True):
        assert found.shape == exact.shape
        if exact.dtype.kind == "f":
            assert_close(found.astype(np.float64), exact.astype(np.float64), DType(dtype))
        else:
            assert_close(found, exact)


def test_lines_of_an_empty_batch_have_no_results() -> None:
    empty = np.zeros((0, 4))
    assert apply(ops.Softmax(1), empty)[0].shape == (0, 4)
    assert apply(ops.Einsum("ab,cb->ac"), empty, np.ones((3, 4)))[0].shape == (0, 3)
    assert_close(apply(ops.Einsum("ab,ac->bc"), empty, np.ones((0, 2)))[0], np.zeros((4, 2)))
    assert_close(apply(ops.Sum((0,), False), empty)[0], np.zeros(4))
    ids = np.zeros(0, np.int32)
    assert_close(apply(ops.ScatterAdd(3), ids, np.ones((0, 2)))[0], np.zeros((3, 2)))


def test_sums_of_16_bit_floats_are_accumulated_in_float32() -> None:
    ones = np.ones(4096, DType.bfloat16.numpy)
    assert apply(ops.Sum((0,), False), ones)[0] == 4096
    assert apply(ops.Einsum("i,i->"), ones, ones)[0] == 4096


@pytest.mark.parametrize("op", [ops.Softmax(1), ops.LogSoftmax(1)], ids=str)
def test_large_numbers_do_not_overflow(op) -> None:
    (found,) = apply(op, np.array([[1e4, 1e4, -1e4]]))
    expected = np.array([[0.5, 0.5, 0.0]])
    assert_close(np.exp(found) if isinstance(op, ops.LogSoftmax) else found, expected)


def test_cross_entropy_of_large_logits_is_finite() -> None:
    loss, _ = apply(ops.CrossEntropy(), np.array([[1e4, 0.0]]), np.array([1], np.int32))
    assert_close(loss, np.array([1e4]))


def test_first_of_equal_elements_is_found() -> None:
    assert apply(ops.Argmax(0), np.array([1, 3, 3], np.int32))[0] == 1
    assert apply(ops.Argmin(0), np.array([2, 1, 1], np.int32))[0] == 1


def test_infinite_images_are_pooled() -> None:
    x = np.full((1, 1, 4), -np.inf)
    op = ops.MaxPool((2,), (2,), ((0, 0),))
    (y,) = apply(op, x)
    assert (y == -np.inf).all()
    padded = ops.MaxPoolGradient((3,), (3,), ((1, 1),))
    (dx,) = apply(padded, x, np.full((1, 1, 2), -np.inf), np.ones((1, 1, 2)))
    assert_close(dx, np.array([[[1.0, 0.0, 1.0, 0.0]]]))


def test_random_bits_of_known_answers() -> None:
    """The first test vector of Random123: Threefry-2x32-20 of zeros."""
    (found,) = apply(ops.RandomBits((1,), (1,), 0), np.asarray(0, np.uint32))
    assert found[0] == 0x6B200159


def test_random_bits_are_even_and_depend_on_seed_and_salt() -> None:
    def draw(seed: int, salt: int) -> np.ndarray:
        op = ops.RandomBits((64, 64), (64, 64), salt)
        return apply(op, np.asarray(seed, np.uint32))[0]

    first = draw(1, 0)
    assert (first == draw(1, 0)).all()
    assert (first != draw(2, 0)).mean() > 0.99
    assert (first != draw(1, 1)).mean() > 0.99
    bits = np.unpackbits(first.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 0.01  # 131072 bits: 7 standard deviations


def test_sum_counts_booleans() -> None:
    found = apply(ops.Sum((0, 1), False), booleans(4, 6))[0]
    assert found == 12
    assert found.dtype == np.int32
