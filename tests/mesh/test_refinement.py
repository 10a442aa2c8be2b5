"""Sub-axes: the same devices in the same order, said on a finer mesh and back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mithril.errors import MeshError
from mithril.mesh import Axis, Mesh, P, Sharding, carry, coarse, coarsen, common, refine
from mithril.mesh.refinement import has_same_layout, part

from tests.mesh.strategies import meshes

SIX_FOUR = Mesh(data=6, tensor=4)


@st.composite
def refinements(draw: st.DrawFn, mesh: Mesh = SIX_FOUR) -> Mesh:
    """A refinement of a mesh."""
    cuts = {}
    for axis in mesh.axes:
        divisors = [d for d in range(1, axis.size + 1) if axis.size % d == 0]
        major = draw(st.sampled_from(divisors))
        cuts[axis.name] = (major, axis.size // major)
    return refine(mesh, cuts)


@st.composite
def laid_out(draw: st.DrawFn) -> tuple[Sharding, tuple[int, ...]]:
    """A sharding on a refinement, and a shape of any size."""
    mesh = draw(refinements())
    dims: list[tuple[str, ...]] = [(), ()]
    for name in draw(st.permutations(mesh.names)):
        where = draw(st.integers(-1, 1))
        if where >= 0:
            dims[where] += (name,)
    shape = draw(st.tuples(st.integers(0, 50), st.sampled_from([24, 48])))
    return Sharding.of(mesh, P(*dims), 2), shape


@given(refinements())
def test_a_refinement_has_the_same_devices(mesh: Mesh) -> None:
    assert coarse(mesh) == SIX_FOUR
    assert mesh.size == SIX_FOUR.size
    for device in range(mesh.size):
        names = [axis.name for axis in mesh.axes if axis.origin == "data"]
        assert mesh.index_over(device, names) == SIX_FOUR.coordinates(device)["data"]


@given(laid_out())
def test_coarsening_keeps_the_layout(drawn: tuple[Sharding, tuple[int, ...]]) -> None:
    sharding, shape = drawn
    back = coarsen(sharding, shape)
    assert has_same_layout(sharding, back, shape)
    assert [back.box(d, shape) for d in range(24)] == [sharding.box(d, shape) for d in range(24)]
    assert carry(back, sharding.mesh) == sharding
    assert coarsen(back, shape) == back


@given(laid_out(), refinements())
def test_carrying_keeps_the_layout_of_even_sizes(
    drawn: tuple[Sharding, tuple[int, ...]], other: Mesh
) -> None:
    sharding, _ = drawn
    try:
        finer = common([sharding.mesh, other])
    except MeshError:
        return
    carried = carry(sharding, finer)
    assert carried.mesh == finer
    assert has_same_layout(sharding, carried, (48, 48))
    assert [carried.box(d, (48, 48)) for d in range(24)] == [
        sharding.box(d, (48, 48)) for d in range(24)
    ]


def test_padding_can_make_a_refined_layout_another_one() -> None:
    mesh = Mesh(data=4)
    whole = Sharding.of(mesh, P("data"), 1)
    finer = carry(whole, refine(mesh, {"data": (2, 2)}))
    sizes = [[s.box(d, (10,))[0] for d in range(4)] for s in (whole, finer)]
    assert [part.stop - part.start for part in sizes[0]] == [3, 3, 3, 1]
    assert [part.stop - part.start for part in sizes[1]] == [3, 2, 3, 2]
    assert not has_same_layout(whole, finer, (10,))
    assert coarsen(finer, (10,)) == finer


def test_a_common_refinement_has_all_cuts() -> None:
    mesh = Mesh(data=8)
    two, four = refine(mesh, {"data": (2, 4)}), refine(mesh, {"data": (4, 2)})
    assert common([two, four]) == refine(mesh, {"data": (2, 2, 2)})
    assert common([mesh, two]) == two
    assert common([mesh]) == mesh


def test_cuts_that_do_not_fit_are_refused() -> None:
    mesh = Mesh(data=6)
    with pytest.raises(MeshError) as caught:
        common([refine(mesh, {"data": (2, 3)}), refine(mesh, {"data": (3, 2)})])
    assert str(caught.value) == (
        "axis 'data' of Mesh(data=6) is cut at 2, 3, which do not divide one another; lay the "
        "tensors that meet on device meshes whose parts fit"
    )


def test_complete_runs_are_named_by_their_axis() -> None:
    mesh = refine(Mesh(data=2, tensor=4), {"tensor": (2, 2)})
    assert mesh.join_axes(("tensor.0", "tensor.1")) == ("tensor",)
    assert mesh.join_axes(("tensor.1", "tensor.0")) == ("tensor.1", "tensor.0")
    assert mesh.join_axes(("data", "tensor.0")) == ("data", "tensor.0")
    assert mesh.join_axes(("data", "tensor.0", "tensor.1")) == ("data", "tensor")
    assert Axis("tensor.0", 2, "tensor").origin == "tensor"


# ------------------------------------------------------------------ device_mesh= of the guides


@given(meshes, st.data())
def test_a_part_names_the_axes_it_covers(mesh: Mesh, data: st.DataObject) -> None:
    used = data.draw(st.tuples(*[st.booleans()] * len(mesh.axes)))
    shape = [axis.size if use else 1 for axis, use in zip(mesh.axes, used, strict=True)]
    same, found = part(mesh, shape)
    assert same == mesh
    assert found == tuple(
        (axis.name,) if size > 1 else () for axis, size in zip(mesh.axes, shape, strict=True)
    )


@pytest.mark.parametrize(
    ("mesh", "shape", "sizes", "entries"),
    [
        (Mesh(data=4, tensor=2), (4,), (4, 2), (("data",),)),
        (Mesh(data=4, tensor=2), (1, 2, 1), (4, 2), ((), ("tensor",), ())),
        (Mesh(data=4, tensor=2), (2, 2), (2, 2, 2), (("data.0",), ("tensor",))),
        (Mesh(data=8), (2,), (2, 4), (("data.0",),)),
        (Mesh(data=4), (2, 2), (2, 2), (("data.0",), ("data.1",))),
        (
            Mesh(data=2, tensor=4),
            (4, 2),
            (2, 2, 2),
            (("data", "tensor.0"), ("tensor.1",)),
        ),
        (Mesh(data=2, tensor=2), (4,), (2, 2), (("data", "tensor"),)),
        (Mesh(data=8), (2, 2, 2), (2, 2, 2), (("data.0",), ("data.1",), ("data.2",))),
    ],
)
def test_smaller_entries_and_other_factorisations(
    mesh: Mesh, shape: tuple[int, ...], sizes: tuple[int, ...], entries: tuple
) -> None:
    finer, found = part(mesh, shape)
    assert finer.shape == sizes
    assert found == entries
    assert [finer.product(axes) for axes in found] == list(shape)


@pytest.mark.parametrize(
    ("mesh", "shape", "text"),
    [
        (
            Mesh(data=4, tensor=2),
            (3, 2),
            "device_mesh=(3, 2) of layer 'up' does not fit the mesh (4, 2) of "
            "Mesh(data=4, tensor=2); each entry must be 1, the size of its axis or a divisor of "
            "it, or all of them another factorisation of the 8 devices (a.py:3)",
        ),
        (Mesh(data=4), (1, 2), "another factorisation of the 4 devices (a.py:3)"),
        (
            Mesh(data=3, tensor=2),
            (2, 3),
            "device_mesh=(2, 3) of layer 'up' puts the 6 devices into blocks of 3, and "
            "Mesh(data=3, tensor=2) into blocks of 2; neither divides the other, so that they have "
            "no common refinement; give another factorisation, such as (3, 2) (a.py:3)",
        ),
        (
            Mesh(a=2, b=6),
            (3, 4),
            "12 devices into blocks of 4, and Mesh(a=2, b=6) into blocks of 6",
        ),
        (Mesh(a=2, b=6), (3, 2), "does not fit the mesh (2, 6)"),
        (Mesh(data=2), (4,), "does not fit the mesh (2,)"),
    ],
)
def test_what_is_no_part_is_refused(mesh: Mesh, shape: tuple[int, ...], text: str) -> None:
    with pytest.raises(MeshError) as caught:
        part(mesh, shape, " of layer 'up'", " (a.py:3)")
    assert text in str(caught.value)


@given(st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=3))
def test_any_factorisation_of_one_axis_is_a_part(shape: list[int]) -> None:
    finer, entries = part(Mesh(data=math.prod(shape)), shape)
    assert [finer.product(axes) for axes in entries] == shape
