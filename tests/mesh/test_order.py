"""Orders of axes: devices are numbered otherwise, and nothing that is said by name changes."""

from __future__ import annotations

import json
from itertools import product

import mithril as ml
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mithril.errors import MeshError
from mithril.mesh import Axis, Mesh, P, Sharding, coarse, follow, follow_sharding, onto, refine
from mithril.plan.serialize import plan_from_json, plan_to_json

from tests.mesh.strategies import meshes_and_axes, orders

TURNED = Mesh(data=2, tensor=4, order=("tensor", "data"))


@given(orders)
def test_devices_are_numbered_in_the_order(mesh: Mesh) -> None:
    order = mesh.order or mesh.names
    found = [tuple(mesh.coordinates(d)[name] for name in order) for d in range(mesh.size)]
    assert found == list(product(*(range(mesh.sizes[name]) for name in order)))
    assert [mesh.device_at(mesh.coordinates(d)) for d in range(mesh.size)] == list(range(mesh.size))


@given(orders)
def test_the_grid_has_every_device_at_its_coordinates(mesh: Mesh) -> None:
    assert mesh.grid.shape == mesh.shape
    for device in range(mesh.size):
        where = mesh.coordinates(device)
        assert mesh.grid[tuple(where.values())] == device
        assert device == sum(where[name] * stride for name, stride in mesh.strides.items())
    assert [mesh.index_over(d, mesh.names) for d in mesh.row_major] == list(range(mesh.size))


@given(meshes_and_axes())
def test_groups_have_the_same_coordinates_in_any_order(drawn: tuple[Mesh, tuple[str, ...]]) -> None:
    mesh, axes = drawn
    plain = Mesh(mesh.sizes)
    found, wanted = (
        {tuple(tuple(m.coordinates(d).items()) for d in group) for group in m.groups(axes)}
        for m in (mesh, plain)
    )
    assert found == wanted


@given(orders, st.data())
def test_parts_have_the_devices_at_their_coordinates(mesh: Mesh, data: st.DataObject) -> None:
    kept = [name for name in mesh.names if data.draw(st.booleans())]
    at = {name: data.draw(st.integers(0, mesh.sizes[name] - 1)) for name in kept}
    part = mesh.part(at)
    for device in range(part.size):
        inside, outside = part.coordinates(device), mesh.coordinates(part.in_whole(device))
        assert outside == {**inside, **at}
    assert follow(part, mesh, mesh) == part
    before = Mesh(mesh.sizes)
    assert follow(before.part(at), before, mesh) == part


@given(orders, st.data())
def test_a_refined_mesh_has_its_devices_in_the_same_place(mesh: Mesh, data: st.DataObject) -> None:
    cuts = {
        name: (2, 2) for name, size in mesh.sizes.items() if size == 4 and data.draw(st.booleans())
    }
    finer = refine(mesh, cuts)
    assert coarse(finer) == mesh
    assert finer.numbering == mesh.numbering
    assert finer.row_major == mesh.row_major
    assert follow(refine(Mesh(mesh.sizes), cuts), Mesh(mesh.sizes), mesh) == finer


def test_a_sharding_follows_its_mesh() -> None:
    before, part = Mesh(data=2, tensor=4), Mesh(data=2, tensor=4).part({"data": 1})
    sharding = Sharding.of(part, P("tensor"), 1)
    after = follow_sharding(sharding, before, TURNED)
    assert (part.devices, after.mesh.devices) == ((4, 5, 6, 7), (1, 3, 5, 7))
    assert [after.box(d, (8,)) for d in range(4)] == [sharding.box(d, (8,)) for d in range(4)]
    assert onto(after, TURNED).mesh == TURNED


def test_the_order_of_the_axes_is_none() -> None:
    assert Mesh(data=2, tensor=4, order=("data", "tensor")) == Mesh(data=2, tensor=4)
    assert TURNED.reorder(("data", "tensor")) == Mesh(data=2, tensor=4)
    assert Mesh(data=2, tensor=4) != TURNED


def test_text_and_table_say_the_order() -> None:
    assert repr(TURNED) == "Mesh(data=2, tensor=4, order=('tensor', 'data'))"
    assert eval(repr(TURNED)) == TURNED
    table = TURNED.tabulate()
    assert table.title == f"{TURNED!r}, 8 devices"
    assert table.rows == (("0", "0", "2", "4", "6"), ("1", "1", "3", "5", "7"))
    assert TURNED.part({"data": 1}).tabulate().rows == (("0", "1", "3", "5", "7"),)


def test_a_plan_keeps_the_order() -> None:
    model = ml.Linear(8, sharding={"weight": ml.P("tensor", None)})
    plan = ml.compile(model, ml.NumpyBackend(TURNED), shapes={"input": (4, 6)}).plan
    text = plan_to_json(plan)
    assert plan_from_json(text).mesh == TURNED
    assert str(plan_from_json(text)) == str(plan)
    content = json.loads(text)
    content["plan"]["mesh"]["order"] = ["tensor"]
    told = r"order \['tensor'\] does not name each of the axes \['data', 'tensor'\] once"
    with pytest.raises(ml.GraphError, match=told):
        plan_from_json(json.dumps(content))
    del content["plan"]["mesh"]["order"]  # as plans of earlier versions are written
    assert plan_from_json(json.dumps(content)).mesh == Mesh(data=2, tensor=4)


@pytest.mark.parametrize(
    ("order", "text"),
    [
        (
            "tensor",
            "mesh order is 'tensor'; give all axis names, the slowest first, such as "
            "order=('tensor', 'data'); an axis of that name is given as Mesh({'order': 2})",
        ),
        (
            2,
            "mesh order is 2; give all axis names, the slowest first, such as "
            "order=('tensor', 'data'); an axis of that name is given as Mesh({'order': 2})",
        ),
        (
            ("tensor", "date"),
            "mesh order names 'date', which is no axis; axes: 'data', 'tensor'; did you mean 'data'?",
        ),
        (
            ("tensor", "data", "tensor"),
            "mesh order names axis 'tensor' twice; name each axis once",
        ),
        (
            ("tensor",),
            "mesh order ('tensor',) lacks axis 'data'; name each axis once: 'data', 'tensor'",
        ),
    ],
)
def test_an_order_names_each_axis_once(order: object, text: str) -> None:
    with pytest.raises(MeshError) as raised:
        Mesh(data=2, tensor=4, order=order)
    assert str(raised.value) == text
    with pytest.raises(MeshError) as raised:
        Mesh(data=2, tensor=4).reorder(order)
    assert str(raised.value) == text


def test_an_axis_may_be_called_order() -> None:
    assert Mesh({"order": 2}).axes == (Axis("order", 2),)
