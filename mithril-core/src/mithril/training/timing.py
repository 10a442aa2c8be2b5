"""How long steps take: samples a second since the last row, and the time that is left.

The first step is left out, since it is the one that plans and compiles. Neither do samples a second
count what goes on between steps, such as evaluating.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager


class Timer:
    """Measures a training from when it is made."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._second: float | None = None  # when the second step begins
        self._steps = self._samples = 0
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return time.perf_counter() - self._begin

    @property
    def steps(self) -> int:
        """How many steps are done."""
        return self._steps

    def begin_step(self) -> None:
        """Take note that a step begins."""
        if self._steps == 1:
            self._second = time.perf_counter()

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Count the time of a block as that of steps."""
        before = time.perf_counter()
        yield
        if self._second is not None:
            self._seconds += time.perf_counter() - before

    def count(self, samples: int) -> None:
        """Count a step that is done.

        Args:
            samples: of its batch.
        """
        self._steps += 1
        if self._second is not None:
            self._samples += samples

    def take_rate(self) -> float | None:
        """Return the samples a second since it was last asked for, if there are any."""
        rate = self._samples / self._seconds if self._samples and self._seconds else None
        self._samples, self._seconds = 0, 0.0
        return rate

    def predict(self, steps: int | None) -> float | None:
        """Return how many seconds some more steps take, all that is between them included."""
        if not steps or self._second is None or self._steps < 2:
            return None
        return steps * (time.perf_counter() - self._second) / (self._steps - 1)


def count_samples(batch: object) -> int:
    """Return the first dimension of the first array of a batch; 0 where it has none.

    >>> import numpy as np
    >>> count_samples({"x": np.zeros((8, 3)), "y": np.zeros(8)})
    8
    """
    shape = getattr(batch, "shape", None)
    if isinstance(shape, tuple):
        return int(shape[0]) if shape else 0
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return next((count for item in batch if (count := count_samples(item))), 0)
    return 0
