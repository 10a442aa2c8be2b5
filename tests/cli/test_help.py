"""Help of every command, and what is said of one that does not exist."""

from __future__ import annotations

import subprocess
import sys

import pytest
from mithril.cli.app import app
from typer.testing import CliRunner

COMMANDS = [
    (), ("demo",), ("eject",), ("schedule",), ("launch",), ("backends",), ("backends", "list"),
    ("backends", "info"), ("calibrate",), ("diff",), ("doctor",), ("hardware",), ("plan",),
    ("tune",), ("plugins",), ("plugins", "list"), ("plugins", "info"),
]  # fmt: skip


def test_these_are_all_commands() -> None:
    told = CliRunner().invoke(app, ["--help"]).stdout.partition("Commands:")[2].splitlines()
    named = {line.split()[0] for line in told if line.strip() and not line.startswith("   ")}
    assert named == {command[0] for command in COMMANDS if command}


def test_the_package_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mithril", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == CliRunner().invoke(app, ["--version"]).stdout.strip()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_short_option_for_help(command: tuple[str, ...]) -> None:
    short = CliRunner().invoke(app, [*command, "-h"])
    long = CliRunner().invoke(app, [*command, "--help"])
    assert (short.exit_code, short.stdout) == (0, long.stdout)
    assert short.stdout.startswith("Usage: ")


@pytest.mark.parametrize(
    ("arguments", "near"),
    [(["bakends"], "backends"), (["lanch", "a.py"], "launch"), (["backends", "inf"], "info")],
)
def test_near_names_of_commands(arguments: list[str], near: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert f"No such command '{arguments[-1] if near == 'info' else arguments[0]}'. " in done.stderr
    assert f"Did you mean '{near}'" in done.stderr
