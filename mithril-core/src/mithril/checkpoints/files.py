"""Parts of arrays in safetensors files: written a file at a time, read by ranges.

What is kept in memory while writing is one file, or one part where that is larger.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from mithril.checkpoints.index import Edges, StoredPart, StoredTensor, intersect, write_whole
from mithril.errors import CheckpointError
from mithril.mesh import Box, edges
from mithril.runtime.lru import LRUCache

MAX_FILE_BYTES = 2**30
"""A file is closed before it would be larger, unless a single part is."""
OPEN_FILES = 64
"""How many files are kept open while a checkpoint is read."""
METADATA = {"format": "pt"}  # what Hugging Face's readers ask for; bytes are the same in all


class UnwrittenPart(NamedTuple):
    """A part that is to be written.

    Args:
        tensor: name of the array.
        box: where it lies in the whole.
        is_whole: whether it is all of the array.
        read: returns its values.
    """

    tensor: str
    box: Edges
    is_whole: bool
    read: Callable[[], np.ndarray]

    @property
    def name(self) -> str:
        """Its name in a file: that of the array, and the box where it is not all of it."""
        cuts = ",".join(f"{start}:{stop}" for start, stop in self.box)
        return self.tensor if self.is_whole else f"{self.tensor}[{cuts}]"


class ReadObserver(Protocol):
    """Is told of every range of bytes that is read."""

    def __call__(self, file: str, name: str, nbytes: int) -> None:
        """Take note of bytes of a tensor of a file."""


def write_parts(
    directory: Path, stem: str, parts: Iterable[UnwrittenPart]
) -> dict[str, list[StoredPart]]:
    """Write parts into files of a directory; return where they are, by array.

    Args:
        directory: of the checkpoint.
        stem: how the names of the files begin.
        parts: what is written.

    Raises:
        CheckpointError: a file cannot be written.
    """
    found: dict[str, list[StoredPart]] = {}
    for number, content in enumerate(_group(parts)):
        file = directory / f"{stem}-{number:05d}.safetensors"
        write_whole(file, lambda path, held=content: _write(path, held))  # type: ignore[misc]
        for part, values in content.values():
            stored = StoredPart(part.box, file.name, part.name, checksum(values))
            found.setdefault(part.tensor, []).append(stored)
    return found


def _group(parts: Iterable[UnwrittenPart]) -> Iterator[dict[str, tuple[UnwrittenPart, np.ndarray]]]:
    """Yield what comes into each file, by name."""
    held: dict[str, tuple[UnwrittenPart, np.ndarray]] = {}
    size = 0
    for part in parts:
        values = np.asarray(part.read(), order="C")
        if held and (size + values.nbytes > MAX_FILE_BYTES or part.name in held):
            yield held
            held, size = {}, 0
        held[part.name] = part, values
        size += values.nbytes
    if held:
        yield held


def _write(path: Path, content: dict[str, tuple[UnwrittenPart, np.ndarray]]) -> None:
    try:
        save_file({name: values for name, (_, values) in content.items()}, path, METADATA)
    except SafetensorError as error:  # it tells of a full disk in words of its own
        raise OSError(str(error)) from error


def checksum(values: np.ndarray) -> int:
    """Return the checksum of the bytes of values, by the polynomial of zip and gzip."""
    flat = np.asarray(values, order="C").reshape(-1)
    return zlib.crc32(flat.view(np.uint8).data)


class Reader:
    """Reads boxes of arrays from the parts that are in files.

    Args:
        directory: of the checkpoint.
        observe: is told of what is read.
    """

    def __init__(self, directory: Path, observe: ReadObserver | None = None) -> None:
        self._directory = directory
        self._observe = observe
        self._open: LRUCache[str, Any] = LRUCache(OPEN_FILES)

    def read(self, tensor: StoredTensor, box: Box) -> np.ndarray:
        """Return a box of an array, put together of what stored parts have of it.

        Raises:
            CheckpointError: a file is not there, or damaged.
        """
        wanted = edges(box)
        covering = next((p for p in tensor.parts if intersect(p.box, wanted) == wanted), None)
        if covering is not None:
            return self._read_range(covering, wanted, tensor)
        sizes = [cut.stop - cut.start for cut in box]
        found = np.empty(sizes, tensor.type.dtype.numpy)
        for part in tensor.parts:
            common = intersect(part.box, wanted)
            if common is not None:
                found[_within(common, wanted)] = self._read_range(part, common, tensor)
        return found

    def _read_range(self, part: StoredPart, common: Edges, tensor: StoredTensor) -> np.ndarray:
        file = self._directory / part.file
        is_all = common == part.box
        expected = tuple(stop - start for start, stop in common)
        try:
            handle = self._handle(part.file)
            values = (
                handle.get_tensor(part.name)
                if is_all
                else handle.get_slice(part.name)[_within(common, part.box)]
            )
        except FileNotFoundError:
            raise CheckpointError(
                f"checkpoint '{self._directory}' has no file '{file}', which its index names; take "
                f"another checkpoint"
            ) from None
        except (OSError, SafetensorError) as error:
            raise _make_error(file, str(error)) from error
        if values.shape != expected or values.dtype != tensor.type.dtype.numpy:
            raise _make_error(
                file,
                f"'{part.name}' gives {values.dtype}{list(values.shape)} where the index says "
                f"{tensor.type.dtype}{list(expected)}",
            )
        if is_all and checksum(values) != part.crc32:
            raise _make_error(file, f"the checksum of '{part.name}' is another one")
        if self._observe is not None:
            self._observe(part.file, part.name, values.nbytes)
        return values  # type: ignore[no-any-return]

    def _handle(self, name: str) -> Any:
        handle = self._open.get(name)
        if handle is None:
            handle = safe_open(self._directory / name, framework="np")
            self._open.put(name, handle)
        return handle


def _make_error(file: Path, why: str) -> CheckpointError:
    return CheckpointError(f"file '{file}' is damaged; {why}; take another checkpoint")


def _within(box: Edges, around: Edges) -> Box:
    """Return where a box lies in one around it."""
    return tuple(
        slice(start - first, stop - first)
        for (start, stop), (first, _) in zip(box, around, strict=True)
    )
