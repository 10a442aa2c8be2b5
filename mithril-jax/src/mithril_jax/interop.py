"""JAX's own arrays, trees and transformations, and Mithril's: each may be used with the other.

`jax.Array`s are taken as they are, Mithril's arrays and mappings of them are trees to JAX, and a
compiled model becomes a pure function with gradients of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
from jax.sharding import NamedSharding
from mithril.spi import (
    Adopted,
    ArrayMethods,
    ArrayView,
    BackendError,
    Interop,
    ModelMethods,
    Sharding,
    TensorType,
    as_dtype,
    coarsen,
)

from mithril_jax.devices import Devices, pad_shape
from mithril_jax.padding import from_padded
from mithril_jax.pure_function import as_jax

_met: set[type] = set()  # JAX takes each class once in the life of a process


@dataclass(frozen=True, eq=False)
class JaxInterop(Interop):
    """What the JAX engine offers; see `mithril.spi.Interop`.

    Args:
        opened: the devices of the engine.
        parts: returns those of the parts of the mesh that are in use.
    """

    opened: Devices
    parts: Callable[[], Iterable[Devices]]

    @property
    def array_methods(self) -> ArrayMethods:
        """`x.jax()`, and by `__jax_array__` functions of JAX take arrays as they are."""
        return {"jax": _jax_array, "__jax_array__": _jax_array}

    @property
    def model_methods(self) -> ModelMethods:
        """`compiled.as_jax()`."""
        return {"as_jax": as_jax}

    def adopt(self, x: object) -> Adopted | None:
        """Return a `jax.Array` as it lies, or replicated where Mithril cannot say how it lies.

        One that JAX's user has laid out over devices of the mesh is placed.

        Raises:
            BackendError: it is a tracer, or was deleted.
        """
        if not isinstance(x, jax.Array):
            return None
        if isinstance(x, jax.core.Tracer):
            raise BackendError(
                f"array {x.aval} is being traced by JAX; inside jax.jit or jax.grad use the "
                f"function that compiled.as_jax() returns"
            )
        if x.is_deleted():  # XLA would end the process on several devices
            raise BackendError(
                f"array {x.dtype}{list(x.shape)} was donated or deleted and holds no values any "
                f"more; use what was returned, or leave it out of donate=…"
            )
        type = TensorType(x.shape, as_dtype(x.dtype))
        devices = self.opened
        sharding = _sharding_of(x, devices) or self._on_part(x)
        is_placed = sharding is not None
        if sharding is None:
            sharding = Sharding.replicated(devices.mesh, type.rank)
            x = jax.device_put(x, devices.sharding(sharding))
        return Adopted(type, sharding, x, is_placed)

    def _on_part(self, x: jax.Array) -> Sharding | None:
        """Return how an array lies on a part of the mesh that is in use, such as a stage.

        What JAX has put on its first device because nobody said where is on none.
        """
        if not x.committed:
            return None
        return next(filter(None, (_sharding_of(x, part) for part in self.parts())), None)

    def meet(self, arrays: tuple[type, ...], mapping: type) -> None:
        """Register arrays as trees of one leaf, mappings as trees of the leaves of theirs."""
        for cls in arrays:
            if cls not in _met:
                _met.add(cls)
                jax.tree_util.register_pytree_node(cls, _flatten, partial(_unflatten, arrays[0]))
        if mapping not in _met:
            _met.add(mapping)
            _register_mapping(mapping, arrays[0])


def _jax_array(array: ArrayView[object]) -> jax.Array:
    """Return the array as JAX's own: the same memory, unless its size does not divide evenly."""
    return from_padded(array.shards, array.type.shape, array.sharding)


def _sharding_of(x: jax.Array, devices: Devices) -> Sharding | None:
    """Return how an array lies, if it lies on these devices along axes of the mesh."""
    if devices.mesh.size == 1:
        here = x.sharding.device_set == {devices.flat[0]}
        return Sharding.replicated(devices.mesh, x.ndim) if here else None
    if not isinstance(x.sharding, NamedSharding):
        return None
    mesh = devices.mesh_of(x.sharding.mesh)
    if mesh is None:
        return None
    entries = [*x.sharding.spec, *[None] * (x.ndim - len(x.sharding.spec))]
    names = [entry if isinstance(entry, tuple) else (entry,) for entry in entries]
    dims = tuple(
        tuple(axis for axis in axes if axis is not None and mesh.sizes[axis] > 1) for axes in names
    )
    return coarsen(Sharding(mesh, dims), x.shape)


