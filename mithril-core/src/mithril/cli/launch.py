"""`mithril launch`: run a script in several processes, with the output and the fate of each named.

The exit code is that of the process that failed, 128 plus the number of a signal, or 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from mithril.cli.choice import choose_spec
from mithril.cli.options import Given, check_own, read_options
from mithril.errors import BackendError, MithrilError, OptionError, nearest

if TYPE_CHECKING:
    from mithril.plugins.launch import Command, LaunchRequest
    from mithril.plugins.spec import BackendSpec


def launch(
    script: Annotated[str, typer.Argument(help="The Python file to run.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="What the script gets on its command line.")
    ] = None,
    processes: Annotated[
        int, typer.Option("-n", "--processes", help="Processes on each machine.")
    ] = 1,
    backend: Annotated[
        str, typer.Option(help="Backend name; by default the one that has a launcher.")
    ] = "",
    nodes: Annotated[int, typer.Option(help="Machines that take part.")] = 1,
    node_rank: Annotated[int, typer.Option(help="Which of them this is, from 0.")] = 0,
    coordinator: Annotated[
        str, typer.Option(help="HOST:PORT where all processes meet; loopback by default.")
    ] = "",
    grace: Annotated[
        float, typer.Option(min=0.0, help="Seconds between SIGTERM and SIGKILL.")
    ] = 2.0,
    option: Given = None,
) -> None:
    """Run a script in several processes that form one mesh."""
    from mithril.plugins.launch import LaunchRequest
    from mithril.plugins.launch_options import hand_on
    from mithril.plugins.published import PUBLISHED, install_command

    request = LaunchRequest(
        script, tuple(arguments or ()), processes, nodes, node_rank, coordinator or None
    )
    check_script(script)
    spec = choose_spec(
        backend,
        lambda spec: spec.launch is not None,
        need="mithril launch needs one ready backend that starts processes",
        lack=f"does not start processes; it opens a whole mesh in one: python {script}",
        remedy=install_command(package for package in PUBLISHED.values() if package.launches),
    )
    options = read_options(option, spec)
    check_own(spec, options, "mithril launch")
    from mithril.runtime.launch import supervise

    with TemporaryDirectory(prefix="mithril-launch-") as folder:
        commands = _commands(spec, replace(request, folder=folder))
        commands = [hand_on(command, spec.name, options) for command in commands]
        outcome = supervise(commands, grace=grace, folder=folder)
    if outcome.text:
        typer.echo(f"mithril launch: {outcome.text}", err=True)
    raise typer.Exit(outcome.code)


def check_script(script: str) -> None:
    """Raise unless a script is there.

    Raises:
        OptionError: it is no file.
    """
    path = Path(script)
    if path.is_file():
        return
    beside = path.parent.glob("*.py") if path.parent.is_dir() else ()
    hint = nearest(path.name, [file.name for file in beside])
    raise OptionError(f"script '{script}' is no file; give the path of a Python file{hint}")


def _commands(spec: BackendSpec, request: LaunchRequest) -> Sequence[Command]:
    """Ask the backend what to run, and check that it is something."""
    from mithril.plugins.launch import Command

    assert spec.launch is not None
    try:
        commands = spec.launch(request)
    except MithrilError:
        raise
    except Exception as error:
        raise BackendError(
            f"backend '{spec.name}' failed to say what to launch; {type(error).__name__}: {error}; "
            f"mithril backends info {spec.name}"
        ) from error
    if not commands or not all(isinstance(command, Command) for command in commands):
        raise BackendError(
            f"backend '{spec.name}' gave {commands!r} to launch; its plugin must return a list "
            f"of Command"
        )
    return commands
