"""What may be a leaf of a saved tree, and how its parts are read.

Mithril's arrays are written by those who hold them. Arrays of a framework are taken as a backend
of that framework sees them. What every process holds for itself, such as an array of NumPy, is
taken to be the same in all, and process 0 writes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from mithril.checkpoints.files import UnwrittenPart
from mithril.checkpoints.owners import Owners
from mithril.errors import CheckpointError, MithrilError, ShapeError, kind_of
from mithril.mesh import Sharding
from mithril.runtime.array import Array, ArrayBackend
from mithril.runtime.host import check_unmasked
from mithril.runtime.processes import find_place, list_backends
from mithril.types import TensorType, as_dtype

Host = np.ndarray | np.generic
"""An array that this process holds for itself."""


def find_backends(leaves: list[Any]) -> list[ArrayBackend]:
    """Return the backends that may know arrays of a framework.

    Those of the tree come first, then the one that the largest array of a framework lies on as it
    is, then those of larger meshes.
    """
    found = list({id(x.backend): x.backend for x in leaves if isinstance(x, Array)}.values())
    rest = sorted(list_backends(), key=lambda backend: -backend.mesh.size)
    found += [backend for backend in rest if not any(backend is other for other in found)]
    foreign = [x for x in leaves if not isinstance(x, Array | Host) and getattr(x, "ndim", 0) != 0]
    if foreign and not any(isinstance(x, Array) for x in leaves):
        largest = max(foreign, key=lambda x: x.size if isinstance(x.size, int) else 0)
        known = next((b for b in found if _adopt_as_it_lies(largest, b) is not None), None)
        found.sort(key=lambda backend: backend is not known)
    return found


def _adopt_as_it_lies(leaf: object, backend: ArrayBackend) -> Array | None:
    """Return an array of a framework as one of a backend, None where it would have to be moved."""
    try:
        adopted = backend.adopt(leaf) if backend.interop.host(leaf) is None else None
    except ShapeError:  # of its dtype, which `adopt` tells with the leaf's name
        return None
    return adopted if adopted is not None and adopted.shards is leaf else None


def adopt(
    name: str, leaf: object, backends: list[ArrayBackend]
) -> tuple[Array | Host, ArrayBackend | None]:
    """Return a leaf as an array of Mithril or of NumPy, and whose framework it is of, if of one.

    Args:
        name: of the leaf, for messages.
        leaf: an array.
        backends: those that may know it.

    Raises:
        CheckpointError: no backend knows it, it has no dtype of Mithril's, or it is one process's
            part of something.
        BackendError: it was given up.
    """
    try:
        return _adopt(name, leaf, backends)
    except ShapeError as error:
        raise CheckpointError(
            f"leaf '{name}' is no array that a checkpoint holds; {error}"
        ) from error


def _adopt(
    name: str, leaf: object, backends: list[ArrayBackend]
) -> tuple[Array | Host, ArrayBackend | None]:
    check_unmasked(leaf, f"leaf '{name}' is", CheckpointError)
    if isinstance(leaf, Array | np.ndarray | np.generic):
        return leaf, None
    for backend in reversed(backends):  # the smallest mesh: nothing has to travel
        host = backend.interop.host(leaf)
        if host is not None:
            _check_alone(name, leaf)
            return host, backend
    for backend in backends if getattr(leaf, "ndim", 0) else ():  # a scalar may lie anywhere
        adopted = _adopt_as_it_lies(leaf, backend)
        if adopted is not None:
            return adopted, backend
    for backend in backends:
        adopted = backend.adopt(leaf)
        if adopted is not None:
            return adopted, backend
    raise CheckpointError(
        f"leaf '{name}' is {kind_of(leaf)}, which is not saved; leaves are arrays of Mithril, "
        f"of NumPy and of the framework of a backend that is open, numbers, texts and None"
    )


def _check_alone(name: str, leaf: object) -> None:
    count = find_place()[1]
    if count > 1:
        raise CheckpointError(
            f"leaf '{name}' is {kind_of(leaf)}, which says nothing of what the other "
            f"{count - 1} processes hold; give an array of Mithril, or the same NumPy "
            f"array in every process"
        )


def type_of(name: str, leaf: Array | Host) -> TensorType:
    """Return shape and dtype of a leaf.

    Raises:
        CheckpointError: it has no dtype of Mithril's.
    """
    if isinstance(leaf, Array):
        return leaf.type
    try:
        return TensorType(leaf.shape, as_dtype(leaf.dtype))
    except MithrilError as error:
        raise CheckpointError(
            f"leaf '{name}' is no array that a checkpoint holds; {error}"
        ) from error


def list_parts(
    name: str, leaf: Array | Host, type: TensorType, owners: Owners
) -> Iterator[UnwrittenPart]:
    """Yield the parts of a leaf that this process writes."""
    whole = tuple((0, size) for size in type.shape)
    if isinstance(leaf, Array):
        sharding: Sharding = leaf.sharding
        here = frozenset(leaf.engine.local_devices) if _writes_for(leaf) else frozenset()
        for box, device in owners.share_out(type, sharding).items():
            if device in here:
                read = partial(leaf.read_part, device) if type.size else partial(_empty, type)
                yield UnwrittenPart(name, box, box == whole, read)
    elif find_place()[0] == 0:
        yield UnwrittenPart(name, whole, True, partial(np.asarray, leaf, type.dtype.numpy))


def _writes_for(leaf: Array) -> bool:
    """Return whether this process writes parts of an array.

    What lies on a mesh that each process has for itself is the same in all.
    """
    return leaf.backend.engine.process_count > 1 or find_place()[0] == 0


def _empty(type: TensorType) -> np.ndarray:
    return np.empty(type.shape, type.dtype.numpy)
