"""save: a tree of arrays into a directory, each process its own parts.

The steps are those of `save`: write parts under names of this save, wait for all processes, put
the index in its place, remove what it does not name. Until the index is there, the checkpoint of
before is, and it has all its files. A process that fails waits for the others like any other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import randbits

from mithril.checkpoints.files import UnwrittenPart, write_parts
from mithril.checkpoints.index import (
    INDEX,
    OWN_NAME,
    Index,
    StoredPart,
    StoredTensor,
    check_cover,
    prepare_index,
    put_index,
    read_index,
    read_parts,
    write_parts_index,
)
from mithril.checkpoints.leaves import Host, adopt, find_backends, list_parts, type_of
from mithril.checkpoints.owners import Owners
from mithril.checkpoints.tree import Node, is_value, name_leaves, to_node, to_value_node
from mithril.errors import CheckpointError, kind_of
from mithril.files import sync_directory
from mithril.keywords import checked_keywords
from mithril.runtime.array import Array
from mithril.runtime.processes import agree, find_place, is_any, wait_for_processes
from mithril.types import TensorType

SHOWN = 5
"""A message names no more files than this."""


@checked_keywords()
def save(path: str | os.PathLike[str], tree: object) -> None:
    """Save a tree of arrays into a directory.

    Each device's part is written by the process that has the device; what several devices hold is
    written once. The checkpoint that the directory holds stays whole until this one is complete,
    also where the save is interrupted. In a job of several processes every process calls this, with
    one path on a file system that all of them see.

    The files are safetensors, which other tools read as well.

    Args:
        path: a directory; it is made, or holds a checkpoint that this one replaces.
        tree: dicts, lists, tuples, named tuples and `Parameters`, with arrays of Mithril, of NumPy
            or of the framework of an open backend as leaves; numbers, texts and None of Python are
            kept, too.

    Raises:
        CheckpointError: a leaf is none of these, the directory holds something else, a file cannot
            be written, or another process has failed.
        BackendError: an array has no values yet, or was given up.

    >>> import tempfile, mithril as ml
    >>> backend = ml.NumpyBackend(ml.Mesh(data=2))
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     save(f"{directory}/first", {"w": backend.ones(4, sharding=ml.P("data")), "step": 3})
    ...     ml.load(f"{directory}/first")
    {'w': array([1., 1., 1., 1.], dtype=float32), 'step': 3}
    """
    index, count = find_place()
    mark = f"{agree(randbits(31)):08x}"
    made, failure = None, None
    try:
        made = _write(path, tree, mark)
    except Exception as error:  # the others wait before they learn of it
        failure = error
    wait_for_processes()
    if made is not None and index == 0:
        try:
            _complete(made, count)
        except Exception as error:
            failure = error
    has_failed = is_any(failure is not None)
    if failure is not None:
        raise failure
    if has_failed:
        raise CheckpointError(
            f"save into '{path}' was not completed; another process of the job failed; see what "
            f"that one says"
        )


@dataclass(frozen=True, slots=True)
class _Save:
    """A save of which this process has written its parts.

    Args:
        directory: of the checkpoint.
        number: of the save.
        mark: tells it from other saves of that number, such as those of another job.
        types: of all arrays by name.
        tree: the form.
        parts: those of this process, by array.
    """

    directory: Path
    number: int
    mark: str
    types: Mapping[str, TensorType]
    tree: Node
    parts: Mapping[str, list[StoredPart]]

    def name_file(self, process: int) -> Path:
        """Return the file in which a process says which parts it has written."""
        return self.directory / f"{_name_stem(self.number, self.mark, process)}.json"


def _name_stem(number: int, mark: str, process: int) -> str:
    return f"{number:06d}-{mark}-{process:05d}"


def check_save(path: object, tree: object) -> Path:
    """Return the path of a directory that a tree may be saved into.

    What is not known yet, such as the size of a parameter, is not looked at.

    Raises:
        CheckpointError: it is no path, that of a file, or holds something that is no checkpoint, or
            a damaged one; or a leaf is nothing that is saved.
    """
    directory = _check_directory(path)
    if (directory / INDEX).exists():
        read_index(directory)
    _, leaves = name_leaves(tree)
    for name, array in _adopt_all(leaves).items():
        if not isinstance(array, Array):
            type_of(name, array)
    return directory


def _adopt_all(leaves: Mapping[str, object]) -> dict[str, Array | Host]:
    """Return the leaves that are arrays, as arrays of Mithril or of NumPy."""
    backends = find_backends(list(leaves.values()))
    return {n: adopt(n, leaf, backends)[0] for n, leaf in leaves.items() if not is_value(leaf)}


def as_directory(path: object) -> Path:
    """Return a path that a user gives.

    Raises:
        CheckpointError: it is none, or that of a file.
    """
    if not isinstance(path, str | os.PathLike):
        raise CheckpointError(f"path is {kind_of(path)}; give a text or a pathlib.Path")
    text = os.fspath(path)
    if not text or "\0" in text:
        raise CheckpointError(f"path {text!r} names no directory; give one, such as 'run'")
    directory = Path(path)
    try:
        is_file = directory.exists() and not directory.is_dir()
    except OSError as error:
        raise CheckpointError(
            f"path '{directory}' cannot be looked at; {error}; give another path"
        ) from error
    if is_file:
        raise CheckpointError(f"path '{directory}' is a file; a checkpoint is a directory")
    return directory


def _write(path: object, tree: object, mark: str) -> _Save:
    """Write the parts of this process."""
    directory = as_directory(path)
    index, count = find_place()
    structure, leaves = name_leaves(tree)
    arrays = _adopt_all(leaves)
    types = {name: type_of(name, array) for name, array in arrays.items()}
    nodes = ({"tensor": n} if n in arrays else to_value_node(x) for n, x in leaves.items())
    number = _prepare(directory)
    stem = _name_stem(number, mark, index)
    found = write_parts(directory, stem, _list_all_parts(arrays, types))
    made = _Save(directory, number, mark, types, to_node(structure, nodes), found)
    if count > 1:
        write_parts_index(made.name_file(index), found)
    return made


def _complete(made: _Save, count: int) -> None:
    """Put the index in its place, and remove the files of other saves.

    Raises:
        CheckpointError: another process has failed, another job has saved there, or a file cannot
            be written or removed.
    """
    directory, number = made.directory, made.number
    parts = made.parts if count == 1 else _collect(made, count)
    index = Index(number, made.tree, _to_tensors(made.types, parts))
    prepared = made.name_file(0)  # its parts are collected
    prepare_index(prepared, index)
    if _find_number(directory) != number:
        raise CheckpointError(
            f"checkpoint '{directory}' was saved by another job while this one saved there; that "
            f"one is kept; give each job a path of its own"
        )
    put_index(directory, prepared)
    files = index.files
    _remove(directory, lambda name: bool(OWN_NAME.fullmatch(name)) and name not in files)


def _list_all_parts(
    arrays: Mapping[str, Array | Host], types: Mapping[str, TensorType]
) -> Iterator[UnwrittenPart]:
    owners = Owners()
    for name, array in arrays.items():
        yield from list_parts(name, array, types[name], owners)


def _prepare(directory: Path) -> int:
    """Make the directory of a checkpoint, and return the number of the next save into it.

    Raises:
        CheckpointError: it cannot be made, or holds something that is no checkpoint.
    """
    try:
        if not directory.exists():
            directory.mkdir(parents=True, exist_ok=True)
            sync_directory(directory.parent)
        names = sorted(file.name for file in directory.iterdir())
    except OSError as error:
        raise CheckpointError(
            f"directory '{directory}' cannot be made; {error}; give another path"
        ) from error
    _check_own(directory, names)
    return _find_number(directory)


def _find_number(directory: Path) -> int:
    """Return the number of the next save into a directory."""
    return read_index(directory).number + 1 if (directory / INDEX).exists() else 1


def _check_directory(path: object) -> Path:
    """Return the path of a directory that a checkpoint may be saved into.

    Raises:
        CheckpointError: it is no path, that of a file, or holds something that is no checkpoint.
    """
    directory = as_directory(path)
    there = next(parent for parent in (directory, *directory.absolute().parents) if parent.exists())
    if not there.is_dir():
        raise CheckpointError(
            f"directory '{directory}' cannot be made; '{there}' is a file; give another path"
        )
    if directory.is_dir():
        _check_own(directory, sorted(file.name for file in directory.iterdir()))
    return directory


def _check_own(directory: Path, names: Sequence[str]) -> None:
    """Raise if files of a directory are of no checkpoint."""
    others = [name for name in names if not OWN_NAME.fullmatch(name)]
    if others and INDEX not in names:
        shown = ", ".join(f"'{name}'" for name in others[:SHOWN])
        raise CheckpointError(
            f"directory '{directory}' holds {len(others)} files that are no checkpoint: {shown}; "
            f"give a path of its own"
        )


def _remove(directory: Path, is_old: Callable[[str], bool]) -> None:
    """Remove files of a directory by their names.

    Raises:
        CheckpointError: one cannot be removed.
    """
    try:
        for file in sorted(directory.iterdir()):
            if is_old(file.name):
                file.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"directory '{directory}' keeps files of another save; {error}; remove what "
            f"'{INDEX}' does not name"
        ) from error


def _collect(made: _Save, count: int) -> dict[str, list[StoredPart]]:
    """Return the parts that all processes have written.

    Raises:
        CheckpointError: one of them has failed, or sees another file system.
    """
    found: dict[str, list[StoredPart]] = {}
    for process in range(count):
        file = made.name_file(process)
        if not file.exists():
            raise CheckpointError(
                f"process {process} of {count} has not saved its parts: '{file}' is not there; see "
                f"what that one says, and give a path on a file system that all of them see"
            )
        for name, parts in read_parts(file).items():
            found.setdefault(name, []).extend(parts)
    return found


def _to_tensors(
    types: Mapping[str, TensorType], parts: Mapping[str, list[StoredPart]]
) -> dict[str, StoredTensor]:
    """Return all arrays with their parts.

    Raises:
        CheckpointError: some of an array is missing.
    """
    made = {name: StoredTensor(type, tuple(parts.get(name, ()))) for name, type in types.items()}
    for name, tensor in made.items():
        try:
            check_cover(name, tensor)
        except ValueError as error:
            raise CheckpointError(
                f"processes have not saved one tree; {error}; give save() the same tree in every "
                f"process"
            ) from error
    return made
