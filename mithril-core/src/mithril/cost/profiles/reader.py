"""Profile files: TOML or JSON that describes a device and its links, checked key by key.

    format = 1
    summary = "a card of ours"
    matches = ["Our Card*"]                      # what devices call themselves (fnmatch)
    memory = "80 GB"                             # left out where it is not known
    memory_bandwidth = { value = "3.35 TB/s", source = "data sheet" }
    kernel_time = "2 us"                         # to start a kernel
    vector_rate = "67 TFLOP/s"                   # of all but products
    rates.float32 = [["1 GFLOP", "20 TFLOP/s"], ["1 TFLOP", "60 TFLOP/s"]]   # or one rate
    peaks.float32 = "67 TFLOP/s"                 # left out: the largest rate
    [[levels]]                                   # of links, the innermost first
    name = "node"
    devices = 8                                  # left out: any number
    latency = "2 us"
    bandwidth = "450 GB/s"                       # of what a device sends
    [sources]
    "data sheet" = "https://…"

Every figure is a text with a unit, or a table of it and the key of its source.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import date
from pathlib import Path
from typing import Any

from mithril.cost.compiled_form import ColumnSum
from mithril.cost.hardware import Calibration, Hardware
from mithril.cost.levels import Level, Link
from mithril.cost.profiles.units import BANDWIDTH, BYTES, RATE, TIME, WORK, Dimension
from mithril.cost.rates import Rate
from mithril.cost.work import BATCHED, WINDOWS
from mithril.errors import MithrilError, OptionError, kind_of, listing, nearest
from mithril.ir import registry
from mithril.ops.conv import Convolution, ConvolutionInputGradient, ConvolutionWeightGradient
from mithril.types import DType

FORMAT = 1
"""The newest form of profile files that is read."""
UNLIMITED = "unlimited"
KEYS = (
    "format", "name", "summary", "matches", "memory", "memory_bandwidth", "host_bandwidth",
    "kernel_time", "call_time", "vector_rate", "rates", "peaks", "op_rates", "levels", "sources",
    "calibration",
)  # fmt: skip
OPTIONAL_OF_LEVEL = ("full_duplex", "topology", "by_processor")
LEVEL_KEYS = (
    "name", "devices", "latency", "bandwidth", "collectives", "turn_time", *OPTIONAL_OF_LEVEL,
)  # fmt: skip
LINK_KEYS = ("latency", "bandwidth")


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile file that was read.

    Args:
        hardware: what it describes.
        matches: patterns of what devices of the kind call themselves.
        summary: one line of what it is.
        sources: where each figure comes from, by its key, as far as the file says.
    """

    hardware: Hardware
    matches: tuple[str, ...] = ()
    summary: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)


