"""Rules by brute force: an op split as its rule allows gives what the whole op gives."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from mithril import ops
from mithril.ir import Rule, registry
from mithril.testing.cases import CASES, X, floats, is_first_of_its_op
from mithril.testing.evaluate import apply, assert_close, coarsest, type_of

from tests.ops.sharded import check_rule
from tests.profiles import quick


def rule_of(case) -> Rule:
    types = [type_of(array) for array in case.arrays]
    return case.op.rule(types, case.op.infer(types))


def list_split(case) -> list[str]:
    """Return the factors that are split without an exchange."""
    rule = rule_of(case)
    return [factor for factor in rule.splittable if factor not in rule.special]


SPLITS = [(case, f) for case in CASES for f in list_split(case)]
PAIRS = [(c, *pair) for c in CASES for pair in itertools.combinations(list_split(c), 2)]
GROUPS = [(case, group) for case in CASES for group in rule_of(case).linear]


@pytest.mark.parametrize("op", sorted({case.op.name for case in CASES}))
def test_rule_describes_the_dimensions(op: str) -> None:
    for case in CASES:
        if case.op.name == op:
            check_dimensions(case)


def check_dimensions(case) -> None:
    rule = rule_of(case)
    arrays = (*case.arrays, *apply(case.op, *case.arrays))
    sides = (*rule.operands, *rule.results)
    for i, (array, dims) in enumerate(zip(arrays, sides, strict=True)):
        if i in rule.ignored:
            assert not any(dims)
            continue
        sizes = tuple(np.prod([rule.sizes[f] for f in d], dtype=int) for d in dims)
        assert array.shape == sizes, str(case)
    assert rule.whole <= set(rule.factors), str(case)
    assert all(len(set(group)) == len(group) for group in rule.linear), str(case)


@quick(is_first_of_its_op)
@pytest.mark.parametrize(("case", "factor"), SPLITS, ids=str)
def test_one_split_factor(case, factor: str) -> None:
    check_rule(case.op, case.arrays, [factor])


@quick(is_first_of_its_op)
@pytest.mark.parametrize(("case", "first", "second"), PAIRS, ids=str)
def test_two_split_factors(case, first: str, second: str) -> None:
    check_rule(case.op, case.arrays, [first, second])


# All groups: tests/ops/test_every_spec.py.
@quick(is_first_of_its_op)
@pytest.mark.parametrize(("case", "group"), GROUPS, ids=str)
def test_linear_group(case, group: tuple[int, ...]) -> None:
    """f(a + b) = f(a) + f(b) for the operands of a group, the others fixed."""
    halves = [_halves(a) if i in group else (a, a) for i, a in enumerate(case.arrays)]
    left = apply(case.op, *(half[0] for half in halves))
    right = apply(case.op, *(half[1] for half in halves))
    for whole, a, b in zip(apply(case.op, *case.arrays), left, right, strict=True):
        assert_close(a + b, whole, coarsest(*case.arrays, whole))


def _halves(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(11)
    if array.dtype.kind == "b":  # of which a sum is whether one is true
        part = array & (rng.integers(0, 2, array.shape) > 0)
        return part, array & ~part
    if array.dtype.kind == "f":
        part = rng.standard_normal(array.shape).astype(array.dtype)
    else:
        part = rng.integers(-3, 4, array.shape).astype(array.dtype)
    return part, (array - part).astype(array.dtype)


@pytest.mark.parametrize(
    ("rule", "factor"),
    [
        (lambda r: replace(r, whole=frozenset()), "d1"),
        (lambda r: replace(r, results=((("d0",), ("d2",)),), sizes={**r.sizes, "d2": 6}), "d2"),
    ],
    ids=["whole-forgotten", "factor-missing"],
)
def test_a_wrong_rule_is_caught(rule, factor: str) -> None:
    @dataclass(frozen=True)
    class Wrong(ops.Softmax):
        name: ClassVar[str] = "softmax"

        def rule(self, inputs, outputs):  # type: ignore[no-untyped-def]
            return rule(super().rule(inputs, outputs))

    check_rule(ops.Softmax(1), [X], ["d0"])
    with pytest.raises(AssertionError):
        check_rule(Wrong(1), [X], [factor])


def test_a_wrong_reduction_is_caught() -> None:
    @dataclass(frozen=True)
    class Wrong(ops.Max):
        name: ClassVar[str] = "max"

        def rule(self, inputs, outputs):  # type: ignore[no-untyped-def]
            return replace(super().rule(inputs, outputs), reductions={})

    with pytest.raises(AssertionError):
        check_rule(Wrong((0,), False), [floats(4, 2)], ["d0"])


def test_padding_of_a_convolution_is_not_split() -> None:
    case = next(case for case in CASES if case.op.name == "convolution")
    assert {"s0", "s1", "k0", "k1", "t0", "t1"} <= rule_of(case).whole
    assert rule_of(case).splittable == ("b", "i", "o")


NORMALISED = {
    "attention": {"s", "t", "d", "e"},
    "softmax": {"d1"},
    "log_softmax": {"d0"},
    "layer_norm": {"n"},
    "rms_norm": {"n"},
    "cross_entropy": {"v"},
    "batch_norm": {"b", "s0", "s1"},
    "group_norm": {"c", "s0", "s1"},
    "lstm": {"s", "f", "g", "h", "k"},
}


@pytest.mark.parametrize(
    "name", [n for kind in NORMALISED for n in (kind, f"{kind}_gradient") if n in registry()]
)
def test_fused_ops_keep_what_they_normalise_whole(name: str) -> None:
    kind = name.removesuffix("_gradient")
    rule = rule_of(next(case for case in CASES if case.op.name == name))
    assert NORMALISED[kind] == rule.whole
    assert rule.expandable == (set() if kind == "attention" else rule.whole)


@pytest.mark.parametrize(
    ("heads", "groups", "splittable"),
    [(4, 4, {"b", "h"}), (4, 2, {"b", "g", "r"}), (4, 1, {"b", "r"})],
)
def test_heads_of_attention_are_split_by_group_and_within(heads, groups, splittable) -> None:
    q, k = floats(2, 4, heads, 3), floats(2, 4, groups, 3)
    op = ops.Attention(False, 1.0)
    types = [type_of(x) for x in (q, k, k)]
    assert set(op.rule(types, op.infer(types)).splittable) == splittable
