"""What is asked of the compression of gradients, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from mithril.options import GradientCompression


@dataclass(frozen=True, slots=True)
class Compression:
    """How the gradients of parameters travel.

    Args:
        rules: forms by pattern of names, the last that matches holds; None for plain sums.
        said: how it was asked for, for readers of the plan.
    """

    rules: tuple[tuple[str, GradientCompression | None], ...] = ()
    said: str = ""

    def find(self, name: str) -> GradientCompression | None:
        """Return how the gradient of a parameter travels; None for all of its bits.

        >>> Compression((("*.weight", GradientCompression("bf16")),)).find("up.weight")
        GradientCompression('bf16')
        """
        found = None
        for pattern, form in self.rules:
            if fnmatchcase(name, pattern):
                found = form
        return found


PLAIN = Compression()
