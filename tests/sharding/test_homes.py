"""Where values may live: what can be nobody's gain is not priced."""

from __future__ import annotations

from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P
from mithril.sharding import objective
from mithril.sharding.reshard import Journey, Path, Resharder
from mithril.types import TensorType

FEW = 1000
"""Pairs of shardings; there are 200 on either side."""


def test_an_array_on_many_axes_is_not_priced_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reshape that cuts the axes of a mesh into seven has 204 ways to lie on either side."""
    priced: list[TensorType] = []
    find = Resharder.find_path

    def count(self: Resharder, journey: Journey, type: TensorType) -> Path | None:
        priced.append(type)
        return find(self, journey, type)

    monkeypatch.setattr(Resharder, "find_path", count)
    backend = ml.NumpyBackend(ml.Mesh(data=4, tensor=2, pipeline=4, expert=4))
    values = np.arange(48.0, dtype=np.float32).reshape(8, 6)
    x = backend.array(values, sharding=P("expert", ("pipeline", "tensor", "data")))
    y = mnp.reshape(x, (-1,))
    np.testing.assert_array_equal(y.numpy(), values.reshape(-1))
    assert 200 < len(priced) < FEW


@pytest.mark.parametrize("options", [{}, {"auto_partition": True}], ids=["given", "searched"])
@pytest.mark.parametrize("split", [P("tensor", None), P(None, "tensor"), P(None, None)], ids=str)
def test_what_is_left_out_is_nobodys_gain(
    split: ml.P, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Homes are left out in large tables alone; in all of them the plans would be the same."""
    model = ml.Model()
    model |= ml.Linear(8, name="up")(input="x", output="hidden")
    model += ml.Linear(16, name="down")(output="y")  # partial sums, which nobody takes
    model.shard({"up.weight": split, "down.weight": P(None, "tensor")})
    backend, given = ml.NumpyBackend(ml.Mesh(data=2, tensor=2)), {"x": (16, 8)}
    plans = []
    for large in (objective.LARGE, 0):
        monkeypatch.setattr(objective, "LARGE", large)
        plans.append(ml.compile(model, backend, shapes=given, **options).plan)
    before, after = plans
    assert [row.kind for row in after.collectives()] == [row.kind for row in before.collectives()]
    assert after.timeline().seconds == before.timeline().seconds
