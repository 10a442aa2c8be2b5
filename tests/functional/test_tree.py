"""Trees: flattened, rebuilt, named, and spread over."""

from __future__ import annotations

from typing import NamedTuple

import mithril as ml
from hypothesis import given
from hypothesis import strategies as st
from mithril.mesh import P
from mithril.trees import collect_leaves, flatten, names, numbers, rebuild, spread


class Point(NamedTuple):
    x: object
    y: object


LEAVES = st.none() | st.integers() | st.text(max_size=3) | st.floats(allow_nan=False)
TREES = st.recursive(
    LEAVES,
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.lists(inside, max_size=3).map(tuple)
        | st.dictionaries(st.text("abc", max_size=2), inside, max_size=3)
        | st.builds(Point, inside, inside)
    ),
    max_leaves=8,
)


@given(TREES)
def test_a_tree_is_its_structure_and_its_leaves(tree: object) -> None:
    leaves: list = []
    structure = flatten(tree, leaves)
    again = rebuild(structure, leaves)
    assert again == tree
    assert type(again) is type(tree)
    other: list = []
    assert flatten(again, other) == structure
    assert hash(structure) == hash(flatten(tree, []))
    assert len(list(names(structure, "t"))) == len(list(numbers(structure))) == len(leaves)
    assert list(spread(P("x"), structure, "t")) == [P("x")] * len(leaves)
    assert list(spread(None, structure, "t")) == [None] * len(leaves)


@given(TREES, TREES)
def test_other_trees_have_other_structures_or_leaves(one: object, other: object) -> None:
    first: list = []
    second: list = []
    alike = flatten(one, first) == flatten(other, second)
    assert (alike and repr(first) == repr(second)) == (repr(one) == repr(other))


@given(TREES, TREES)
def test_a_structure_that_is_known_is_recognised(one: object, other: object) -> None:
    class Thing:
        """Neither a container nor a number."""

    def replace_leaves(tree: object) -> object:
        return rebuild(structure := flatten(tree, []), [Thing() for _ in names(structure, "t")])

    known, given = replace_leaves(one), replace_leaves(other)
    structure, leaves = flatten(known, first := []), []
    assert collect_leaves(known, structure, leaves)
    assert list(map(id, leaves)) == list(map(id, first))
    # What stands at a leaf is not looked at: only a tree without containers there is told apart.
    leaves = []
    if collect_leaves(given, structure, leaves) and all(isinstance(x, Thing) for x in leaves):
        assert flatten(given, []) == structure
    else:
        assert flatten(given, []) != structure


def test_keys_in_another_order_are_another_structure() -> None:
    structure = flatten({"a": P(), "b": P()}, [])
    assert not collect_leaves({"b": P(), "a": P()}, structure, [])
    backend = ml.NumpyBackend()
    subtract = ml.jit(lambda tree: tree["a"] - tree["b"], backend=backend)
    a, b = backend.array([3.0]), backend.array([1.0])
    assert [subtract(tree).item() for tree in ({"a": a, "b": b}, {"b": b, "a": a})] == [2.0, 2.0]


def test_numbers_and_fixed_leaves_are_not_recognised() -> None:
    assert not collect_leaves([1.0], flatten([1.0], []), [])
    assert not collect_leaves("a", flatten("a", [], lambda x: True), [])


def test_fixed_leaves_are_a_part_of_the_structure() -> None:
    leaves: list = []
    structure = flatten({"n": "a", "x": 1.0}, leaves, lambda x: isinstance(x, str))
    assert leaves == [1.0]
    assert rebuild(structure, [2.0]) == {"n": "a", "x": 2.0}
    assert structure != flatten({"n": "b", "x": 1.0}, [], lambda x: isinstance(x, str))


def test_names_and_specs_follow_the_keys() -> None:
    tree = {"a": [1, (2, None)], "p": Point(3, {"z": 4})}
    structure = flatten(tree, [])
    assert list(names(structure, "t")) == ["t.a.0", "t.a.1.0", "t.p.x", "t.p.y.z"]
    prefix = {"p": [None, P("x")], "a": P("y")}
    assert list(spread(prefix, structure, "t")) == [P("y"), P("y"), None, P("x")]
