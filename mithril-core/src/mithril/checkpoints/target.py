"""What a checkpoint is loaded into: for each name a slot, which knows how to make its content.

A slot is made of a leaf of a tree (an array of Mithril, of NumPy or of a framework, or a number or
text of Python), or of a parameter of a compiled model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mithril.checkpoints.index import StoredTensor
from mithril.checkpoints.leaves import adopt, type_of
from mithril.checkpoints.tree import Node, is_value
from mithril.errors import CheckpointError, kind_of, nearest
from mithril.mesh import Box, Sharding
from mithril.runtime import CompiledModel
from mithril.runtime.array import Array, ArrayBackend
from mithril.types import TensorType

SHOWN = 12
"""A message names no more leaves of a kind than this."""
Read = Callable[[Box], np.ndarray]
"""Returns the values of a box."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A place that is filled.

    Args:
        kind: what stands there: an `array`, a `number` or a `text`.
        type: shape and dtype of an array.
        make: makes an array of what reads its boxes.
    """

    kind: str
    type: TensorType | None = None
    make: Callable[[Read], Any] | None = None


def slot_of_leaf(name: str, leaf: object, backends: list[ArrayBackend]) -> Slot:
    """Return the slot that a leaf stands for: of its shape, dtype and sharding, on its backend.

    Raises:
        CheckpointError: it is nothing that can be saved.
        BackendError: it is a parameter without a size.
    """
    if is_value(leaf):
        return Slot("text" if isinstance(leaf, str) else "number")
    found, framework = adopt(name, leaf, backends)
    type = type_of(name, found)
    if framework is not None:
        return _slot_of_framework(name, leaf, found, framework)
    if isinstance(found, Array):
        return slot_of_array(found.backend, type, found.sharding, is_placed=found.is_placed)
    is_scalar = isinstance(found, np.generic)
    return Slot("array", type, lambda read: read(whole_box(type))[() if is_scalar else ...])


def slot_of_array(
    backend: ArrayBackend, type: TensorType, sharding: Sharding, *, is_placed: bool
) -> Slot:
    """Return the slot of an array of Mithril, which is placed if the one in its place is."""
    return Slot(
        "array", type, lambda read: backend.place(type, sharding, read, is_placed=is_placed)
    )


def _slot_of_framework(
    name: str, leaf: object, found: Array | np.ndarray | np.generic, backend: ArrayBackend
) -> Slot:
    """Return the slot of an array of a framework, which is given out as one again."""
    type = type_of(name, found)
    sharding = (
        found.sharding if isinstance(found, Array) else Sharding.replicated(backend.mesh, type.rank)
    )

    give = backend.interop.array_methods.get(backend.name)

    def make(read: Read) -> Any:
        given = None if give is None else give(backend.place(type, sharding, read))
        if not isinstance(given, leaf.__class__):
            raise CheckpointError(
                f"leaf '{name}' is {kind_of(leaf)}, and backend '{backend.name}' gives out "
                f"{kind_of(given)}; have an array of Mithril in its place"
            )
        # Where the backend had to move what its framework's user has put somewhere, it goes back.
        is_moved = isinstance(found, Array) and found.shards is not leaf
        return _bring_back(given, leaf) if is_moved else given

    return Slot("array", type, make)


def _bring_back(given: Any, leaf: Any) -> Any:
    """Return an array where a user of JAX has put the one in its place, if anybody said where."""
    return given.to_device(leaf.sharding) if getattr(leaf, "committed", False) else given


def slots_of_model(compiled: CompiledModel) -> dict[str, Slot]:
    """Return the slots of a model's parameters, which lie as the model wants them.

    Raises:
        PlanError: the model knows no shapes yet.
    """
    shardings = compiled.shardings
    types = {port.name: port.type for port in compiled.plan.inputs}
    return {
        name: slot_of_array(compiled.backend, types[name], sharding, is_placed=False)
        for name, sharding in shardings.items()
    }


def whole_box(type: TensorType) -> Box:
    """Return all of a tensor as a box."""
    return tuple(slice(0, size) for size in type.shape)


def check_fit(
    what: str,
    slots: Mapping[str, Slot],
    stored: Mapping[str, Node],
    tensors: Mapping[str, StoredTensor],
) -> None:
    """Raise unless a checkpoint has for each slot what it takes, and nothing else.

    Args:
        what: names the checkpoint.
        slots: what is wanted, by name.
        stored: the nodes of what is there, by name.
        tensors: the arrays that nodes name.

    Raises:
        CheckpointError: names are missing or unknown, or shapes and dtypes others; all of them are
            listed.
    """
    missing = [name for name in slots if name not in stored]
    unknown = [name for name in stored if name not in slots]
    faults = [
        *_list("lacks ", [f"'{name}'{_near(name, unknown)}" for name in missing]),
        *_list("holds ", [f"'{name}'" for name in unknown], " besides"),
        *_list("differs: ", _find_misfits(slots, stored, tensors)),
    ]
    if faults:
        raise CheckpointError(
            f"{what} {'; '.join(faults)}; load it into a tree of the form that was saved, or give "
            f"subtree= for a part of it"
        )


def _near(name: str, unknown: Iterable[str]) -> str:
    hint = nearest(name, unknown)
    return f" ({hint.removeprefix('; ')})" if hint else ""


def _list(what: str, faults: list[str], end: str = "") -> Iterator[str]:
    if faults:
        more = f" and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        yield f"{what}{', '.join(faults[:SHOWN])}{more}{end}"


def _find_misfits(
    slots: Mapping[str, Slot], stored: Mapping[str, Node], tensors: Mapping[str, StoredTensor]
) -> list[str]:
    found = []
    for name, slot in slots.items():
        if name not in stored:
            continue
        kind, type = _describe(stored[name], tensors)
        if kind != slot.kind:
            found.append(f"'{name}' is {_article(kind)} there and {_article(slot.kind)} here")
        elif type is not None and slot.type is not None and not _takes(slot.type, type):
            found.append(f"'{name}' is {type} there and {slot.type} here")
    return found


def _describe(node: Node, tensors: Mapping[str, StoredTensor]) -> tuple[str, TensorType | None]:
    if "tensor" in node:
        return "array", tensors[node["tensor"]].type
    return ("text" if isinstance(node.get("value"), str) else "number"), None


def _article(kind: str) -> str:
    return f"an {kind}" if kind == "array" else f"a {kind}"


def _takes(wanted: TensorType, stored: TensorType) -> bool:
    """Whether an array of one type may be loaded as another: floats are rounded, no other dtype."""
    both_float = wanted.dtype.is_float and stored.dtype.is_float
    return wanted.shape == stored.shape and (wanted.dtype == stored.dtype or both_float)