# ------------------------------------------------------------------ trees


def _flatten(array: Any) -> tuple[tuple[Any], Any]:
    if not array.is_materialised:
        array.type  # noqa: B018 - says that it has no size yet
    return (array.shards,), TreeForm((array.kind,))


@dataclass(frozen=True, eq=False)
class TreeForm:
    """What JAX keeps of arrays besides their values.

    Forms of one type are equal however the arrays lie: a gradient that a plan has laid out goes
    with a parameter that nobody has placed.

    Args:
        kinds: of the arrays; None for what is no array of Mithril's.
        names: of the arrays of a mapping.
    """

    kinds: tuple[Any, ...]
    names: tuple[str, ...] = ()

    @cached_property
    def _types(self) -> tuple[Any, ...]:
        return self.names, tuple(kind and (kind.backend, kind.type) for kind in self.kinds)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreeForm) and self._types == other._types

    def __hash__(self) -> int:
        return hash(self._types)


def _unflatten(array_class: Any, form: TreeForm, leaves: tuple[Any]) -> Any:
    """Return an array of the kind; where JAX put something else in its place, of what it is.

    What is no array at all, such as the shape that a user mapped it to, stands for itself. Only
    what JAX and its libraries put there to mark a place keeps the array around it.
    """
    (leaf,), (kind,) = leaves, form.kinds
    if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
        held = pad_shape(kind.type.shape, kind.sharding)
        if (leaf.shape, leaf.dtype) != (held, kind.type.dtype.numpy):
            return array_class(kind.backend, *kind.backend.engine.interop.adopt(leaf))
        sharding = _find_move(leaf, kind)
        if sharding is not None:
            return array_class(kind.backend, kind.type, sharding, leaf, kind.is_placed)
    is_mark = leaf is None or type(leaf) is object
    if is_mark or hasattr(leaf, "dtype"):
        return array_class.of_kind(kind, leaf)
    return leaf


def _find_move(leaf: jax.Array, kind: Any) -> Sharding | None:
    """Return how a leaf lies, if not as the array did that it took the place of."""
    devices = kind.backend.engine_on(kind.sharding.mesh).opened
    before = devices.sharding(kind.sharding)
    if leaf.sharding == before or leaf.sharding.is_equivalent_to(before, leaf.ndim):
        return None
    sharding = _sharding_of(leaf, devices)
    return sharding if sharding and sharding.is_even(leaf.shape) else None


def _register_mapping(cls: type, array_class: type) -> None:
    """Register mappings from names to arrays as trees like dicts, whose leaves are JAX's arrays.

    A mapping remembers what its arrays were where JAX has put something else in their place, so
    that its form stays what it was.
    """

    def flatten(mapping: Any) -> tuple[list[Any], Any]:
        names = tuple(sorted(mapping))
        before = vars(mapping).get("kinds", {})
        leaves, kinds = [], []
        for name in names:
            x = mapping[name]
            ours = isinstance(x, array_class)
            leaves.append(_flatten(x)[0][0] if ours else x)
            kinds.append(x.kind if ours else before.get(name))
        return leaves, TreeForm(tuple(kinds), names)

    def with_keys(mapping: Any) -> tuple[list[Any], Any]:
        leaves, aux = flatten(mapping)
        keys = map(jax.tree_util.DictKey, aux.names)
        return list(zip(keys, leaves, strict=True)), aux

    def unflatten(aux: Any, leaves: Any) -> Any:
        made = cls(
            (name, leaf if kind is None else _unflatten(array_class, TreeForm((kind,)), (leaf,)))
            for name, kind, leaf in zip(aux.names, aux.kinds, leaves, strict=True)
        )
        vars(made)["kinds"] = dict(zip(aux.names, aux.kinds, strict=True))
        return made

    jax.tree_util.register_pytree_with_keys(cls, with_keys, unflatten, flatten)
