"""load: a checkpoint onto any mesh and backend, each process the parts of its own devices.

What is wanted is said by a tree of arrays (`like`), by a compiled model, or by nobody: then all of
it comes back on the host.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mithril.checkpoints.files import Reader, ReadObserver
from mithril.checkpoints.index import Index, StoredTensor, read_index
from mithril.checkpoints.leaves import find_backends
from mithril.checkpoints.saving import as_directory
from mithril.checkpoints.target import Slot, check_fit, slot_of_leaf, slots_of_model, whole_box
from mithril.checkpoints.tree import (
    Node,
    find_node,
    leaves_of_node,
    list_children,
    name_leaves,
    of_node,
)
from mithril.errors import CheckpointError, OptionError, kind_of, listing, nearest
from mithril.keywords import checked_keywords
from mithril.mesh import Box
from mithril.runtime import CompiledModel, Parameters
from mithril.runtime.processes import find_place
from mithril.trees import rebuild
from mithril.types import DType

ATTEMPTS = 10
"""How often a load begins again at most where saves into the directory are completed meanwhile."""


@checked_keywords()
def load(
    path: str | os.PathLike[str],
    *,
    like: object = None,
    compiled: CompiledModel | None = None,
    subtree: str | None = None,
    observe: ReadObserver | None = None,
) -> Any:
    """Load what `save` has saved, onto any mesh and backend.

    Each process reads the parts of its own devices and no more. Floats are rounded to the dtype
    that is wanted; other dtypes have to be those that were saved.

    Args:
        path: the directory.
        like: a tree of the form that was saved. Each array comes back on the backend, in the
            sharding and dtype of the one that stands in its place; numbers and texts come back as
            they were saved.
        compiled: a compiled model with known shapes, instead of a tree: its parameters come back in
            the shardings that the model takes them in.
        subtree: keys with slashes: only this part of what was saved is looked at, such as `params`.
        observe: called with the file, the name in it and the number of bytes of all that is read.

    Returns:
        A tree as `like`; `Parameters`; or, with neither, the tree that was saved with arrays of
        NumPy, named tuples as dicts.

    Raises:
        CheckpointError: there is no checkpoint, or it is damaged; names are missing or unknown,
            shapes or dtypes others (all are listed); or nothing says where arrays shall lie, in a
            job of several processes.
        OptionError: both `like` and `compiled` are given, or one is something else.
        PlanError: the compiled model knows no shapes yet.
        BackendError: a parameter in `like` has no size yet.

    >>> import tempfile, mithril as ml
    >>> backend = ml.NumpyBackend(ml.Mesh(data=4))
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     ml.save(directory, {"w": backend.ones(8, sharding=ml.P("data"))})
    ...     load(directory, like={"w": ml.NumpyBackend(ml.Mesh(model=2)).zeros(8)})
    {'w': Array([1., 1., 1., 1., 1., 1., 1., 1.], float32[8], P(None))}
    """
    if like is not None and compiled is not None:
        raise OptionError("load() is given like= and compiled=; give one of them")
    if compiled is not None and not isinstance(compiled, CompiledModel):
        raise OptionError(f"compiled is {kind_of(compiled)}; give what ml.compile(…) returns")
    if observe is not None and not callable(observe):
        raise OptionError(
            f"observe={observe!r} cannot be called; give a function of file, name and nbytes"
        )
    directory = as_directory(path)
    index = read_index(directory)
    for _ in range(ATTEMPTS):
        try:
            return _load(directory, index, like, compiled, subtree, observe)
        except CheckpointError:
            later = read_index(directory)
            if later == index:
                raise
            index = later  # a save was completed meanwhile, and has removed files of this one
    return _load(directory, index, like, compiled, subtree, observe)


def _load(
    directory: Path,
    index: Index,
    like: object,
    compiled: CompiledModel | None,
    subtree: str | None,
    observe: ReadObserver | None,
) -> Any:
    """Load what an index names."""
    what = f"checkpoint '{directory}'"
    node = _find_subtree(what, index.tree, subtree)
    reader = Reader(directory, observe)
    if compiled is not None:
        return Parameters(_fill(what, slots_of_model(compiled), node, index, reader))
    if like is None:
        return _load_on_host(what, node, index, reader)
    structure, leaves = name_leaves(like)
    backends = find_backends(list(leaves.values()))
    slots = {name: slot_of_leaf(name, leaf, backends) for name, leaf in leaves.items()}
    return rebuild(structure, _fill(what, slots, node, index, reader).values())


def _find_subtree(what: str, tree: Node, path: str | None) -> Node:
    if path is None:
        return tree
    found = find_node(tree, path) if isinstance(path, str) else None
    if found is None:
        known = [key for key, _ in list_children(tree)]
        raise CheckpointError(
            f"{what} has no subtree {path!r}{nearest(str(path), known)}; there: {listing(known)}"
        )
    return found


def _load_on_host(what: str, node: Node, index: Index, reader: Reader) -> Any:
    count = find_place()[1]
    if count > 1:
        raise CheckpointError(
            f"{what} would be loaded whole by each of {count} processes; give like= or compiled=, "
            f"which say where arrays lie"
        )

    def read(name: str) -> np.ndarray:
        tensor = index.tensors[name]
        return reader.read(tensor, whole_box(tensor.type))

    return of_node(node, read)


def _fill(
    what: str, slots: Mapping[str, Slot], node: Node, index: Index, reader: Reader
) -> dict[str, Any]:
    """Return what stands in each slot, by name."""
    stored = dict(leaves_of_node(node))
    check_fit(what, slots, stored, index.tensors)
    made: dict[str, Any] = {}
    for name, slot in slots.items():
        if slot.make is None or slot.type is None:
            made[name] = of_node(stored[name], index.tensors.__getitem__)
        else:
            tensor = index.tensors[stored[name]["tensor"]]
            made[name] = slot.make(partial(_read, reader, tensor, slot.type.dtype))
    return made


def _read(reader: Reader, tensor: StoredTensor, dtype: DType, box: Box) -> np.ndarray:
    return reader.read(tensor, box).astype(dtype.numpy, copy=False)
