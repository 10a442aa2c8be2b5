"""What a pass of a plugin may ask about where its plan will run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mithril.mesh import Mesh


class PassTarget(Protocol):
    """Where a plan will run, as far as passes have to know."""

    @property
    def backend(self) -> str:
        """The backend's name."""
        ...

    @property
    def mesh(self) -> Mesh:
        """The devices."""
        ...

    @property
    def kernels(self) -> frozenset[str]:
        """Names of the ops that it runs itself; others are expanded."""
        ...
