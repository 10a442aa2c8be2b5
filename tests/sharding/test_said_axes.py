"""Searches in which batches come, or parameters rest, split over axes that are said."""

from __future__ import annotations

import pytest
from mithril import Mesh, P
from mithril.ir import Builder
from mithril.sharding import Search
from mithril.sharding.constraints import Constraints
from mithril.sharding.layout import FREE, Layout
from mithril.sharding.resting import list_even
from mithril.types import DType, TensorType

MESH = Mesh(node=2, gpu=4)
EVERY = frozenset({"node", "gpu"})
NAMES = {
    "batches": frozenset({"x"}),
    "parameters": frozenset({"w"}),
    "cotangents": frozenset({"g"}),
}


def admit(name: str, shape: tuple[int, ...], search: Search, *, is_free: bool = True) -> list[P]:
    builder = Builder()
    builder.input(TensorType(shape, DType.float32), name)
    (value,) = builder.build({}).inputs
    layouts = {value: Layout(arrives=FREE)} if is_free else {}
    given = Constraints(MESH, layouts, search=search)
    even = list(list_even(MESH, value.type, 0, is_whole=False))
    return [one.spec for one in given.list_admitted(value, even)]


@pytest.mark.parametrize("name", ["x", "g"])
def test_a_batch_is_split_over_as_many_devices_as_divide_it(name: str) -> None:
    search = Search(**NAMES, batch_axes=EVERY)
    assert admit(name, (16, 64), search) == [P(("node", "gpu"), None)]
    assert admit(name, (12, 64), search) == [P("gpu", None)]
    assert admit(name, (16, 64), Search(**NAMES, batch_axes=frozenset({"node"}))) == [
        P("node", None)
    ]


def test_a_parameter_rests_split_along_its_largest_dimension() -> None:
    assert admit("w", (16, 64), Search(**NAMES, rest_axes=EVERY)) == [P(None, ("node", "gpu"))]
    assert admit("w", (64, 16), Search(**NAMES, rest_axes=frozenset({"gpu"}))) == [P("gpu", None)]
    assert admit("w", (32, 32), Search(**NAMES, rest_axes=EVERY)) == [P(("node", "gpu"), None)]
    assert admit("w", (3, 5), Search(**NAMES, rest_axes=EVERY)) == [P(None, None)]


def test_nothing_else_is_bound() -> None:
    """Nor is what somebody has said of a batch, or one that cannot be split."""
    search = Search(**NAMES, batch_axes=EVERY, rest_axes=EVERY)
    everything = admit("y", (16, 64), search)
    assert len(everything) == 9
    assert admit("x", (16, 64), search, is_free=False) == everything
    assert admit("x", (16, 64), Search(**NAMES)) == everything
    assert admit("x", (1, 64), search) == admit("y", (1, 64), search)
