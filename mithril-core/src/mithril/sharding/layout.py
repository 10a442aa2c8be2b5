"""How one tensor lies on the mesh, as far as that is said before anything is chosen.

A request to the compiler is a mapping of names to layouts, and the constraints of the search are
the same records on values. What a layout leaves open is chosen: an input of which nothing is said
arrives whole on every device, any other value lies where that is cheapest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Literal

from mithril.mesh import Mesh, Sharding, carry


class Unconstrained(Enum):
    """The type of `FREE`."""

    free = "free"


FREE: Final = Unconstrained.free
"""Of an input: it arrives in the sharding it is computed with, whichever that is."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How one tensor lies at each point of its way.

    Args:
        arrives: how an input that exists already lies; where the parts of that sharding are padded,
            they are padded in its memory. `FREE`, or None: nothing exists, and it arrives as it
            rests, as it is computed with, or whole, whichever is said first.
        computed: the sharding it is computed with.
        binds: whether everything that takes the tensor must split what `computed` splits; otherwise
            that is one candidate.
        home: where it must lie between the op that makes it and those that take it.
        rests: where it, and its gradient, live between uses; each phase fetches it anew. Of an
            output: it leaves as such an input lives. Of a gradient that an update takes: so it is
            brought there, by a loop slice by slice.
        leaves: how it must leave, as an output.
        follows: name of the input whose sharding it leaves in: a gradient that of its parameter.
        entry: how it arrives on a coarser mesh, where padding makes that another layout.
        exit: how it leaves on a coarser mesh, likewise.
        decided_by: who said so, for `explain`.
    """

    arrives: Sharding | Literal[Unconstrained.free] | None = None
    computed: Sharding | None = None
    binds: bool = True
    home: Sharding | None = None
    rests: Sharding | None = None
    leaves: Sharding | None = None
    follows: str | None = None
    entry: Sharding | None = None
    exit: Sharding | None = None
    decided_by: str = ""

    @property
    def is_free(self) -> bool:
        """Whether it arrives wherever it is computed."""
        return self.arrives is FREE

    @property
    def existing(self) -> Sharding | None:
        """How the array lies that exists already, if one does."""
        return None if self.arrives is FREE else self.arrives

    @property
    def resting(self) -> Sharding | None:
        """How an input lies when it arrives from where it rests, if it does."""
        return None if self.rests is None else self.existing or self.rests

    @property
    def is_brought(self) -> bool:
        """Whether an input lies otherwise between programs than it is computed with."""
        lies = self.existing
        return self.rests is not None or (
            lies is not None and self.computed is not None and lies != self.computed
        )

    def arrival(self, mesh: Mesh, rank: int) -> Sharding:
        """Return how an input arrives on a mesh that its shardings are on; a free one, whole."""
        whole = Sharding.replicated(mesh, rank)
        return whole if self.is_free else self.existing or self.rests or self.computed or whole

    def shardings(self) -> Iterator[Sharding]:
        """Yield every sharding that is said."""
        given = (self.existing, self.computed, self.home, self.rests, self.leaves)
        yield from filter(None, given)

    def map(self, change: Callable[[Sharding], Sharding]) -> Layout:
        """Return the layout with every sharding changed, those at the border apart."""

        def change_given(sharding: Sharding | None) -> Sharding | None:
            return None if sharding is None else change(sharding)

        return replace(
            self,
            arrives=FREE if self.is_free else change_given(self.existing),
            computed=change_given(self.computed),
            home=change_given(self.home),
            rests=change_given(self.rests),
            leaves=change_given(self.leaves),
        )

    def carry(self, mesh: Mesh) -> Layout:
        """Return the layout said on a finer mesh."""
        return self.map(lambda sharding: carry(sharding, mesh))


UNSAID: Final = Layout()
"""The layout of a value about which nothing is said."""
