"""Files that are written whole: whoever reads one finds the old one or the new one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path


def replace_file(
    file: Path, write: Callable[[Path], object], *, is_contended: bool = False
) -> None:
    """Write a file under a temporary name, bring it to the disk, and give it its name.

    Args:
        file: the file.
        write: writes it under the path that it is called with.
        is_contended: whether other processes may write it meanwhile. The temporary name is then
            known to nobody else; otherwise it is always the same, the file's with `.tmp` behind it.

    Raises:
        OSError: any of that fails; the temporary file is gone then.
    """
    mark = f".{secrets.token_hex(4)}" if is_contended else ""
    temporary = file.with_name(f"{file.name}{mark}.tmp")
    try:
        write(temporary)
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        os.replace(temporary, file)  # noqa: PTH105 - tests let it fail
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(file.parent)


def sync_directory(directory: Path) -> None:
    """Bring the names of a directory to the disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
