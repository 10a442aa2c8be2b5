"""The index of a checkpoint: what each part is of which array, and the form of the tree.

It is JSON with a version of the format. Keys that a reader does not know are left aside, so that
later versions of Mithril may add some; what would be misread is told by a higher version.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from mithril.checkpoints.tree import Node, check_node
from mithril.errors import CheckpointError, MithrilError
from mithril.files import replace_file, sync_directory
from mithril.types import TensorType, as_dtype

FORMAT, VERSION = "mithril-checkpoint", 1
INDEX = "index.json"
OWN_NAME = re.compile(
    r"\d{6}(-[0-9a-f]{8})?-\d{5}(-\d{5}\.safetensors|\.json)(\.tmp)?|index\.json\.tmp|"
    r"\.tmp\w{6}"
)
"""Names of files that saves make, the index aside: number of the save, its mark, process, file.

Earlier versions gave saves no mark. The last is what safetensors (0.8) calls a file that it is
still writing, or could not finish.
"""
Edges = tuple[tuple[int, int], ...]
"""Where each dimension of a box starts and stops."""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A box of an array, as one tensor of a safetensors file.

    Args:
        box: where it lies in the whole.
        file: name of the file in the directory.
        name: of the tensor in the file.
        crc32: checksum of its bytes.
    """

    box: Edges
    file: str
    name: str
    crc32: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(stop - start for start, stop in self.box)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """An array: global shape and dtype, and parts that make up all of it."""

    type: TensorType
    parts: tuple[StoredPart, ...]


@dataclass(frozen=True, slots=True)
class Index:
    """What a checkpoint holds.

    Args:
        number: of the save; a directory counts them.
        tree: the form.
        tensors: the arrays by name.
    """

    number: int
    tree: Node
    tensors: Mapping[str, StoredTensor]

    @property
    def files(self) -> frozenset[str]:
        """Names of all files that parts are in."""
        return frozenset(part.file for tensor in self.tensors.values() for part in tensor.parts)


def read_index(directory: Path) -> Index:
    """Return the index of a checkpoint.

    Raises:
        CheckpointError: there is none, it is damaged, or of a later version of the format.
    """
    file = directory / INDEX
    index: Index = _read(file, f"checkpoint '{directory}'", _to_index)
    return index


def read_parts(file: Path) -> dict[str, tuple[StoredPart, ...]]:
    """Return the parts that one process has written, by array.

    Raises:
        CheckpointError: the file is not there, or damaged.
    """

    def convert(data: Any) -> dict[str, tuple[StoredPart, ...]]:
        return {name: tuple(map(_to_part, parts)) for name, parts in data["parts"].items()}

    found: dict[str, tuple[StoredPart, ...]] = _read(file, "index of a process", convert)
    return found


def _read(file: Path, what: str, convert: Callable[[Any], Any]) -> Any:
    try:
        data = json.loads(file.read_bytes())
        _check_version(file, data)
        return convert(data)
    except FileNotFoundError:
        raise CheckpointError(
            f"{what} has no file '{file}'; nothing was saved there, or the save was interrupted; "
            f"give the directory of a finished one"
        ) from None
    except OSError as error:
        raise CheckpointError(f"file '{file}' cannot be read; {error}; check the path") from error
    except CheckpointError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, MithrilError) as error:
        raise CheckpointError(
            f"file '{file}' is damaged; {type(error).__name__}: {error}; take another checkpoint"
        ) from error


def _check_version(file: Path, data: Any) -> None:
    if data["format"] != FORMAT:
        raise ValueError(f"the format is {data['format']!r}")
    version = data["version"]
    if not isinstance(version, int) or version < 1:
        raise ValueError(f"the version is {version!r}")
    if version > VERSION:
        raise CheckpointError(
            f"file '{file}' has version {version} of the format, and this Mithril reads up to "
            f"{VERSION}; install a later one"
        )


def prepare_index(file: Path, index: Index) -> None:
    """Write an index beside the one that is there, if any.

    Raises:
        CheckpointError: it cannot be written.
    """
    tensors = {
        name: {
            "dtype": str(tensor.type.dtype),
            "shape": list(tensor.type.shape),
            "parts": [_of_part(part) for part in tensor.parts],
        }
        for name, tensor in index.tensors.items()
    }
    write_json(file, {"save": index.number, "tree": index.tree, "tensors": tensors})


