"""Waiting for arrays on every backend: the values are there, and the same array comes back."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.engine.base import Engine

from tests.conformance.engines import BACKENDS, opened


@pytest.mark.parametrize("backend", ["numpy", *BACKENDS])
def test_arrays_are_waited_for(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on = ml.NumpyBackend(ml.Mesh(x=2)) if backend == "numpy" else opened(backend, x=2)
    x = on.array(np.arange(8, dtype=np.float32), sharding=P("x"))
    waited: list[object] = []
    calls = 0
    wait_for = type(on.engine).wait_for

    def count(self: Engine, handles: Any) -> None:
        nonlocal calls
        calls += 1
        waited.extend(handles)
        wait_for(self, handles)

    monkeypatch.setattr(type(on.engine), "wait_for", count)
    y = ml.jit(lambda x: x * 2)(x)
    assert y.block_until_ready() is y
    assert waited == [y.shards]
    tree = {"a": y, "b": [on.multiply(y, 2.0), 3.0, None]}
    assert ml.block_until_ready(tree) is tree
    assert len(waited) == 3
    assert calls == 2  # one for the array, one for all of the tree
    np.testing.assert_array_equal(tree["b"][0].numpy(), np.arange(8) * 4)


def test_a_parameter_without_a_size_is_not_waited_for() -> None:
    model = ml.Model()
    model |= ml.Linear(3, name="up")(input="x", output="y")
    params = ml.compile(model, ml.NumpyBackend()).randomize_params()
    assert ml.block_until_ready(params) is params
    assert params["up.weight"].block_until_ready() is params["up.weight"]
