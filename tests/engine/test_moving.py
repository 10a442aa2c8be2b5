"""What a device holds of pieces that arrive: equal to writing them, without writing."""

from __future__ import annotations

import array_api_strict as strict
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from mithril.engine.moving import put_together
from mithril.mesh import Box
from mithril.plan.timetable import Chunk

Shape = tuple[int, ...]


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Shape, list[Box]]:
    """Return a shape, and boxes that do not overlap: an array cut up, some of it left out."""
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    found: list[Box] = [tuple(slice(0, size) for size in shape)]
    for _ in range(draw(st.integers(0, 4)) if shape else 0):
        box = found.pop(draw(st.integers(0, len(found) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        cut = draw(st.integers(box[axis].start, box[axis].stop))
        parts = (slice(box[axis].start, cut), slice(cut, box[axis].stop))
        found += [(*box[:axis], part, *box[axis + 1 :]) for part in parts]
    return shape, draw(st.lists(st.sampled_from(found), unique_by=str))


def frozen(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x


@given(boxes())
def test_pieces_stand_at_their_places(drawn: tuple[Shape, list[Box]]) -> None:
    shape, places = drawn
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = np.zeros(shape, np.float32)
    for place in places:
        expected[place] = values[place]
    for xp in (np, strict):
        arrived = [
            (Chunk(0, 0, place, place), xp.asarray(frozen(np.array(values[place]))))
            for place in places
        ]
        found = put_together(arrived, shape, xp.float32, xp)
        assert found.shape == shape
        np.testing.assert_array_equal(np.from_dlpack(found), expected)


class Fixed:
    """An array that cannot be changed, as JAX has them: NumPy's without `x[i] = y`."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.shape = array.shape

    def __getitem__(self, index: Box) -> Fixed:
        return Fixed(self.array[index])


class FixedNamespace:
    """The two functions that moving needs."""

    @staticmethod
    def zeros(shape: Shape, dtype: np.dtype) -> Fixed:
        return Fixed(np.zeros(shape, dtype))

    @staticmethod
    def concat(parts: list[Fixed], axis: int) -> Fixed:
        return Fixed(np.concatenate([part.array for part in parts], axis))


def test_arrays_that_cannot_change_are_moved() -> None:
    place = (slice(1, 3), slice(0, 2))
    arrived = [(Chunk(0, 1, place, place), Fixed(np.ones((2, 2))))]
    found = put_together(arrived, (4, 3), np.dtype(float), FixedNamespace)  # type: ignore[arg-type]
    np.testing.assert_array_equal(found.array, np.pad(np.ones((2, 2)), ((1, 1), (0, 1))))
