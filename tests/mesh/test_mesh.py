"""Laws of the mesh: where devices sit, how they are grouped, and what a mesh may be made of."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mithril.errors import MeshError
from mithril.mesh import Axis, Mesh

from tests.mesh.strategies import meshes, meshes_and_axes

Drawn = tuple[Mesh, tuple[str, ...]]


@given(meshes)
def test_devices_are_numbered_row_major(mesh: Mesh) -> None:
    found = [tuple(mesh.coordinates(device).values()) for device in range(mesh.size)]
    assert found == list(product(*map(range, mesh.shape)))
    assert all(tuple(mesh.coordinates(device)) == mesh.names for device in range(mesh.size))


@given(meshes)
def test_the_index_over_all_axes_is_the_device(mesh: Mesh) -> None:
    assert [mesh.index_over(d, mesh.names) for d in range(mesh.size)] == list(range(mesh.size))


@given(meshes_and_axes())
def test_the_index_is_row_major_in_the_order_of_the_names(drawn: Drawn) -> None:
    mesh, axes = drawn
    places = list(product(*(range(mesh.sizes[axis]) for axis in axes)))
    for device in range(mesh.size):
        at = mesh.coordinates(device)
        assert places[mesh.index_over(device, axes)] == tuple(at[axis] for axis in axes)


@given(meshes_and_axes())
def test_groups_partition_the_devices(drawn: Drawn) -> None:
    mesh, axes = drawn
    groups = mesh.groups(axes)
    assert sorted(device for group in groups for device in group) == list(range(mesh.size))
    assert {len(group) for group in groups} == {mesh.product(axes)}


@given(meshes_and_axes())
def test_a_group_is_ordered_by_its_index_which_is_a_bijection(drawn: Drawn) -> None:
    mesh, axes = drawn
    for group in mesh.groups(axes):
        assert [mesh.index_over(d, axes) for d in group] == list(range(len(group)))


@given(meshes_and_axes())
def test_a_group_differs_in_its_axes_only(drawn: Drawn) -> None:
    mesh, axes = drawn
    others = [name for name in mesh.names if name not in axes]
    fixed = [{mesh.index_over(d, others) for d in group} for group in mesh.groups(axes)]
    assert fixed == [{index} for index in range(mesh.product(others))]


@given(st.lists(st.integers(1, 5), max_size=5))
def test_a_mesh_of_a_shape_has_that_shape(shape: list[int]) -> None:
    assert Mesh.from_shape(shape).shape == tuple(shape)


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        ((), ()),
        (4, ("data",)),
        ((4, 2), ("data", "model")),
        ((4, 2, 2), ("data", "tensor", "pipeline")),
        ((2, 2, 2, 2), ("axis_0", "axis_1", "axis_2", "axis_3")),
    ],
)
def test_a_shape_gives_the_names(shape: int | tuple[int, ...], names: tuple[str, ...]) -> None:
    assert Mesh.from_shape(shape).names == names


def test_names_may_be_chosen() -> None:
    assert Mesh.from_shape((4, 2), ["x", "y"]) == Mesh(x=4, y=2)


def test_meshes_are_compared_and_hashed_by_value() -> None:
    assert Mesh(a=2, b=3) == Mesh({"a": 2, "b": 3}) == Mesh({"a": 2}, b=3)
    assert len({Mesh(a=2, b=3), Mesh({"a": 2, "b": 3}), Mesh(b=3, a=2)}) == 2
    assert Mesh(a=2, b=3) != Mesh(a=2, b=4)


def test_a_mesh_tells_its_axes() -> None:
    mesh = Mesh(data=4, tensor=2)
    assert mesh.axes == (Axis("data", 4), Axis("tensor", 2))
    assert (mesh.size, mesh.axis_size("tensor"), mesh.product(["data", "tensor"])) == (8, 2, 8)
    assert eval(repr(mesh), {"Mesh": Mesh}) == mesh
    assert (Mesh().size, repr(Mesh())) == (1, "Mesh()")


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "twice": (
        lambda: Mesh({"data": 2}, data=2),
        "mesh names axis 'data' twice; give each axis one size",
    ),
    "size 0": (lambda: Mesh(data=0), "mesh axis 'data' has size 0; give a positive integer"),
    "size True": (
        lambda: Mesh(data=True),
        "mesh axis 'data' has size True; give a positive integer",
    ),
    "no name": (
        lambda: Mesh({"": 2}),
        "mesh axis name '' is not a name; give a non-empty string",
    ),
    "no identifier": (
        lambda: Mesh({"tensor-parallel": 2}),
        "mesh axis name 'tensor-parallel' is no identifier; use letters, digits and underscores, "
        "such as 'tensor_parallel'",
    ),
    "number as name": (
        lambda: Mesh({3: 2}),  # type: ignore[dict-item]
        "mesh axis name 3 is not a name; give a non-empty string",
    ),
    "too many names": (
        lambda: Mesh.from_shape(2, ["a", "b"]),
        "mesh_axis_names has 2 names for a mesh of 1 dimensions (2,); give one name per dimension",
    ),
    "repeated name": (
        lambda: Mesh.from_shape((2, 2), ["a", "a"]),
        "mesh_axis_names ('a', 'a') repeats a name; give each axis its own",
    ),
    "text as shape": (
        lambda: Mesh.from_shape("42"),  # type: ignore[arg-type]
        "device_mesh is '42'; give positive integers, such as device_mesh=(4, 2)",
    ),
    "bool as shape": (
        lambda: Mesh.from_shape(True),
        "device_mesh is True; give positive integers, such as device_mesh=(4, 2)",
    ),
    "negative size": (
        lambda: Mesh.from_shape((2, -1)),
        "device_mesh is (2, -1); give positive integers, such as device_mesh=(4, 2)",
    ),
    "unknown axis": (
        lambda: Mesh(data=2, tensor=2).axis_size("tensr"),
        "mesh Mesh(data=2, tensor=2) has no axis 'tensr'; axes: 'data', 'tensor'; did you mean "
        "'tensor'?",
    ),
    "axis of the empty mesh": (
        lambda: Mesh().require("data"),
        "mesh Mesh() has no axis 'data'; axes: none",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_mesh_is_refused(case: str) -> None:
    make, message = BAD[case]
    with pytest.raises(MeshError) as caught:
        make()
    assert str(caught.value) == message


def test_a_shape_is_no_mesh() -> None:
    with pytest.raises(MeshError, match=r"mesh takes named axes, not \(4, 2\); write Mesh\(data=4"):
        Mesh((4, 2))


def test_sizes_are_no_mesh() -> None:
    with pytest.raises(MeshError) as caught:
        Mesh(2, 2)  # type: ignore[arg-type]
    assert str(caught.value) == (
        "mesh takes named axes, not (2, 2); write Mesh(data=2, tensor=2), or "
        "Mesh.from_shape((2, 2)) for default names"
    )
