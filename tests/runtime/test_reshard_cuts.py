"""Arrays move between sub-axes whose cuts do not fit into one another."""

from __future__ import annotations

from collections.abc import Callable

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.mesh import Sharding, refine

B = ml.NumpyBackend(ml.Mesh(a=6, b=2))
WAYS: dict[str, Callable[[ml.Array, Sharding], ml.Array]] = {
    "backend.reshard": B.reshard,
    "backend.array": lambda x, wanted: B.array(x, sharding=wanted),
    "ml.reshard": ml.reshard,
}


def cut(spec: P, *sizes: int) -> Sharding:
    return Sharding.of(refine(B.mesh, {"a": sizes}), spec, 2)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(12, 4), (13, 3)])
def test_an_axis_cut_in_another_way(way: str, shape: tuple[int, int]) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    held = B.array(x, sharding=cut(P("a.0", "b"), 2, 3))
    moved = WAYS[way](held, cut(P("b", "a.0"), 3, 2))
    np.testing.assert_array_equal(moved.numpy(), x)
    assert moved.sharding.shards_along(1) == 3
    for shard in moved.addressable_shards:
        np.testing.assert_array_equal(shard.data, x[shard.index])
