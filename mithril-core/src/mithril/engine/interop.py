"""How arrays and models of a backend pass to and from its framework; an optional part of an engine.

An engine that has an attribute `interop` offers methods under the names its users know (`x.jax()`,
`compiled.as_jax()`), takes arrays of the framework as they are, and may tell the framework about
Mithril's classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from mithril.engine.protocol import Engine, Handle
from mithril.errors import nearest
from mithril.mesh import Sharding
from mithril.types import TensorType

Methods = Mapping[str, Callable[..., Any]]


class Adopted(NamedTuple):
    """An array of the framework as one of Mithril's."""

    type: TensorType
    sharding: Sharding
    shards: Handle


class Interop(Protocol):
    """See the module's text; nothing that an engine does not override does anything."""

    @property
    def array_methods(self) -> Methods:
        """Methods of arrays by name; each takes the array."""
        return {}

    @property
    def model_methods(self) -> Methods:
        """Methods of compiled models by name; each takes the compiled model."""
        return {}

    def adopt(self, x: object) -> Adopted | None:
        """Return an array of the framework as one of Mithril's, without a copy where it can be.

        Args:
            x: what a user passed in.

        Returns:
            None when it is no array of the framework.
        """
        return None

    def host(self, x: object) -> np.ndarray | None:
        """Return an array of the framework that lies on the host as NumPy's, with the same memory.

        Several devices then get a part of it each, and none of them the whole.

        Args:
            x: what a user passed in.

        Returns:
            None when it is no array of the framework, or lies on devices.
        """
        return None

    def meet(self, arrays: tuple[type, ...], mapping: type) -> None:
        """Tell the framework about the classes of arrays, and of mappings from names to arrays."""
        return


HOMES = {
    "jax": "jax", "as_jax": "jax", "mlx": "mlx",
    "torch": "torch", "as_module": "torch", "code": "torch", "eject": "torch",
}  # fmt: skip
"""Which backend of this project has a method of its framework, for messages."""


def elsewhere(name: str, known: Iterable[str]) -> str:
    """Return the end of a message: where a missing attribute is to be found, or the nearest one.

    Args:
        name: of the attribute.
        known: those that there are.
    """
    home = HOMES.get(name)
    return f"; backend '{home}' has it" if home else nearest(name, known)


class NoInterop(Interop):
    """Of an engine whose framework has nothing of its own, such as NumPy."""


_NONE = NoInterop()


def interop_of(engine: Engine) -> Interop:
    """Return what an engine offers to users of its framework."""
    offered: Interop = getattr(engine, "interop", _NONE)
    return offered
