"""What a transfer sends: each device gets all that it needs, once, from one that has it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril.ir import Cause
from mithril.mesh import Mesh, Sharding
from mithril.plan.timetable import Transfer
from mithril.types import DType, TensorType

from tests.profiles import scaled

CAUSE = Cause("x", "", "", "")


@st.composite
def shardings(draw: st.DrawFn, mesh: Mesh, rank: int) -> Sharding:
    part = draw(st.sampled_from([mesh, mesh.part({"p": 0}), mesh.part({"p": 1})]))
    dims: list[list[str]] = [[] for _ in range(rank)]
    for axis in draw(st.permutations(["a", "b", "p"])):
        where = draw(st.integers(-1, rank - 1))
        if where >= 0:
            dims[where].append(axis)
    return Sharding(part, tuple(map(tuple, dims)))


@settings(max_examples=scaled(400), deadline=None)
@given(st.data())
def test_each_device_gets_what_it_needs_once(data: st.DataObject) -> None:
    sizes = st.integers(1, 4)
    mesh = Mesh(a=data.draw(sizes), b=data.draw(sizes), p=2)
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    source, target = (data.draw(shardings(mesh, len(shape))) for _ in range(2))
    offset = data.draw(st.integers(0, shape[0] - 1))
    goal = (data.draw(st.integers(1, shape[0] - offset)), *shape[1:])
    transfer = Transfer(
        TensorType(shape, DType.float32), source, target, CAUSE,
        goal=TensorType(goal, DType.float32), offset=offset,
    )  # fmt: skip
    whole = np.arange(1, 1 + np.prod(shape)).reshape(shape)
    wanted = whole[offset : offset + goal[0]]
    sent = {source.mesh.in_whole(d): whole[source.box(d, shape)] for d in range(source.mesh.size)}
    got = {
        target.mesh.in_whole(d): np.zeros_like(wanted[target.box(d, goal)])
        for d in range(target.mesh.size)
    }
    for chunk in transfer.chunks:
        assert not got[chunk.receiver][chunk.place].any()  # nothing comes twice
        got[chunk.receiver][chunk.place] = sent[chunk.sender][chunk.held]
    for number in range(target.mesh.size):
        device = target.mesh.in_whole(number)
        np.testing.assert_array_equal(got[device], wanted[target.box(number, goal)])


def test_alike_transfers_share_what_they_send() -> None:
    mesh = Mesh(data=64, pipeline=2)
    lies = [Sharding(mesh.part({"pipeline": n}), (("data",), ())) for n in range(2)]
    one, other = (
        Transfer(TensorType((128, 4), DType.float32), *lies, Cause(name, "", "", ""))
        for name in ("x", "y")
    )
    assert one.chunks is other.chunks
