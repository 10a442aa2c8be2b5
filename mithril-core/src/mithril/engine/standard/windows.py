"""How windows slide over an input, by *taps*: an element of the window for all windows at once.

A tap reads a strided slice of the padded input; what goes back from it is spread out in the same
way and added up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from mithril.engine.standard.namespace import ArrayNamespace
from mithril.engine.standard.shape import spread
from mithril.ops.windows import Padding
from mithril.types import Shape

FIRST = 2
"""The first of the dimensions that windows slide along, after batch and channels."""


class Windows:
    """How windows lie in an input.

    Args:
        size: of the input, along the dimensions that windows slide along.
        out: how many windows there are along each.
        window: sizes of a window.
        stride: how far the next window is.
        padding: how much is before and after the input.
        dilation: how far the next element of a window is.
    """

    def __init__(
        self,
        size: Shape,
        out: Shape,
        window: Shape,
        stride: Shape,
        padding: Padding,
        dilation: Shape,
    ) -> None:
        self.size, self.out, self.window, self.stride = size, out, window, stride
        self.before = tuple(before for before, _ in padding)
        self.dilation = dilation
        self.padded = tuple(
            max(n + before, (w - 1) * d + s * (count - 1) + 1)
            for n, before, w, d, s, count in zip(
                size, self.before, window, dilation, stride, out, strict=True
            )
        )

    def __iter__(self) -> Iterator[Shape]:
        """Yield where each element of the window begins in the padded input, row-major."""
        for at in itertools.product(*map(range, self.window)):
            yield tuple(k * d for k, d in zip(at, self.dilation, strict=True))

    def pad(self, x: Any, xp: ArrayNamespace) -> Any:
        """Return the input with zeros around it."""
        for axis, (before, size) in enumerate(zip(self.before, self.padded, strict=True)):
            x = spread(x, FIRST + axis, before, 1, size, xp)
        return x

    def read(self, padded: Any, start: Shape) -> Any:
        """Return what a tap reads of the padded input, an element for each window."""
        steps = zip(start, self.stride, self.out, strict=True)
        return padded[(..., *(slice(a, a + s * (n - 1) + 1, s) for a, s, n in steps))]

    def write(self, y: Any, start: Shape, xp: ArrayNamespace) -> Any:
        """Return zeros like the padded input with what a tap gives back."""
        for axis, (a, s, size) in enumerate(zip(start, self.stride, self.padded, strict=True)):
            y = spread(y, FIRST + axis, a, s, size, xp)
        return y

    def trim(self, padded: Any) -> Any:
        """Return what is not padding."""
        cuts = zip(self.before, self.size, strict=True)
        return padded[(..., *(slice(before, before + n) for before, n in cuts))]
