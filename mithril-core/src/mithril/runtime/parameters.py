"""Parameters: a mapping from full parameter names to arrays, and how initial values are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Never, Self

import numpy as np

from mithril.errors import ShapeError, UnknownNameError, kind_of, listing, nearest
from mithril.mesh import Box, Sharding
from mithril.models.initializers import Initializer
from mithril.plugins.published import suggest_attribute
from mithril.runtime.array import Array, ArrayBackend
from mithril.runtime.sampling import Key
from mithril.runtime.sharing import refuse_pickle
from mithril.trees import keep_kind
from mithril.types import DType, TensorType

SHOWN = 12
"""A message names no more parameters than this."""


@keep_kind
class Parameters(dict[str, Array]):
    """Parameters of a model, or their gradients, by full name: a dict that prints as a table.

    Methods that a framework adds to arrays work on all of them: `params.jax()` is a plain dict of
    `jax.Array`s.
    """

    def __missing__(self, name: object) -> Array:
        shown = listing(self) if len(self) <= SHOWN else f"{len(self)} of them"
        raise UnknownNameError(
            f"parameters have no '{name}'{nearest(str(name), self)}; names: {shown}"
        )

    def __getattr__(self, name: str) -> Callable[[], dict[str, Any]]:
        arrays = () if name.startswith("_") else (x for x in self.values() if isinstance(x, Array))
        first = next(iter(arrays), None)
        if first is None:
            raise AttributeError(f"parameters have no attribute '{name}'")
        methods = first.backend.interop.array_methods
        if name not in methods:
            public = [method for method in methods if not method.startswith("_")]
            raise AttributeError(
                f"parameters on backend '{first.backend.name}' have no attribute '{name}'"
                f"{suggest_attribute(name, ())}; there: {listing(public)}"
            )
        own, backend = self, first.backend
        return lambda: {key: getattr(backend.convert(x), name)() for key, x in own.items()}

    def copy(self) -> Self:
        """Return a mapping with the same arrays."""
        return self.__copy__()

    def __copy__(self) -> Self:
        return self._with(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self._with({name: deepcopy(x, memo) for name, x in self.items()})

    def __reduce_ex__(self, protocol: object) -> Never:
        refuse_pickle("parameters")

    def _with(self, arrays: Mapping[str, Array]) -> Self:
        """Return a mapping of other arrays that remembers what this one does."""
        made = type(self)(arrays)
        vars(made).update(vars(self))
        return made

    def __repr__(self) -> str:
        return "\n".join(["Parameters", *(f"  {name}: {_show(x)}" for name, x in self.items())])


def _show(x: object) -> str:
    if isinstance(x, Array):
        return str(x.type) if x.is_materialised else "size not known yet"
    dtype, shape = getattr(x, "dtype", ""), list(getattr(x, "shape", ()))
    return f"{dtype}{shape}, not on devices yet" if dtype else kind_of(x)


def initial_array(
    backend: ArrayBackend,
    name: str,
    type: TensorType,
    initializer: Initializer,
    sharding: Sharding,
    seed: int,
    *,
    is_placed: bool = True,
) -> Array:
    """Return the initial value of a parameter, each device drawing its own part.

    Values depend on seed, name and global position only: they are equal bit for bit on every mesh
    and backend.

    Args:
        backend: where the parameter lives.
        name: its full name, such as `block0.attn.q.weight`.
        type: shape and dtype.
        initializer: the distribution, resolved for the shape.
        sharding: how it lies on the mesh.
        seed: any integer.
        is_placed: whether somebody said that it lies so.

    Raises:
        ShapeError: an initializer of the user's own returns something of other sizes.
    """
    key = Key(seed, name)
    everything = tuple(slice(0, size) for size in type.shape)
    whole = _draw(initializer, name, key, type, everything) if initializer.needs_whole else None

    def draw(box: Box) -> np.ndarray:
        return _draw(initializer, name, key, type, box) if whole is None else whole[box]

    return backend.place(type, sharding, draw, is_placed=is_placed)


def _draw(initializer: Initializer, name: str, key: Key, type: TensorType, box: Box) -> np.ndarray:
    sizes = tuple(part.stop - part.start for part in box)
    drawn = np.asarray(initializer.draw(key, type.shape, box))
    if drawn.shape != sizes:
        raise ShapeError(
            f"initializer {initializer!r} of '{name}' drew {list(drawn.shape)} for a box of "
            f"{list(sizes)}; return an array with the sizes of the box"
        )
    if drawn.dtype.name not in tuple(DType):
        raise ShapeError(
            f"initializer {initializer!r} of '{name}' drew values of type {drawn.dtype}; return an "
            f"array of numbers"
        )
    return drawn
