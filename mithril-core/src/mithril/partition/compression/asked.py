"""What is asked of the compression of gradients, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, replace
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

    @property
    def keeps_state(self) -> bool:
        """Whether something is kept from step to step."""
        return any(form is not None and form.keeps_state for _, form in self.rules)

    @property
    def warmups(self) -> tuple[int, ...]:
        """After how many steps more gradients are compressed, in order.

        >>> Compression((("*", GradientCompression("powersgd", warmup=10)),)).warmups
        (10,)
        """
        return tuple(sorted({form.warmup for _, form in self.rules if form and form.warmup}))

    def after(self, steps: int) -> Compression:
        """Return how gradients travel after so many steps: what waits for more is plain yet."""
        rules = tuple((n, None if f and (f.warmup or 0) > steps else f) for n, f in self.rules)
        return replace(self, rules=rules)


PLAIN = Compression()
