"""Slices of arrays: right wherever they begin, and one plan for all of one size."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import P

from tests.conformance.engines import BACKENDS, opened

HOST = np.arange(6 * 4 * 2, dtype=np.float32).reshape(6, 4, 2)


def list_planned(backend: ml.Backend, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the ops that the backend plans from now on."""
    planned: list[str] = []
    bind = backend._bind_op

    def note(op: Any, kinds: Any) -> Any:
        planned.append(op.name)
        return bind(op, kinds)

    monkeypatch.setattr(backend, "_bind_op", note)
    return planned


@pytest.mark.parametrize("spec", [P(), P(None, "x")])
@pytest.mark.parametrize("name", BACKENDS)
def test_slices_of_one_size_share_a_plan(
    name: str, spec: P, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = opened(name, x=2)
    planned, x = list_planned(backend, monkeypatch), backend.array(HOST, sharding=spec)
    for i in range(5):
        np.testing.assert_array_equal(x[i : i + 2].numpy(), HOST[i : i + 2])
        np.testing.assert_array_equal(x[-1 - i].numpy(), HOST[-1 - i])
    assert sorted(planned) == ["dynamic_slice", "dynamic_slice", "reshape"]


def test_a_slice_of_a_split_dimension_lies_as_it_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = opened("numpy", x=2)
    planned, x = list_planned(backend, monkeypatch), backend.array(HOST, sharding=P("x"))
    np.testing.assert_array_equal(x[1:3].numpy(), HOST[1:3])
    assert planned == ["slice"]


def indices(size: int) -> st.SearchStrategy[Any]:
    ends = st.none() | st.integers(-size - 2, size + 2)
    steps = st.none() | st.sampled_from([1, 2, -1])
    return st.integers(-size, size - 1) | st.builds(slice, ends, ends, steps)


@settings(deadline=None)
@given(st.sampled_from([P(), P("x"), P(None, "x"), P("x", None, "y")]), st.data())
def test_any_slice_is_that_of_numpy(spec: P, data: st.DataObject) -> None:
    index = data.draw(st.tuples(*map(indices, HOST.shape)))
    x = opened("numpy", x=2, y=2).array(HOST, sharding=spec)
    np.testing.assert_array_equal(x[index].numpy(), HOST[index])