def read_file(path: Path, origin: str = "") -> Profile:
    """Return the profile in a file; JSON where its name ends so, else TOML.

    Args:
        path: of the file; its stem is the profile's name where it says none.
        origin: who brings it; by default it comes from the path.

    Raises:
        OptionError: there is no such file, or it is no profile.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"hardware profile '{path}' cannot be read; {error}; give the path of a TOML file"
        ) from error
    content = _parse(text, path)
    return _Reader(str(path), origin or str(path)).read(content, path.stem)


def _parse(text: str, where: Path) -> Mapping[str, Any]:
    is_json = where.suffix == ".json"
    try:
        content = json.loads(text) if is_json else tomllib.loads(text)
    except ValueError as error:
        form = "JSON" if is_json else "TOML"
        raise OptionError(
            f"hardware profile '{where}' is no {form}; {error}; mend the file"
        ) from error
    if not isinstance(content, dict):
        raise OptionError(
            f"hardware profile '{where}' holds {kind_of(content)}; write a table of keys"
        )
    return content


class _Reader:
    """Reads one file, whose name every message has."""

    def __init__(self, where: str, origin: str) -> None:
        self.what = f"hardware profile '{where}'"
        self.origin = origin
        self.given: Mapping[str, str] = {}
        self.sources: dict[str, str] = {}

    def read(self, content: Mapping[str, Any], name: str) -> Profile:
        self._check_format(content.get("format"))
        self._check_keys(content, KEYS, "")
        self.given = self._texts(content.get("sources", {}), "sources")
        try:
            bandwidths = self._bandwidths(content)
            hardware = Hardware(
                name=self._text(content.get("name", name), "name"),
                rates=self._rates(self._need(content, "rates", "a table of dtypes")),
                vector_rate=self._figure(content, "vector_rate", RATE),
                memory_bandwidth=bandwidths[-1][1],
                bandwidths=bandwidths if len(bandwidths) > 1 else (),
                op_rates=self._op_rates(content.get("op_rates", {})),
                peaks=self._peaks(content.get("peaks", {})),
                levels=self._levels(self._need(content, "levels", "[[levels]]")),
                kernel_seconds=self._figure(content, "kernel_time", TIME),
                call_seconds=self._figure({"call_time": "0 s", **content}, "call_time", TIME),
                memory_bytes=self._memory(content),
                host_bandwidth=self._host_bandwidth(content),
                origin=self.origin,
                calibration=self._calibration(content.get("calibration")),
            )
        except MithrilError as error:
            text = str(error)
            raise OptionError(text if text.startswith(self.what) else f"{self.what}: {text}") from (
                error.__cause__
            )
        if hardware.calibration is not None:
            hardware = hardware.as_measured()
        matches = self._list(content.get("matches", []), "matches")
        patterns = tuple(self._text(x, "matches") for x in matches)
        summary = self._text(content.get("summary", ""), "summary")
        return Profile(hardware, patterns, summary, self.sources)

    def _check_format(self, found: object) -> None:
        if found is None:
            raise OptionError(f"{self.what} has no key 'format'; write format = {FORMAT}")
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise OptionError(f"{self.what} has format {found!r}; write format = {FORMAT}")
        if found > FORMAT:
            raise OptionError(
                f"{self.what} has format {found}, and this Mithril reads up to {FORMAT}; "
                f"pip install -U mithril-core"
            )

    def _check_keys(self, content: Mapping[str, Any], known: Sequence[str], at: str) -> None:
        for key in content:
            if key not in known:
                raise OptionError(
                    f"{self.what} has an unknown key '{at}{key}'{nearest(key, known)}; keys: "
                    f"{listing(known)}"
                )

    def _need(self, content: Mapping[str, Any], key: str, what: str, at: str = "") -> Any:
        if key not in content:
            raise OptionError(f"{self.what} has no key '{at}{key}'; give {what}")
        return content[key]

    def _figure(
        self, content: Mapping[str, Any], key: str, dimension: Dimension, at: str = ""
    ) -> float:
        example = f"{dimension.name}, such as '{dimension.example}'"
        given = self._unwrap(self._need(content, key, example, at), at + key)
        if given == UNLIMITED and dimension is BANDWIDTH:
            return math.inf
        return dimension.read(given, f"{self.what}: {at}{key}")

    def _unwrap(self, given: object, key: str) -> object:
        """Return the value of a figure, and keep where it comes from."""
        if not isinstance(given, dict):
            return given
        self._check_keys(given, ("value", "source"), f"{key}.")
        if "source" in given:
            source = self._text(given["source"], f"{key}.source")
            if source not in self.given:
                raise OptionError(
                    f"{self.what}: the source '{source}' of {key} is none of [sources]"
                    f"{nearest(source, self.given)}; there are {listing(self.given)}"
                )
            self.sources[key] = self.given[source]
        return self._need(given, "value", "the figure", f"{key}.")

    def _host_bandwidth(self, content: Mapping[str, Any]) -> float | None:
        if "host_bandwidth" not in content:
            return None
        return self._figure(content, "host_bandwidth", BANDWIDTH)

    def _memory(self, content: Mapping[str, Any]) -> int | None:
        return round(self._figure(content, "memory", BYTES)) if "memory" in content else None

    def _bandwidths(self, content: Mapping[str, Any]) -> Rate:
        given = self._unwrap(content.get("memory_bandwidth"), "memory_bandwidth")
        if isinstance(given, list):
            return self._points(given, "memory_bandwidth", BYTES, BANDWIDTH)
        return ((1.0, self._figure(content, "memory_bandwidth", BANDWIDTH)),)

    def _op_rates(self, content: object) -> dict[str, Rate]:
        table = self._table(content, "op_rates")
        windows = [
            op.name + WINDOWS
            for op in (Convolution, ConvolutionInputGradient, ConvolutionWeightGradient)
        ]
        known = sorted([*registry(), BATCHED, ColumnSum.name, *windows])
        self._check_keys(table, known, "op_rates.")
        return {name: self._rate(table, name, "op_rates.") for name in table}

    def _calibration(self, content: object) -> Calibration | None:
        if content is None:
            return None
        table = self._table(content, "calibration")
        known = [item.name for item in fields(Calibration)]
        self._check_keys(table, known, "calibration.")
        for key in known:
            self._need(table, key, "what `mithril calibrate` writes", "calibration.")
        try:
            found = {**table, "date": date.fromisoformat(table["date"])}
        except (TypeError, ValueError) as error:
            raise OptionError(
                f"{self.what} has calibration.date {table['date']!r}; write YYYY-MM-DD"
            ) from error
        return Calibration(**found)

    def _rates(self, content: object) -> dict[DType, Rate]:
        known = [dtype.value for dtype in DType]
        table = self._table(content, "rates")
        self._check_keys(table, known, "rates.")
        return {DType(key): self._rate(table, key, "rates.") for key in table}

    def _peaks(self, content: object) -> dict[DType, float]:
        table = self._table(content, "peaks")
        self._check_keys(table, [dtype.value for dtype in DType], "peaks.")
        return {DType(key): self._figure(table, key, RATE, "peaks.") for key in table}

    def _rate(self, table: Mapping[str, Any], key: str, at: str) -> Rate:
        given = self._unwrap(table[key], at + key)
        if not isinstance(given, list):
            return ((1.0, RATE.read(given, f"{self.what}: {at}{key}")),)
        return self._points(given, at + key, WORK, RATE)

    def _points(self, given: list[Any], key: str, size: Dimension, rate: Dimension) -> Rate:
        what = f"{self.what}: {key}"
        if not given or any(not isinstance(p, list) or len(p) != 2 for p in given):
            raise OptionError(
                f"{what} has no pairs of a size and a rate; write "
                f"[['{size.example}', '{rate.example}'], …]"
            )
        return tuple((size.read(s, what), rate.read(r, what)) for s, r in given)

    def _levels(self, content: object) -> tuple[Level, ...]:
        tables = self._list(content, "levels")
        return tuple(self._level(self._table(x, f"levels[{n}]"), n) for n, x in enumerate(tables))

    def _level(self, table: Mapping[str, Any], number: int) -> Level:
        at = f"levels[{number}]."
        self._check_keys(table, LEVEL_KEYS, at)
        optional = {key: table[key] for key in OPTIONAL_OF_LEVEL if key in table}
        if "turn_time" in table:
            optional["turn_seconds"] = self._figure(table, "turn_time", TIME, at)
        return Level(
            self._text(self._need(table, "name", "a name", at), f"{at}name"),
            table.get("devices"),
            *self._link(table, at),
            collectives=self._collectives(table.get("collectives", {}), f"{at}collectives"),
            **optional,
        )

    def _collectives(self, content: object, at: str) -> dict[str, Link]:
        return {
            kind: Link(*self._link(self._table(table, f"{at}.{kind}"), f"{at}.{kind}."))
            for kind, table in self._table(content, at).items()
        }

    def _link(self, table: Mapping[str, Any], at: str) -> tuple[float, float]:
        latency = self._figure(table, "latency", TIME, at)
        return latency, self._figure(table, "bandwidth", BANDWIDTH, at)

    def _table(self, given: object, key: str) -> Mapping[str, Any]:
        if not isinstance(given, dict):
            raise OptionError(f"{self.what} has {kind_of(given)} as '{key}'; write a table")
        return given

    def _list(self, given: object, key: str) -> list[Any]:
        if not isinstance(given, list):
            raise OptionError(f"{self.what} has {kind_of(given)} as '{key}'; write a list")
        return given

    def _text(self, given: object, key: str) -> str:
        if not isinstance(given, str):
            raise OptionError(f"{self.what} has {kind_of(given)} as '{key}'; write a text")
        return given

    def _texts(self, given: object, key: str) -> dict[str, str]:
        return {name: self._text(x, f"{key}.{name}") for name, x in self._table(given, key).items()}


def write_content(profile: Profile) -> dict[str, object]:
    """Return a profile as a file holds it, in plain data."""
    hardware = profile.hardware
    memory = {} if hardware.memory_bytes is None else {"memory": BYTES.write(hardware.memory_bytes)}
    link = hardware.host_bandwidth
    host = {} if link is None else {"host_bandwidth": BANDWIDTH.write(link)}
    return {
        "format": FORMAT,
        "name": hardware.name,
        "summary": profile.summary,
        "matches": list(profile.matches),
        **memory,
        "memory_bandwidth": _write_points(hardware.bandwidths, BYTES, BANDWIDTH)
        or _write_bandwidth(hardware.memory_bandwidth),
        **host,
        "kernel_time": TIME.write(hardware.kernel_seconds),
        "call_time": TIME.write(hardware.call_seconds),
        "vector_rate": RATE.write(hardware.vector_rate),
        "rates": {
            dtype.value: _write_points(rate, WORK, RATE) for dtype, rate in hardware.rates.items()
        },
        "peaks": {dtype.value: RATE.write(peak) for dtype, peak in hardware.peaks.items()},
        "op_rates": {
            name: _write_points(rate, WORK, RATE) for name, rate in hardware.op_rates.items()
        },
        "levels": [_write_level(level) for level in hardware.levels],
        **_write_calibration(hardware.calibration),
    }


def _write_calibration(found: Calibration | None) -> dict[str, object]:
    if found is None:
        return {}
    return {"calibration": {**asdict(found), "date": found.date.isoformat()}}


def _write_bandwidth(number: float) -> str:
    return UNLIMITED if number == math.inf else BANDWIDTH.write(number)


def _write_points(points: Rate, size: Dimension, rate: Dimension) -> list[list[str]]:
    return [[size.write(at), rate.write(value)] for at, value in points]


def _write_link(link: Link | Level) -> dict[str, object]:
    return {"latency": TIME.write(link.latency), "bandwidth": _write_bandwidth(link.bandwidth)}


def _write_level(level: Level) -> dict[str, object]:
    return {
        "name": level.name,
        **({} if level.devices is None else {"devices": level.devices}),
        **_write_link(level),
        "full_duplex": level.full_duplex,
        "topology": level.topology,
        **({"by_processor": True} if level.by_processor else {}),
        **({"turn_time": TIME.write(level.turn_seconds)} if level.turn_seconds else {}),
        "collectives": {kind: _write_link(link) for kind, link in level.collectives.items()},
    }
