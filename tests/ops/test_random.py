"""Functions made of random bits: ranges, shares, and independence of how the bits are computed."""

from __future__ import annotations

import numpy as np
import pytest
from mithril import ops
from mithril.errors import OptionError
from mithril.ir import Builder
from mithril.testing.evaluate import apply, evaluate
from mithril.types import DType, TensorType

SEED = np.asarray(np.uint32(9))


def drawn(function) -> np.ndarray:
    """Return what a function of a seed draws."""
    builder = Builder()
    seed = builder.input(TensorType((), DType.uint32), "seed")
    return evaluate(builder.build({"y": function(seed)}), {"seed": SEED})["y"]


def test_uniform_numbers_fill_the_unit_interval_in_exact_steps() -> None:
    found = drawn(lambda seed: ops.uniform(seed, (200, 500)))
    assert found.dtype == np.float32
    assert found.min() >= 0
    assert found.max() < 1
    assert abs(found.mean() - 0.5) < 0.005
    assert abs(found.var() - 1 / 12) < 0.001
    steps = found.astype(np.float64) * 2**24
    np.testing.assert_array_equal(steps, np.round(steps))


def test_width_keeps_the_high_bits() -> None:
    full = drawn(lambda seed: ops.random_bits(seed, (40,), 3))
    np.testing.assert_array_equal(
        drawn(lambda seed: ops.random_bits(seed, (40,), 3, width=5)), full >> 27
    )


@pytest.mark.parametrize("probability", [0.0, 0.25, 1.0])
def test_bernoulli_is_true_in_its_share(probability: float) -> None:
    share = drawn(lambda seed: ops.bernoulli(seed, (200, 500), probability)).mean()
    assert abs(share - probability) <= (0.005 if 0 < probability < 1 else 0)


def test_a_rate_just_below_one_drops_everything() -> None:
    rate = 1 - 2.0**-40  # 2**32 times this is rounded to 2**32, which no uint32 reaches
    assert not drawn(lambda seed: ops.bernoulli(seed, (100,), 1 - rate)).any()


def test_bits_do_not_depend_on_the_blocks_they_are_computed_in() -> None:
    shape = (3, 40000)
    whole = apply(ops.RandomBits(shape, shape, 2), SEED)[0]
    for start in (0, 1, 39990):
        offsets = (np.asarray(np.int32(1)), np.asarray(np.int32(start)))
        part = apply(ops.RandomBits((2, 10), shape, 2), SEED, *offsets)[0]
        np.testing.assert_array_equal(part, whole[1:3, start : start + 10])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda seed: ops.bernoulli(seed, (2,), 1.5), r"probability is 1.5; give a number in"),
        (lambda seed: ops.random_bits(seed, (2,), width=0), "have width 0; give a number from 1"),
        (lambda seed: ops.random_bits(seed, (2,), width=33), "have width 33; give a number from 1"),
    ],
)
def test_numbers_out_of_range_are_refused(function, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        drawn(function)
