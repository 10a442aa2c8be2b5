"""Sharding rules read from text: factors, groups in brackets, scalars, and what does not fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mithril.errors import ShapeError
from mithril.ir import Rule, elementwise_rule
from mithril.types import DType, TensorType

Dims = tuple[tuple[str, ...], ...]


def t(*shape: int) -> TensorType:
    return TensorType(shape, DType.float32)


CASES: dict[str, tuple[str, list[TensorType], list[TensorType], dict, list[Dims], list[Dims]]] = {
    "matrix product": (
        "m k, k n -> m n", [t(2, 3), t(3, 4)], [t(2, 4)],
        {"m": 2, "k": 3, "n": 4}, [(("m",), ("k",)), (("k",), ("n",))], [(("m",), ("n",))],
    ),
    "merge": (
        "b h d -> b (h d)", [t(2, 3, 4)], [t(2, 12)],
        {"b": 2, "h": 3, "d": 4}, [(("b",), ("h",), ("d",))], [(("b",), ("h", "d"))],
    ),
    "split": (
        "b (h d) -> b h d", [t(2, 12)], [t(2, 3, 4)],
        {"b": 2, "h": 3, "d": 4}, [(("b",), ("h", "d"))], [(("b",), ("h",), ("d",))],
    ),
    "a group whose last factor is found by dividing": (
        "(h d) -> h", [t(12)], [t(3)], {"h": 3, "d": 4}, [(("h", "d"),)], [(("h",),)],
    ),
    "a group of one": ("(h) -> h", [t(3)], [t(3)], {"h": 3}, [(("h",),)], [(("h",),)]),
    "a group of none": ("() a -> a", [t(1, 3)], [t(3)], {"a": 3}, [((), ("a",))], [(("a",),)]),
    "a dimension of one": (
        "a _ -> _ a", [t(3, 1)], [t(1, 3)], {"a": 3}, [(("a",), ())], [((), ("a",))],
    ),
    "scalar operand": (
        "a, -> a", [t(3), t()], [t(3)], {"a": 3}, [(("a",),), ()], [(("a",),)],
    ),
    "scalar operand first": (
        ", a -> a", [t(), t(3)], [t(3)], {"a": 3}, [(), (("a",),)], [(("a",),)],
    ),
    "only scalars": (", -> ", [t(), t()], [t()], {}, [(), ()], [()]),
    "scalar result": ("a b ->", [t(2, 3)], [t()], {"a": 2, "b": 3}, [(("a",), ("b",))], [()]),
    "scalar among results": (
        "a -> a,", [t(2)], [t(2), t()], {"a": 2}, [(("a",),)], [(("a",),), ()],
    ),
    "no operand": ("-> a b", [], [t(2, 3)], {"a": 2, "b": 3}, [], [(("a",), ("b",))]),
    "no operand and a scalar": ("->", [], [t()], {}, [], [()]),
    "no result": ("a ->", [t(2)], [], {"a": 2}, [(("a",),)], []),
    "a diagonal": ("a a -> a", [t(3, 3)], [t(3)], {"a": 3}, [(("a",), ("a",))], [(("a",),)]),
    "without spaces round commas": (
        "a b,b c->a c", [t(2, 3), t(3, 4)], [t(2, 4)],
        {"a": 2, "b": 3, "c": 4}, [(("a",), ("b",)), (("b",), ("c",))], [(("a",), ("c",))],
    ),
    "empty dimensions": ("a b -> b", [t(0, 3)], [t(3)], {"a": 0, "b": 3}, [(("a",), ("b",))], [(("b",),)]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_text_is_read_as_a_rule(case: str) -> None:
    text, inputs, outputs, sizes, operands, results = CASES[case]
    rule = Rule.parse(text, inputs, outputs)
    assert (dict(rule.sizes), rule.operands, rule.results) == (
        sizes,
        tuple(operands),
        tuple(results),
    )


def test_given_sizes_tell_how_a_group_is_made_up() -> None:
    rule = Rule.parse("(a b) -> (a b)", [t(12)], [t(12)], sizes={"a": 3})
    assert rule.sizes == {"a": 3, "b": 4}


def test_given_sizes_are_not_changed() -> None:
    sizes = {"a": 3}
    Rule.parse("(a b) -> (a b)", [t(12)], [t(12)], sizes=sizes)
    assert sizes == {"a": 3}


BAD = {
    "too few dimensions": ("a b -> a", [t(2)], [t(2)], None, ""),
    "too many dimensions": ("a -> a", [t(2, 3)], [t(2)], None, ""),
    "too few operands": ("a -> a", [t(2), t(2)], [t(2)], None, ""),
    "too many results": ("a -> a, a", [t(2)], [t(2)], None, ""),
    "two sizes of a factor": (
        "a, a -> a", [t(2), t(3)], [t(2)], None, ": dimension (a) has size 3",
    ),
    "a group that does not divide": (
        "(a b) -> a", [t(7)], [t(2)], None, ": dimension (a b) has size 7",
    ),
    "a group with two unknown factors": (
        "(a b) -> (a b)", [t(6)], [t(6)], None, ": dimension (a b) has size 6",
    ),
    "a known group of another size": (
        "a b -> (a b)", [t(2, 3)], [t(7)], None, ": dimension (a b) has size 7",
    ),
    "a given size that is wrong": ("a -> a", [t(3)], [t(3)], {"a": 4}, ": dimension (a) has size 3"),
    "a dimension of one that is larger": ("_ ->", [t(2)], [t()], None, ": dimension () has size 2"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_text_that_does_not_fit_the_types_is_refused(case: str) -> None:
    text, inputs, outputs, sizes, more = BAD[case]
    with pytest.raises(ShapeError) as caught:
        Rule.parse(text, inputs, outputs, sizes=sizes)
    types = ", ".join(map(str, [*inputs, *outputs]))
    assert str(caught.value) == f"rule '{text}' does not fit types {types}{more}"


def test_factors_come_in_order_of_appearance() -> None:
    rule = Rule.parse("b (h d), k -> k h b", [t(2, 12), t(5)], [t(5, 3, 2)])
    assert rule.factors == ("b", "h", "d", "k")


def test_what_may_be_split_is_larger_than_one_and_not_whole() -> None:
    rule = Rule.parse("a b c -> a b c", [t(2, 1, 3)], [t(2, 1, 3)], whole=["c"])
    assert rule.splittable == ("a",)


def test_a_missing_factor_is_summed_unless_the_rule_says_otherwise() -> None:
    rule = Rule.parse("a b -> a", [t(2, 3)], [t(2)], reductions={"b": "max"})
    assert (rule.reduction("b"), rule.reduction("a")) == ("max", "sum")


def test_linear_groups_are_kept() -> None:
    rule = Rule.parse("a, a -> a", [t(2)] * 2, [t(2)], linear=[(0, 1)])
    assert rule.linear == ((0, 1),)


shapes = st.lists(st.integers(1, 4), max_size=4).map(tuple)


@given(shapes, st.data())
def test_elementwise_operands_are_aligned_at_the_right(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, len(shape)))
    ones = data.draw(st.tuples(*[st.booleans()] * rank))
    tail = shape[len(shape) - rank :]
    operand = tuple(1 if one else size for one, size in zip(ones, tail, strict=True))
    rule = elementwise_rule([t(*operand), t(*shape)], t(*shape), linear=[(0, 1)], results=2)
    assert rule.results == (rule.operands[1],) * 2
    assert rule.linear == ((0, 1),)
    for sized, dims in zip((operand, shape), rule.operands, strict=True):
        assert [bool(dim) for dim in dims] == [size > 1 for size in sized]
        assert all(
            rule.sizes[name] == n for dim, n in zip(dims, sized, strict=True) for name in dim
        )
    for own, result in zip(rule.operands[0], rule.results[0][len(shape) - rank :], strict=True):
        assert own in ((), result)
