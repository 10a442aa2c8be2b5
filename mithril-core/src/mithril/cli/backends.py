"""`mithril backends`: which backends are installed, whether they work, and what one can do.

In `list` another process loads the modules of plugins, which import no framework: none of them is
imported here, and one that hangs or prints does no harm. `list --metadata` has what packages say of
themselves. Both always succeed unless `--strict` is given; `info` opens the backend and ends with
exit code 3 if that fails. Data goes to stdout, faults to stderr.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, fields
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated

import typer

from mithril.cli import conformance, new_backend
from mithril.cli.backend_rows import Row, print_loaded
from mithril.cli.faults import list_frames, locate, name_module, read_facts
from mithril.cli.options import Given, read_options
from mithril.cli.table import make_table, uses_color
from mithril.errors import MithrilError
from mithril.plugins.discover import BackendEntry, Status, api_text, survey
from mithril.plugins.opening import open_entry, require
from mithril.plugins.spec import BACKEND_API

if TYPE_CHECKING:
    from mithril.cost import Hardware
    from mithril.cost.profiles.store import Stored

JSON_SCHEMA = 1
CANNOT_OPEN = 3
NAMES_SHOWN = 8
OF_OFFLOADING = frozenset({"from_host", "to_host"})
OPTION = ("name", "type", "default")
PATIENCE = 20
"""Seconds that modules of plugins may take to load."""
HEADER = ("NAME", "PACKAGE", "FRAMEWORK", "API", "STATUS", "NOTE")

app = typer.Typer(help="The installed backends.", no_args_is_help=True, rich_markup_mode=None)
app.command("check")(conformance.check)
app.command("new")(new_backend.new)


@app.command("list")
def list_backends(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    metadata: Annotated[
        bool, typer.Option("--metadata", help="Load no plugin; show what packages declare.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 unless every one is ready.")
    ] = False,
) -> None:
    """List the installed backends and whether each can be used."""
    rows = list(map(Row.of, survey())) if metadata else load_apart()
    typer.echo(_as_json(rows) if as_json else _as_table(rows), color=uses_color())
    if strict and any(row.status is not Status.ready for row in rows):
        raise typer.Exit(1)


def load_apart() -> list[Row]:
    """Return the backends as another process finds them, which loads the modules of plugins.

    Raises:
        typer.Exit: MITHRIL_STRICT is set, and a plugin raises; its traceback goes to stderr.
    """
    load = f"from {print_loaded.__module__} import print_loaded; print_loaded()"
    code = f"import os; {load}; os._exit(0)"  # nothing that plugins leave for the end is run
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, timeout=PATIENCE, check=False,
            encoding="utf-8", errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _fall_back(f"plugins take more than {PATIENCE} s to load")
    if done.returncode and os.environ.get("MITHRIL_STRICT"):
        typer.echo(done.stderr, err=True, nl=False)
        raise typer.Exit(1)
    if done.returncode or not done.stdout:  # a plugin may end it in peace, too
        return _fall_back(f"a plugin ends the process that loads it, with {done.returncode}")
    loaded = json.loads(done.stdout)
    return [Row(**{**row, "status": Status(row["status"])}) for row in loaded]


def _fall_back(why: str) -> list[Row]:
    typer.echo(f"{why}; shown is what packages declare", err=True)
    return list(map(Row.of, survey()))


@app.command("info")
def info(
    name: Annotated[str, typer.Argument(help="A backend name.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    option: Given = None,
) -> None:
    """Open a backend on one device and show what it can do."""
    try:
        entry = require(name)
        options = read_options(option, entry.spec)
    except MithrilError as error:
        raise _failure(error) from None
    if not as_json:
        typer.echo("\n".join(_description(entry)))
    abilities: Abilities | None = None
    try:
        abilities = _open(entry, options)
    except MithrilError as error:
        if error.__cause__ is not None:
            typer.echo("\n".join(list_frames(entry, error.__cause__)), err=True)
        raise _failure(error) from None
    finally:
        if as_json:
            typer.echo(_info_as_json(entry, abilities))
    if not as_json:
        typer.echo("\n".join(_list_abilities(abilities)))


def _failure(error: MithrilError) -> typer.Exit:
    typer.echo(f"{type(error).__name__}: {error}", err=True)
    return typer.Exit(CANNOT_OPEN)


def _as_json(rows: Iterable[Row]) -> str:
    document = {
        "schema": JSON_SCHEMA,
        "mithril": version("mithril-core"),
        "api": api_text(BACKEND_API),
        "backends": [asdict(row) for row in rows],
    }
    return json.dumps(document, indent=2)


def _as_table(rows: Sequence[Row]) -> str:
    if not rows:
        return "no backends are installed; pip install mithril-core"
    return make_table(HEADER, rows, Row.cells)


def _description(entry: BackendEntry) -> Iterator[str]:
    """Say what is known without opening the backend."""
    spec = entry.spec
    summary = f" — {spec.summary}" if spec and spec.summary else ""
    yield f"{entry.name}{summary}" + (f"   {spec.url}" if spec and spec.url else "")
    package = f"{entry.package} {entry.package_version}"
    yield _line("package", f"{package}   ({name_module(entry)}, {locate(entry)})")
    yield _line("status", entry.status.value)
    if spec and entry.framework:
        found = entry.framework.installed or "not installed"
        yield _line(
            "framework", f"{entry.framework.name} {found}   requires {', '.join(spec.requires)}"
        )
    for option in fields(spec.options) if spec and spec.options else ():
        name, kind, default = _describe(option)
        yield _line("option", f"{name}: {kind}" + (f" = {default}" if default else ""))


@dataclass(frozen=True)
class Abilities:
    """What an opened backend offers; `absent` and `without_kernel` are what others have.

    Of those without a kernel, the ones in `missing` have no expansion either.
    """

    devices: list[str]
    capabilities: list[str]
    absent: list[str]
    kernels: list[str]
    without_kernel: list[str]
    missing: list[str]
    facts: dict[str, str]
    plugin_kernels: dict[str, str]
    hardware: dict[str, str]
    calibrated: list[str]
    opened_in: float


def _open(entry: BackendEntry, options: Mapping[str, object]) -> Abilities:
    """Open the backend with some options, and find what it offers.

    Raises:
        MithrilError: it cannot be opened.
    """
    import mithril.ops  # noqa: F401 - fills the registry, whatever the engine imports
    from mithril.cost import find_hardware
    from mithril.cost.profiles.store import list_stored
    from mithril.mesh import Mesh
    from mithril.ops.collective import collectives
    from mithril.ops.own_kernel import list_kernels

    started = time.perf_counter()
    engine = open_entry(entry, Mesh(), options)
    seconds = time.perf_counter() - started
    known, expanded = _list_ops()
    return Abilities(
        list(engine.devices),
        sorted(engine.capabilities),
        sorted(collectives().keys() - engine.capabilities),
        sorted(known & engine.kernels),
        sorted(known - engine.kernels),
        sorted(known - expanded - engine.kernels),
        read_facts(engine),
        dict(list_kernels(entry.name)),
        _describe_hardware(find_hardware(engine)),
        [_say_stored(stored) for stored in list_stored(engine)],
        round(seconds, 3),
    )


def _list_ops() -> tuple[set[str], set[str]]:
    """Return the ops that an engine may have a kernel for, and those that have an expansion.

    Collectives are capabilities, shown in a row of their own.
    """
    from mithril.ir import Op, registry
    from mithril.ops.own_kernel import KernelOp
    from mithril.transform.expand import RUN_WITHOUT_KERNEL

    known = {
        name: op
        for name, op in registry().items()
        if op.has_kernel and not (op.is_collective or issubclass(op, KernelOp))
    }
    expanded = {name for name, op in known.items() if op.expand is not Op.expand}
    return known.keys() - RUN_WITHOUT_KERNEL, expanded


def _describe_hardware(found: Hardware) -> dict[str, str]:
    return {
        "profile": found.name,
        "origin": found.origin,
        "unknown_platform": found.unknown_platform,
    }


def _say_hardware(found: Mapping[str, str]) -> str:
    """Say which profile prices plans, and where it comes from."""
    text = f"{found['profile']}   (from {found['origin']})"
    if found["unknown_platform"]:
        text += f"; none describes '{found['unknown_platform']}', no times are predicted"
    return text


def _say_stored(stored: Stored) -> str:
    """Say what a calibrated profile is of, and whether it is used."""
    if stored.hardware is None or stored.hardware.calibration is None:
        return f"{stored.path}   (left aside: {stored.note})"
    made = stored.hardware.calibration
    worst = max(made.errors.values(), default=0.0)
    count = f"{made.devices} device" + ("s" if made.devices > 1 else "")
    return f"{count}, {made.date}, fits within {worst:.0%}   ({stored.path})"


def _list_abilities(found: Abilities) -> Iterator[str]:
    """Say what an opened backend offers."""
    kinds = Counter(label.rstrip("0123456789").rstrip(" :") for label in found.devices)
    yield _line("devices", "   ".join(f"{kind} ×{count}" for kind, count in kinds.items()))
    yield _line("capabilities", " ".join(found.capabilities))
    if found.absent:
        yield _line("", f"no {_shorten(found.absent)}: plans that need one are refused")
    with_kernel = len(found.kernels)
    of = with_kernel + len(found.without_kernel)
    expanded = [name for name in found.without_kernel if name not in found.missing]
    kernels = f"{with_kernel} of {of} have a kernel"
    yield _line("operators", kernels + (f"; expanded: {_shorten(expanded)}" if expanded else ""))
    yield from (_line("", text) for text in _say_missing(found.missing))
    yield from (_line(f"op {op}", f"by {who}") for op, who in found.plugin_kernels.items())
    yield from (_line(name, text) for name, text in found.facts.items())
    yield _line("hardware", _say_hardware(found.hardware))
    yield from (_line("calibrated", text) for text in found.calibrated)
    yield _line("opened in", f"{found.opened_in:.1f} s")


def _info_as_json(entry: BackendEntry, abilities: Abilities | None) -> str:
    """Return what is known of a backend; `opened` is null where it could not be."""
    spec = entry.spec
    options = fields(spec.options) if spec and spec.options else ()
    document = {
        "schema": JSON_SCHEMA,
        "mithril": version("mithril-core"),
        "backend": {
            **asdict(Row.of(entry)),
            "summary": spec.summary if spec else None,
            "url": spec.url if spec else None,
            "requires": list(spec.requires) if spec else [],
            "options": [dict(zip(OPTION, _describe(option), strict=True)) for option in options],
            "opened": None if abilities is None else asdict(abilities),
        },
    }
    return json.dumps(document, indent=2)


def _describe(option: Field[object]) -> tuple[str, str, str | None]:
    """Return the name, type and default of an option as they are written; None for no default."""
    kind = option.type.__name__ if isinstance(option.type, type) else str(option.type)
    return option.name, kind, None if option.default is MISSING else repr(option.default)


def _say_missing(names: Collection[str]) -> Iterator[str]:
    """Say what nobody can do who needs the ops that have neither kernel nor expansion."""
    others = [name for name in names if name not in OF_OFFLOADING]
    if others:
        yield f"no kernel and no expansion: {_shorten(others)}; plans that need one are refused"
    if len(others) < len(names):
        yield (
            f"no {' and '.join(sorted(OF_OFFLOADING.intersection(names)))}: nothing is kept in the "
            f"host's memory, options that offload are refused, all else runs"
        )


def _shorten(names: Sequence[str]) -> str:
    more = f", and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"{', '.join(names[:NAMES_SHOWN])}{more}"


def _line(label: str, text: str) -> str:
    return f"  {label:<13} {text}"
