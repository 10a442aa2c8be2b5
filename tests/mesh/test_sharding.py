"""Shardings and partition specs: boxes tile the tensor, and specs are compared by meaning."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mithril.errors import MithrilError, ShapeError, ShardingError
from mithril.mesh import Mesh, P, PartitionSpec, Sharding

from tests.mesh.strategies import NAMES, shardings

Drawn = tuple[Sharding, tuple[int, ...]]
MESH = Mesh(data=4, tensor=2)


@given(shardings())
def test_boxes_tile_the_tensor(drawn: Drawn) -> None:
    sharding, shape = drawn
    sharding.check(shape, "x")
    counts = np.zeros(shape, int)
    for device in range(sharding.mesh.size):
        box = sharding.box(device, shape)
        assert counts[box].shape == sharding.local_shape(shape)
        counts[box] += 1
    replicated = [n for n in sharding.mesh.names if n not in sharding.split_axes]
    np.testing.assert_array_equal(counts, sharding.mesh.product(replicated))


@given(shardings())
def test_devices_that_agree_on_the_split_axes_hold_one_box(drawn: Drawn) -> None:
    sharding, shape = drawn
    boxes: dict[int, set[str]] = {}
    for device in range(sharding.mesh.size):
        index = sharding.mesh.index_over(device, sharding.split_axes)
        boxes.setdefault(index, set()).add(str(sharding.box(device, shape)))
    assert all(len(found) == 1 for found in boxes.values())
    assert len(set().union(*boxes.values())) == len(boxes)


@given(shardings())
def test_the_spec_of_a_sharding_means_that_sharding(drawn: Drawn) -> None:
    sharding, _ = drawn
    assert Sharding.of(sharding.mesh, sharding.spec, sharding.rank) == sharding
    assert hash(Sharding.of(sharding.mesh, sharding.spec, sharding.rank)) == hash(sharding)


@given(shardings())
def test_an_axis_is_in_the_dimension_it_splits(drawn: Drawn) -> None:
    sharding, _ = drawn
    for axis in sharding.mesh.names:
        dimension = sharding.dimension_of(axis)
        assert (dimension is None) == (axis not in sharding.split_axes)
        assert dimension is None or axis in sharding.dims[dimension]
    assert sharding.is_replicated == (not sharding.split_axes)


def test_the_first_axis_of_a_dimension_is_the_major_one() -> None:
    both = Sharding.of(MESH, P(("tensor", "data")), 1)
    starts = [both.box(device, (8,))[0].start for device in range(8)]
    assert starts == [0, 4, 1, 5, 2, 6, 3, 7]


def test_a_partial_value_is_not_replicated_until_it_is_reduced() -> None:
    partial = Sharding(MESH, ((), ()), (("data", "sum"),))
    assert not partial.is_replicated
    assert (partial.reduction_of("data"), partial.reduction_of("tensor")) == ("sum", None)
    assert partial.drop_partial() == Sharding.replicated(MESH, 2)
    assert partial != partial.drop_partial()
    assert partial.box(5, (3, 3)) == (slice(0, 3), slice(0, 3))


def test_shardings_of_different_meshes_differ() -> None:
    assert Sharding.replicated(MESH, 1) != Sharding.replicated(Mesh(data=4), 1)


def test_a_sharding_describes_itself() -> None:
    dims = (("data",), ())
    assert Sharding(MESH, dims).describe() == "P('data', None)"
    assert repr(Sharding(MESH, dims)) == "Sharding(P('data', None))"
    partial = (("tensor", "sum"), ("pipeline", "max"))
    described = Sharding(MESH, dims, partial).describe()
    assert described == "P('data', None) partial sum over tensor, max over pipeline"
    assert Sharding(MESH, (("tensor", "data"),)).describe() == "P(('tensor', 'data'))"


entries = st.permutations(NAMES).flatmap(
    lambda names: st.sampled_from(
        [
            (),
            (None,),
            (names[0],),
            (names[0], None),
            ((names[1], names[0]), names[2]),
            (None, names),
        ]
    )
)


@given(entries, st.integers(0, 3))
def test_trailing_nones_mean_nothing(given_entries: tuple, more: int) -> None:
    short, long = P(*given_entries), P(*given_entries, *[None] * more)
    assert short == long
    assert hash(short) == hash(long)


@given(entries)
def test_a_spec_prints_what_makes_it(given_entries: tuple) -> None:
    spec = P(*given_entries)
    assert eval(repr(spec), {"P": P}) == spec
    assert len(spec) == len(given_entries)


def test_specs_are_compared_by_meaning() -> None:
    assert P("a") == P(("a",)) == P(["a"]) == P("a", None)
    assert len({P("a"), P(("a",)), P(["a"], None)}) == 1
    assert P("a") != P("b")
    assert P(None, "a") != P("a")
    assert P(("a", "b")) != P(("b", "a"))
    assert P("a") != ("a",)
    assert P() == P(None) == P([]) == P(())
    assert P is PartitionSpec


def test_a_spec_tells_the_axes_of_any_dimension() -> None:
    spec = P("a", None, ["b", "c"])
    assert [spec.axes(d) for d in range(4)] == [("a",), (), ("b", "c"), ()]
    assert repr(spec) == "P('a', None, ('b', 'c'))"


BAD: dict[str, tuple[Callable[[], object], type[MithrilError], str]] = {
    "axis in two dimensions": (
        lambda: P("a", ("b", "a")),
        ShardingError,
        "P('a', ('b', 'a')) uses mesh axis 'a' 2 times; an axis splits at most one dimension of a "
        "tensor",
    ),
    "number": (
        lambda: P(3),  # type: ignore[arg-type]
        ShardingError,
        "partition spec entry 3 is not an axis; give an axis name, a tuple, or None",
    ),
    "number inside": (
        lambda: P(("a", 3)),  # type: ignore[arg-type]
        ShardingError,
        "partition spec entry ('a', 3) is not an axis; give an axis name, a tuple, or None",
    ),
    "too long": (
        lambda: Sharding.of(MESH, P(None, "data"), 1, "input 'x'"),
        ShardingError,
        "P(None, 'data') has 2 entries for input 'x' of rank 1; give at most one entry per "
        "dimension",
    ),
    "unknown axis": (
        lambda: Sharding.of(MESH, P("dta"), 1),
        MithrilError,
        "P('dta') of tensor does not fit; mesh Mesh(data=4, tensor=2) has no axis 'dta'; axes: "
        "'data', 'tensor'; did you mean 'data'?",
    ),
    "another rank": (
        lambda: Sharding.of(MESH, P("data"), 1).check((4, 4), "input 'x'"),
        ShapeError,
        "input 'x' has rank 2; its sharding P('data') has rank 1",
    ),
    "not a multiple": (
        lambda: Sharding.of(MESH, P(None, "data"), 2).check_even((4, 6), "input 'x'"),
        ShardingError,
        "cannot split dimension 1 (6) of input 'x' over mesh axis 'data' (4); 6 is not a multiple "
        'of 4; use a size of 4 or 8, replicate it, or allow padding with uneven="pad"',
    ),
    "too small for two axes": (
        lambda: Sharding.of(MESH, P(("tensor", "data")), 1).check_even((3,), "input 'x'"),
        ShardingError,
        "cannot split dimension 0 (3) of input 'x' over mesh axis 'tensor' (2) x 'data' (4); 3 is "
        'not a multiple of 8; use a size of 8, replicate it, or allow padding with uneven="pad"',
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_split_is_refused(case: str) -> None:
    make, error, message = BAD[case]
    with pytest.raises(error) as caught:
        make()
    assert str(caught.value) == message
