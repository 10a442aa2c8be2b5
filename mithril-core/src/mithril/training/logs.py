"""Logs of a training: a CSV file, or event files for TensorBoard.

Rows are written as they come, so a training that is ended has its log. One that goes on after
some steps keeps the rows up to there and adds to them.
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Protocol, Self

from mithril.errors import OptionError
from mithril.report.event_files import VERSION, encode_event, encode_record
from mithril.training.history import STEP

Row = Mapping[str, float]
LogPath = str | os.PathLike[str]


class Log(Protocol):
    """Takes the rows of a training."""

    def write(self, row: Row) -> None:
        """Add a row."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class CsvLog:
    """A CSV file with a column for each figure; it is written anew where one comes that is new.

    Args:
        path: the file.
        start: rows of later steps that it has are left out; 0 leaves out all.
    """

    def __init__(self, path: Path, start: int) -> None:
        self._path = path
        self._columns: list[str] = []
        self._rows: list[dict[str, str]] = []
        if start and path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                reader = csv.DictReader(file)
                self._columns = list(reader.fieldnames or ())
                if STEP not in self._columns:
                    raise OptionError(
                        f"log '{path}' is no log of a training: it has no column 'step'; give "
                        f"another name"
                    )
                self._rows = [row for row in reader if int(row[STEP]) <= start]
        self._file = self._write_all()

    def write(self, row: Row) -> None:
        """Add a row."""
        self._rows.append({name: f"{value:.9g}" for name, value in row.items()})
        new = [name for name in row if name not in self._columns]
        if new:
            self._columns += new
            self._file.close()
            self._file = self._write_all()
        else:
            csv.DictWriter(self._file, self._columns).writerow(self._rows[-1])
            self._file.flush()

    def _write_all(self) -> IO[str]:
        file = self._path.open("w", newline="", encoding="utf-8")
        if self._columns:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(self._rows)
            file.flush()
        return file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


class TensorBoardLog:
    """An event file in a directory; TensorBoard itself is not needed.

    Args:
        directory: where it is made.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        stamp = time.time()
        name = f"events.out.tfevents.{int(stamp)}.mithril-{os.getpid()}"
        self._file = (directory / name).open("ab")
        self._add(encode_event(stamp, version=VERSION))

    def write(self, row: Row) -> None:
        """Add a row."""
        scalars = {name: value for name, value in row.items() if name != STEP}
        self._add(encode_event(time.time(), int(row[STEP]), scalars))

    def _add(self, event: bytes) -> None:
        self._file.write(encode_record(event))
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def list_paths(log: LogPath | Sequence[LogPath] | None) -> list[str]:
    """Return the paths that `log=` gives.

    Raises:
        OptionError: one is no path, or of neither kind.
    """
    given: Iterable[object] = () if log is None else (log,)
    if isinstance(log, Sequence) and not isinstance(log, str):
        given = log
    found = []
    for path in given:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise OptionError(
                f"log={path!r} is no path; give 'run.csv', or 'runs/' for a directory"
            )
        text = os.fspath(path)
        if not _is_csv(text) and not _is_directory(text):
            raise OptionError(
                f"log='{text}' is neither a CSV file nor a directory; give 'run.csv', or 'runs/' "
                f"for TensorBoard"
            )
        found.append(text)
    return found


def _is_csv(path: str) -> bool:
    return path.endswith(".csv")


def _is_directory(path: str) -> bool:
    return path.endswith(("/", os.sep)) or not Path(path).suffix or Path(path).is_dir()


def open_logs(paths: Sequence[str], start: int, stack: ExitStack) -> list[Log]:
    """Return logs that a stack closes.

    Args:
        paths: as `list_paths` returns them.
        start: how many steps were done before.
        stack: closes them.

    Raises:
        OptionError: a log cannot be written.
    """
    logs: list[Log] = []
    for path in paths:
        try:
            log: Log = CsvLog(Path(path), start) if _is_csv(path) else TensorBoardLog(Path(path))
        except OSError as error:
            raise OptionError(
                f"log '{path}' cannot be written; {error}; give another path"
            ) from error
        logs.append(stack.enter_context(log))
    return logs
