"""Where values may live: what can be nobody's gain is not priced."""

from __future__ import annotations

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P
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