def put_index(directory: Path, prepared: Path) -> None:
    """Put an index in the place of the one that is there, if any, at once.

    Raises:
        CheckpointError: the system refuses it.
    """
    with _writing(directory / INDEX):
        os.replace(prepared, directory / INDEX)  # noqa: PTH105 - tests let it fail
        sync_directory(directory)


def write_parts_index(file: Path, parts: Mapping[str, list[StoredPart]]) -> None:
    """Write which parts of which arrays one process has written."""
    write_json(file, {"parts": {name: list(map(_of_part, found)) for name, found in parts.items()}})


def write_json(file: Path, content: Mapping[str, object]) -> None:
    """Write a file so that it is there as a whole or not at all.

    Raises:
        CheckpointError: it cannot be written.
    """
    text = json.dumps({"format": FORMAT, "version": VERSION, **content}, allow_nan=False)
    write_whole(file, lambda path: path.write_text(text + "\n", encoding="utf-8"))


def write_whole(file: Path, write: Callable[[Path], object]) -> None:
    """Write a file so that it is there as a whole or not at all.

    Raises:
        CheckpointError: it cannot be written.
    """
    with _writing(file):
        replace_file(file, write)


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    """Say which file it is that cannot be written."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"file '{file}' cannot be written; {error}; make room, or give another path"
        ) from error


def _of_part(part: StoredPart) -> dict[str, object]:
    return {"box": part.box, "file": part.file, "name": part.name, "crc32": part.crc32}


def _to_index(data: Any) -> Index:
    tensors = {name: _to_tensor(name, given) for name, given in data["tensors"].items()}
    check_node(data["tree"], tensors)
    return Index(_to_size(data["save"]), data["tree"], tensors)


def _to_tensor(name: str, given: Any) -> StoredTensor:
    shape = tuple(map(_to_size, given["shape"]))
    type = TensorType(shape, as_dtype(given["dtype"]))
    tensor = StoredTensor(type, tuple(map(_to_part, given["parts"])))
    check_cover(name, tensor)
    return tensor


def check_cover(name: str, tensor: StoredTensor) -> None:
    """Raise a ValueError unless the parts of an array make up all of it, each element once."""
    shape = tensor.type.shape
    for part in tensor.parts:
        inside = all(0 <= a <= b <= n for (a, b), n in zip(part.box, shape, strict=True))
        if not inside:
            raise ValueError(f"a part of '{name}' {shape} lies at {part.box}")
    held = sum(part.size for part in tensor.parts)
    if held != tensor.type.size:
        raise ValueError(f"'{name}' has {tensor.type.size} elements, and its parts {held}")
    boxes = [part.box for part in tensor.parts]
    if not _is_grid(boxes) and any(intersect(x, y) for x, y in combinations(boxes, 2)):
        raise ValueError(f"parts of '{name}' overlap")


def intersect(x: Edges, y: Edges) -> Edges | None:
    """Return what two boxes have in common, None if nothing."""
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(x, y, strict=True))
    return common if all(start < stop for start, stop in common) else None


def _is_grid(boxes: list[Edges]) -> bool:
    """Return whether boxes are all combinations of cuts of each dimension, as a sharding makes."""
    cuts = [sorted(set(found)) for found in zip(*boxes, strict=True)]
    apart = all(a[1] <= b[0] for found in cuts for a, b in pairwise(found))
    return apart and len(set(boxes)) == len(boxes) == math.prod(map(len, cuts))


def _to_part(given: Any) -> StoredPart:
    box = tuple((_to_size(start), _to_size(stop)) for start, stop in given["box"])
    file, name = given["file"], given["name"]
    if not isinstance(name, str) or Path(file).name != file:
        raise ValueError(f"a part is in file {file!r} under the name {name!r}")
    return StoredPart(box, file, name, _to_size(given["crc32"]))


def _to_size(given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise ValueError(f"{given!r} is no integer of 0 or more")
    return given
