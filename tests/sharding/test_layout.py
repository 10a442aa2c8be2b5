"""What is said of tensors by name becomes what is said of values on one mesh."""

from __future__ import annotations

from mithril.ir import Builder, Graph
from mithril.mesh import Mesh, P, Sharding, refine
from mithril.sharding import FREE, Constraints, Layout, collect, find_constraints
from mithril.types import DType, TensorType

MESH = Mesh(data=2, tensor=4)


def lies(*dims: str | None, mesh: Mesh = MESH) -> Sharding:
    return Sharding.of(mesh, P(*dims), 2)


def doubled(rows: int = 8) -> Graph:
    builder = Builder()
    x = builder.input(TensorType((rows, 8), DType.float32), "x")
    return builder.build({"y": builder.assign_name(x * 2.0, "y")})


def found(layouts: dict[str, Layout], graph: Graph, mesh: Mesh = MESH) -> Constraints:
    return find_constraints(graph, mesh, layouts)


def test_an_input_of_which_nothing_is_said_arrives_whole() -> None:
    graph = doubled()
    layout = found({}, graph).of(graph.input("x"))
    assert layout.arrives == lies()
    assert not found({}, graph).binding()


def test_what_exists_is_proposed_and_what_is_computed_with_binds() -> None:
    graph = doubled()
    x = graph.input("x")
    exists = found({"x": Layout(lies("data"))}, graph)
    assert exists.of(x).computed == lies("data")
    assert not exists.binding()
    wished = found({"x": Layout(computed=lies("data"))}, graph)
    assert wished.of(x).arrives == lies("data")
    assert wished.binding() == {x: lies("data")}
    node = graph.nodes[-1]
    assert not collect(graph, exists).forced.get(node)
    assert collect(graph, wished).forced[node].keys() == {"data"}


def test_what_merely_rests_proposes_nothing() -> None:
    graph = doubled()
    node = graph.nodes[-1]
    rests = found({"x": Layout(rests=lies("data")), "y": Layout(follows="x")}, graph)
    assert rests.of(graph.input("x")).arrives == lies("data")
    assert rests.outputs["y"] == Layout(leaves=lies("data"), rests=lies("data"))
    assert not collect(graph, rests).factors[node].get("data")
    arrives = found({"x": Layout(lies("data")), "y": Layout(follows="x")}, graph)
    assert collect(graph, arrives).factors[node]["data"]


def test_an_output_follows_a_free_input_wherever_it_goes() -> None:
    graph = doubled()
    given = found({"x": Layout(FREE), "y": Layout(follows="x")}, graph)
    assert given.of(graph.input("x")).is_free
    assert given.outputs["y"].follows == "x"
    assert given.outputs["y"].leaves is None


def test_padded_arrays_enter_and_leave_as_they_lie_in_memory() -> None:
    """Nine rows over 4 devices are 3, 3, 3, 0; over 2 x 2 sub-axes they would be 3, 2, 3, 1."""
    graph = doubled(rows=9)
    finer = refine(MESH, {"tensor": (2, 2)})
    layouts = {"x": Layout(lies("tensor")), "y": Layout(leaves=lies("tensor"))}
    given = found(layouts, graph, finer)
    x, y = given.of(graph.input("x")), given.outputs["y"]
    assert (x.arrives, x.entry) == (lies(mesh=finer), lies("tensor"))
    assert (y.leaves, y.exit) == (lies(mesh=finer), lies("tensor"))
    even = found(layouts, doubled(), finer)
    assert all(layout.entry is None for layout in even.layouts.values())
    # What does not exist yet can be made in any layout.
    made = found({"x": Layout(computed=lies("tensor"))}, graph, finer)
    assert made.of(graph.input("x")).entry is None


def test_a_home_is_said_of_a_value_between() -> None:
    graph = doubled()
    given = found({"y": Layout(home=lies("data"), leaves=lies())}, graph)
    assert given.of(graph.outputs["y"]).home == lies("data")
    assert given.outputs["y"].leaves == lies()
