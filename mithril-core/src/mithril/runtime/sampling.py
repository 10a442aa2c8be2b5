"""Random numbers by position: element i of a tensor depends on a key and on i, on nothing else.

So any device can draw just its own part of a tensor, and initial values are equal bit for bit on
every mesh. The words come from NumPy's Philox-4x64 (Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", 2011), whose counter can start anywhere; each element takes one 64-bit word.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mithril.errors import OptionError
from mithril.mesh import Box
from mithril.runtime.inverse_normal import invert_normal
from mithril.types import Shape, to_python

WORDS_PER_BLOCK = 4
SHORT_RUN = 256
"""Runs of fewer words are drawn together with what lies between them."""


def read_seed(given: object) -> int:
    """Return a seed, which is an integer that fits 32 bits.

    Raises:
        OptionError: it is not.
    """
    if type(given) is int and 0 <= given < 2**32:
        return given
    seed = to_python(given)
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise OptionError(f"seed={seed!r} is not an integer in [0, 2**32); give another")
    return seed


@dataclass(frozen=True, slots=True)
class Key:
    """Names a stream of random words, by a seed and a name."""

    seed: int
    name: str

    def words(self, shape: Shape, box: Box) -> np.ndarray:
        """Return the uint64 words of the part of a tensor that a box cuts out."""
        digest = hashlib.sha256(f"{self.seed}:{self.name}".encode()).digest()
        key = np.frombuffer(digest[:16], np.uint64)
        grown = _grow(shape, box)
        drawn = np.empty([part.stop - part.start for part in grown], np.uint64)
        for run in _runs(shape, grown):
            run.fill(drawn, key)
        return drawn[
            tuple(
                slice(part.start - full.start, part.stop - full.start)
                for part, full in zip(box, grown, strict=True)
            )
        ]

    def uniform(self, shape: Shape, box: Box, low: float = 0.0, high: float = 1.0) -> np.ndarray:
        """Return float64 numbers in [low, high)."""
        unit = (self.words(shape, box) >> np.uint64(11)) * 2.0**-53
        return low + (high - low) * unit

    def normal(self, shape: Shape, box: Box) -> np.ndarray:
        """Return float64 standard normal numbers, by Box and Muller's method."""
        words = self.words(shape, box)
        first = ((words >> np.uint64(32)) + 0.5) * 2.0**-32
        second = (words & np.uint64(0xFFFFFFFF)) * 2.0**-32
        found: np.ndarray = np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * math.pi * second)
        return found

    def normal_between(self, shape: Shape, box: Box, low: float, high: float) -> np.ndarray:
        """Return float64 standard normal numbers of those in [low, high] only."""
        first, last = (0.5 * math.erfc(-bound / math.sqrt(2.0)) for bound in (low, high))
        probability = self.uniform(shape, box, first, last)
        least, most = np.finfo(np.float64).tiny, 1.0 - 2.0**-53
        found: np.ndarray = np.clip(invert_normal(np.clip(probability, least, most)), low, high)
        return found

    def integers(self, shape: Shape, box: Box, low: int, high: int) -> np.ndarray:
        """Return int64 numbers in [low, high)."""
        return low + (self.words(shape, box) % np.uint64(high - low)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive elements of the tensor, and where they lie in the drawn array."""

    first: int
    count: int
    index: tuple[int, ...]

    def fill(self, drawn: np.ndarray, key: np.ndarray) -> None:
        block, skip = divmod(self.first, WORDS_PER_BLOCK)
        stream = np.random.Philox(counter=block, key=key)
        words = stream.random_raw(skip + self.count)[skip:]
        drawn[self.index] = words.reshape(drawn[self.index].shape)


def _grow(shape: Shape, box: Box) -> Box:
    """Return the box with minor dimensions taken in full until its runs are long enough."""
    grown = list(box)
    for dimension in reversed(range(len(shape))):
        covered = math.prod(part.stop - part.start for part in grown[dimension:])
        rest_is_full = all(
            part.stop - part.start == size
            for part, size in zip(grown[dimension + 1 :], shape[dimension + 1 :], strict=True)
        )
        if rest_is_full and covered >= SHORT_RUN:
            break
        if dimension:
            grown[dimension] = slice(0, shape[dimension])
    return tuple(grown)


def _runs(shape: Shape, box: Box) -> Iterator[_Run]:
    """Yield the stretches of consecutive elements a box consists of."""
    lengths = [part.stop - part.start for part in box]
    split = len(shape)
    while split and lengths[split - 1] == shape[split - 1]:
        split -= 1
    leading = max(split - 1, 0)  # dimension `leading` starts the consecutive part
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    count = math.prod(lengths[leading:])
    if not count:
        return
    for index in itertools.product(*(range(length) for length in lengths[:leading])):
        first = sum((box[i].start + at) * strides[i] for i, at in enumerate(index))
        first += sum(
            part.start * s for part, s in zip(box[leading:], strides[leading:], strict=True)
        )
        yield _Run(first, count, index)
