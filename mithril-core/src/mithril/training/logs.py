"""Logs of a training: a CSV file, or event files for TensorBoard.

Rows are written as they come, so a training that is ended has its log. One that goes on after
some steps keeps the rows of a CSV file up to there and adds to them; in event files a mark tells
viewers to leave out later ones. A CSV file is written anew under another name, which is then put in
its place: what ends a training leaves the rows that were there.
"""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from mithril.errors import OptionError
from mithril.files import replace_file
from mithril.report.event_files import VERSION, encode_event, encode_record
from mithril.training.history import SECONDS, STEP

Row = Mapping[str, float]
LogPath = str | os.PathLike[str]


class Log(Protocol):
    """Takes the rows of a training."""

    def write(self, row: Row) -> None:
        """Add a row."""


class CsvLog:
    """A CSV file with a column for each figure; it is written anew where one comes that is new.

    Args:
        path: the file.
        start: rows of later steps that it has are left out; 0 leaves out all. Seconds go on from
            the last row that is kept.

    Raises:
        OptionError: the file is no log of a training, or has a line that is no row of one.
    """

    def __init__(self, path: Path, start: int) -> None:
        self._given, self._path = path, path.resolve()
        self._columns: list[str] = []
        self._rows: list[dict[str, str]] = []
        if path.exists() and path.stat().st_size:
            self._columns, self._rows = _read_log(path, start)
        self._before = float(self._rows[-1].get(SECONDS, "0")) if self._rows else 0.0
        self._write_all()

    def write(self, row: Row) -> None:
        """Add a row."""
        shown = {**row, SECONDS: row[SECONDS] + self._before} if SECONDS in row else row
        self._rows.append({name: _to_field(value) for name, value in shown.items()})
        new = [name for name in row if name not in self._columns]
        if new:
            self._columns += new
            self._write_all()
        else:
            with _saying(self._given):
                _append(self._path, _to_text(self._columns, self._rows[-1:]).encode())

    def _write_all(self) -> None:
        header = dict(zip(self._columns, self._columns, strict=True))
        text = _to_text(self._columns, [header, *self._rows]) if self._columns else ""
        with _saying(self._given):
            replace_file(self._path, lambda path: path.write_bytes(text.encode()))


def _to_field(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9g}"


def _to_text(columns: Sequence[str], rows: Iterable[Mapping[str, str]]) -> str:
    text = io.StringIO(newline="")
    csv.DictWriter(text, columns).writerows(rows)
    return text.getvalue()


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@contextmanager
def _saying(path: object) -> Iterator[None]:
    """Say which log it is that cannot be written."""
    try:
        yield
    except OSError as error:
        raise OptionError(
            f"log '{path}' cannot be written; {error}; make room, or give another path"
        ) from error


def _read_log(path: Path, start: int) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns of a log, and its rows up to a step, as texts; neither for step 0.

    A last line without an end is one that a training was writing when it ended; it is left out.

    Raises:
        OptionError: it is no log, or a line is no row of one.
    """
    try:
        text = path.read_bytes().decode()
        reader = csv.reader(io.StringIO(text[: text.rfind("\n") + 1] or text, newline=""))
        columns = next(reader, [])
        lines = [(reader.line_num, fields) for fields in reader if fields]
    except (UnicodeDecodeError, csv.Error) as error:
        raise OptionError(
            f"log '{path}' is no log of a training: {error}; give another name"
        ) from error
    if STEP not in columns:
        raise OptionError(
            f"log '{path}' is no log of a training: it has no column '{STEP}'; give another name"
        )
    if not start:
        return [], []
    rows = [_read_row(path, number, columns, fields) for number, fields in lines]
    return columns, [row for row in rows if int(row[STEP]) <= start]


def _read_row(path: Path, line: int, columns: list[str], fields: list[str]) -> dict[str, str]:
    """Return a row of a log by column.

    Raises:
        OptionError: it has other fields, or its step or its seconds are no numbers.
    """
    remedy = "mend the line, or give another name"
    if len(fields) != len(columns):
        raise OptionError(
            f"log '{path}' has {len(fields)} fields in line {line}, and {len(columns)} columns; "
            f"{remedy}"
        )
    row = dict(zip(columns, fields, strict=True))
    for name, kind in ((STEP, int), (SECONDS, float)):
        try:
            kind(row.get(name, "0"))
        except ValueError:
            raise OptionError(
                f"log '{path}' has {name} {row[name]!r} in line {line}; {remedy}"
            ) from None
    return row


class TensorBoardLog:
    """An event file in a directory; TensorBoard itself is not needed.

    Args:
        directory: where it is made.
        start: viewers leave out rows of later steps that other files there have; 0 leaves all.
    """

    def __init__(self, directory: Path, start: int) -> None:
        stamp = time.time()
        name = f"events.out.tfevents.{int(stamp)}.mithril-{os.getpid()}"
        self._given, self._path = directory, (directory / name).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        self._add(encode_event(stamp, version=VERSION))
        if start:
            self._add(encode_event(stamp, start + 1, is_start=True))

    def write(self, row: Row) -> None:
        """Add a row."""
        scalars = {name: value for name, value in row.items() if name != STEP}
        self._add(encode_event(time.time(), int(row[STEP]), scalars))

    def _add(self, event: bytes) -> None:
        with _saying(self._given):
            _append(self._path, encode_record(event))


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


def open_logs(paths: Sequence[str], start: int) -> list[Log]:
    """Return logs.

    Args:
        paths: as `list_paths` returns them.
        start: how many steps were done before.

    Raises:
        OptionError: a log cannot be written, or its path has a file that is none.
    """
    return [_open_log(path, start) for path in paths]


def _open_log(path: str, start: int) -> Log:
    with _saying(path):
        return (CsvLog if _is_csv(path) else TensorBoardLog)(Path(path), start)
