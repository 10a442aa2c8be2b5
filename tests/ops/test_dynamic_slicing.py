"""Parts at positions on any mesh, also where parts are uneven: what NumPy gives."""

from __future__ import annotations

from functools import cache

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import P

from tests.conformance.engines import BACKENDS
from tests.conformance.engines import opened as engine
from tests.profiles import scaled

MESHES = ((2,), (3,), (2, 2), (4, 2))


@cache
def opened(sizes: tuple[int, ...]) -> ml.Backend:
    return ml.NumpyBackend(ml.Mesh(dict(zip("xy", sizes, strict=False))))


@st.composite
def cases(draw):
    """Return a mesh, an array and its spec, sizes of a part and where it starts."""
    sizes = draw(st.sampled_from(MESHES))
    shape = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    part = [draw(st.integers(1, size)) for size in shape]
    starts = [draw(st.integers(-3, 9)) for _ in shape]
    places = [None, *"xy"[: len(sizes)]]
    spec = [draw(st.sampled_from(places)) for _ in shape]
    spec = [axis if axis not in spec[:i] else None for i, axis in enumerate(spec)]
    return sizes, tuple(shape), tuple(part), starts, P(*spec)


def index(shape, part, starts) -> tuple[slice, ...]:
    firsts = [max(0, min(s, n - p)) for s, n, p in zip(starts, shape, part, strict=True)]
    return tuple(slice(first, first + size) for first, size in zip(firsts, part, strict=True))


@settings(max_examples=scaled(200), deadline=None)
@given(cases())
def test_parts_of_a_split_array(case) -> None:
    sizes, shape, part, starts, spec = case
    backend, values = opened(sizes), np.arange(float(np.prod(shape))).reshape(shape)
    x = backend.array(values, sharding=spec)
    at = [backend.array(np.int32(start)) for start in starts]
    expected = values[index(shape, part, starts)]
    np.testing.assert_array_equal(mnp.dynamic_slice(x, at, part).numpy(), expected)
    np.testing.assert_array_equal(mnp.dynamic_slice(x, starts, part).numpy(), expected)


@pytest.mark.slow
@settings(max_examples=scaled(200), deadline=None)
@given(cases(), st.booleans())
def test_parts_written_into_a_split_array(case, donated: bool) -> None:
    sizes, shape, part, starts, spec = case
    backend, values = opened(sizes), np.arange(float(np.prod(shape))).reshape(shape)
    x, update = backend.array(values, sharding=spec), -1 - np.ones(part)
    at = [backend.array(np.int32(start)) for start in starts]
    expected = values.copy()
    expected[index(shape, part, starts)] = update
    function = ml.jit(mnp.dynamic_update_slice, donate=0) if donated else mnp.dynamic_update_slice
    found = function(x, backend.array(update), at)
    np.testing.assert_array_equal(found.numpy(), expected)


def test_a_position_is_traced() -> None:
    backend = ml.NumpyBackend()
    step = ml.jit(lambda x, i: mnp.dynamic_slice(x, i, 2, axis=0))
    x = backend.array([0, 1, 2, 3])
    assert [step(x, i).numpy().tolist() for i in (0, 1, 7)] == [[0, 1], [1, 2], [2, 3]]
    assert step.recompiles == 1


@pytest.mark.parametrize("name", [n for n in BACKENDS if n != "mlx"])
def test_masks_and_starts_of_few_bits(name: str) -> None:
    """A split dimension is longer than what int8 holds; parts of a mask meet in a sum."""
    backend, size = engine(name, x=2), 300
    mask = np.arange(size) % 3 == 0
    split = backend.array(mask, sharding=P("x"))
    for dtype in ("int8", "uint8", "int16", "int64"):
        start = backend.array(np.asarray(100, dtype))
        found = mnp.dynamic_slice(split, start, 7, axis=0)
        np.testing.assert_array_equal(found.numpy(), mask[100:107])
        written = mnp.dynamic_update_slice(split, backend.array(~mask[:7]), start, axis=0)
        expected = np.concatenate([mask[:100], ~mask[:7], mask[107:]])
        np.testing.assert_array_equal(written.numpy(), expected)
