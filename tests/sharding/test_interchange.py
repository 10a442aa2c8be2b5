"""Axes of a mesh that may be exchanged: which ones, and that paths cost as much with other names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from mithril.cost import SIMULATED, Hardware, Level
from mithril.mesh import MICRO, Axis, Mesh, Sharding
from mithril.sharding import Resharder
from mithril.sharding.interchange import list_renamings
from mithril.types import DType, TensorType

from tests.sharding.test_move_prices import placements
from tests.sharding.test_routes import is_possible

H100 = Hardware.load("h100-sxm")
NODES = replace(
    SIMULATED, name="nodes", levels=(Level("node", 4, 1e-6, 1e11), Level("pod", None, 1e-5, 1e10))
)


def with_micro(mesh: Mesh) -> Mesh:
    """Return a mesh with two micro-batches."""
    return Mesh.of_axes((*mesh.axes, Axis(MICRO, 2)), (), ())


@pytest.mark.parametrize(
    ("mesh", "hardware", "expected"),
    [
        (Mesh(a=8, b=8, c=8), H100, ["bac"]),  # c is within a node
        (Mesh(a=8, b=8, c=8), SIMULATED, ["acb", "bac", "bca", "cab", "cba"]),
        (Mesh(a=2, b=4, c=2), SIMULATED, ["cba"]),
        (Mesh(a=2, b=4), SIMULATED, []),
        (with_micro(Mesh(a=2, b=1, c=1)), H100, []),
        (Mesh(a=2, b=2, c=4), NODES, ["bac"]),
        (Mesh(a=2, b=4, c=2), NODES, []),  # c is within a node, a is not
        (Mesh(**dict.fromkeys("abcdefg", 2)), SIMULATED, []),  # too many to compare
    ],
    ids=lambda value: value.name if isinstance(value, Hardware) else str(value),
)
def test_axes_of_one_size_over_the_same_links_may_be_exchanged(
    mesh: Mesh, hardware: Hardware, expected: list[str]
) -> None:
    found = [
        "".join(names[axis] for axis in mesh.names) for names in list_renamings(mesh, hardware)
    ]
    assert sorted(found) == expected


MESH = Mesh(a=4, b=4, c=8)


@given(
    placements(MESH, 3),
    placements(MESH, 3),
    st.integers(1, 2**20),
    st.sampled_from([SIMULATED, H100]),
    st.booleans(),
)
def test_a_path_costs_as_much_with_other_names_of_axes(
    start: Sharding, goal: Sharding, size: int, hardware: Hardware, is_even: bool
) -> None:
    assume(is_possible(start, goal))
    type = TensorType((128, 128, 128 if is_even else 10 * size), DType.float32)
    (names,) = list_renamings(MESH, hardware)
    resharder = Resharder(MESH, hardware)
    path = resharder.path(start, goal, type)
    other = resharder.path(rename(start, names), rename(goal, names), type)
    assert (path.price, path.collectives) == (other.price, other.collectives)


def rename(sharding: Sharding, names: dict[str, str]) -> Sharding:
    """Return a sharding over other axes."""
    dims = tuple(tuple(names[axis] for axis in axes) for axes in sharding.dims)
    partial = {names[axis]: reduction for axis, reduction in sharding.partial}
    ordered = tuple((name, partial[name]) for name in MESH.names if name in partial)
    return Sharding(MESH, dims, ordered)
