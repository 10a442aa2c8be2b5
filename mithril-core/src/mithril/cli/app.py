"""The `mithril` command: what the user can put right is one line on stderr and exit code 1.

Sub-commands import the parts of Mithril they need when they run, so the command starts fast.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from mithril.cli import (
    backends,
    calibrate,
    demo,
    difference,
    doctor,
    eject,
    hardware,
    launch,
    plan,
    plugins,
    schedule,
    tune,
)
from mithril.cli.group import PluginGroup
from mithril.errors import MithrilError

app = typer.Typer(
    name="mithril",
    cls=PluginGroup,
    help="Train one model on any mesh of devices, on any backend.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},  # also of all commands below
)
app.add_typer(backends.app, name="backends")
app.add_typer(plugins.app, name="plugins")
app.command("calibrate")(calibrate.calibrate)
app.command("demo")(demo.demo)
app.command("diff")(difference.diff)
app.command("doctor")(doctor.doctor)
app.command("eject")(eject.eject)
app.command("hardware")(hardware.hardware)
app.command("plan")(plan.plan)
app.command("schedule")(schedule.schedule)
app.command("tune")(tune.tune)
# What follows the script is the script's, even where it looks like an option.
app.command("launch", context_settings={"allow_interspersed_args": False})(launch.launch)


def main() -> None:
    """Run the command line."""
    try:
        app()
    except MithrilError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        sys.exit(1)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mithril {version('mithril-core')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Take the options that stand before a sub-command."""
