"""`mithril backends check`: what a backend gets right, line by line, beside the NumPy engine.

Ends with exit code 0 if every check passes or fails as declared, with 1 if one does not, and with
3 if the backend cannot be opened, as `mithril backends info` does. A run that is interrupted
(SIGINT, SIGTERM) still says what it has found, and ends with 130 or 143.
"""

from __future__ import annotations

import signal
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mithril.cli.mesh import read_mesh
from mithril.cli.options import Given, find_spec, read_options
from mithril.errors import BackendError, OptionError
from mithril.option_checks import check_output

if TYPE_CHECKING:
    from mithril.testing.check import Result

CANNOT_OPEN = 3
TABLE = "known_gaps"


def check(
    name: Annotated[str, typer.Argument(help="A backend name.")],
    mesh: Annotated[
        str, typer.Option(help="Axes of the mesh for what needs several devices.")
    ] = "a=2,b=2",
    level: Annotated[
        str, typer.Option(help="How much is tried: smoke (seconds), basic, or full.")
    ] = "basic",
    pattern: Annotated[
        list[str] | None,
        typer.Option(
            "-k",
            help="Only checks whose id or name begins so, such as ops/ or softmax; * as in a "
            "shell. May be repeated: those with either.",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="No checks whose id or name begins so, such as ops/conv; as -k."),
    ] = None,
    is_list: Annotated[
        bool, typer.Option("--list", help="Print the names of the checks, and run none.")
    ] = False,
    option: Given = None,
    gaps: Annotated[
        Path | None,
        typer.Option("--known-gaps", help="A TOML file with reasons by check in [known_gaps]."),
    ] = None,
    stops: Annotated[
        bool, typer.Option("-x", "--exitfirst", help="Stop at the first check that is not good.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page to this file, too.")] = None,
) -> None:
    """Compare a backend with the NumPy engine: ops, collectives, models and the rest."""
    from mithril.testing.checks import list_checks
    from mithril.testing.levels import Level
    from mithril.testing.run import Interrupted, check_backend, choose_checks

    chosen, ending = Level(_read_level(level)), 0
    if html is not None:
        check_output("--html", html)
    patterns, excluded = pattern or [], exclude or []
    if is_list:
        for one in choose_checks(list_checks(), chosen, patterns, excluded):
            typer.echo(one.id)
        return
    try:
        with _stop_on_signal() as signals:
            report = check_backend(
                name,
                level=chosen,
                mesh=None if mesh == "a=2,b=2" else read_mesh(mesh),
                pattern=patterns,
                exclude=excluded,
                options=read_options(option, find_spec(name)),
                known_gaps=read_gaps(gaps) if gaps else None,
                stops=stops,
                tell=None if as_json else _print_lines(),
            )
    except BackendError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        raise typer.Exit(CANNOT_OPEN) from None
    except Interrupted as stopped:
        report, ending = stopped.report, 128 + (signals or [signal.SIGINT])[0]
    if as_json:
        typer.echo(report.to_json())
    else:
        typer.echo(
            "\n".join([*report.describe_causes(), *report.describe_speed(), report.summary()])
        )
    if html is not None:
        html.write_text(report.to_html(), encoding="utf-8")
    if not report.is_good:
        raise typer.Exit(ending or 1)


@contextmanager
def _stop_on_signal() -> Iterator[list[int]]:
    """Have a first SIGTERM interrupt the process as Control-C does; yields what has come."""
    came: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        came.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # where none can be handled
        yield came
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_lines() -> Callable[[Result], None]:
    """Return what prints each result as it comes, under the heading of its group."""
    from mithril.testing.report import describe_result

    groups: list[str] = []

    def tell(result: Result) -> None:
        if result.check.group not in groups:
            groups.append(result.check.group)
            typer.echo(result.check.group)
        typer.echo(describe_result(result))

    return tell


def _read_level(text: str) -> str:
    """Return the name of a level.

    Raises:
        OptionError: there is no such level.
    """
    from mithril.testing.levels import Level

    if text not in list(Level):
        raise OptionError(f"--level '{text}' is no level; write smoke, basic or full")
    return text


def read_gaps(path: Path) -> Mapping[str, str]:
    """Return the reasons in the table `known_gaps` of a TOML file.

    Raises:
        OptionError: it cannot be read, or has no such table of texts.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get(TABLE)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OptionError(f"--known-gaps {path} cannot be read; {error}") from None
    if not isinstance(table, dict) or not all(isinstance(text, str) for text in table.values()):
        raise OptionError(
            f"--known-gaps {path} has no table [known_gaps] of reasons; write "
            f'"ops/svd" = "no kernel" in it'
        )
    return table
