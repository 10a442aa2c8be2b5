"""Small jobs for the tests of `mithril launch`: code for ranks, and what is left of them after."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mithril.plugins import Command
from mithril.runtime.launch import supervise

LONG = 60.0
"""Seconds after which a test gives up; nothing here takes more than a few."""
SLEEP = "import time; time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
SHOW = "import os; print('pid', os.getpid())\n"
CHILD = "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {code!r}]{options}); print('pid', child.pid)\n"


def ready(folder: Path) -> str:
    """Return code that tells that its process has come so far."""
    return f"import os; open({str(folder)!r} + f'/{{os.getpid()}}.ready', 'w').close()\n"


def after(folder: Path, count: int) -> str:
    """Return code that waits until so many processes are ready."""
    return (
        "import pathlib, time\n"
        f"while len([*pathlib.Path({str(folder)!r}).glob('*.ready')]) < {count}: time.sleep(0.01)\n"
    )


def ranks(*codes: str) -> list[Command]:
    """Return a command for each piece of code, ranks counted from 0."""
    return [
        Command((sys.executable, "-c", textwrap.dedent(code)), {}, rank)
        for rank, code in enumerate(codes)
    ]


class Run:
    """A supervised job that has ended: its outcome and what the launcher wrote."""

    def __init__(self, folder: Path, commands: list[Command], grace: float = 0.5) -> None:
        files = (folder / "output", folder / "errors")
        targets = [os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for file in files]
        started = time.monotonic()
        try:
            self.outcome = supervise(commands, grace=grace, output=targets[0], errors=targets[1])
        finally:
            for target in targets:
                os.close(target)
        self.seconds = time.monotonic() - started
        self.output, self.errors = (file.read_bytes() for file in files)

    @property
    def pids(self) -> list[int]:
        return pids(self.output.decode())


def pids(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"pid (\d+)", text)]


def exists(pid: int) -> bool:
    """Whether there is such a process, be it a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(condition: Callable[[], bool]) -> None:
    assert waits_for(condition, LONG), "waited too long"


def waits_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until something is so; return whether it came to be."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def crowding() -> float:
    """Return how many processes want each core, where more than one does: all takes so much longer."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def is_alive(pid: int) -> bool:
    """Whether a process runs: one that nobody here can reap may still be a zombie."""
    if not Path("/proc").is_dir():
        return exists(pid)
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def program(folder: Path, *codes: str, grace: float = 0.5) -> Path:
    """Write a program that supervises ranks with the given code, as the command does."""
    file = folder / "launcher.py"
    file.write_text(f"""
import sys
from mithril.plugins import Command
from mithril.runtime.launch import supervise
codes = {[textwrap.dedent(code) for code in codes]!r}
commands = [Command((sys.executable, "-c", c), {{}}, rank) for rank, c in enumerate(codes)]
outcome = supervise(commands, grace={grace})
print(outcome.text, file=sys.stderr)
sys.exit(outcome.code)
""")
    return file


@contextmanager
def launcher(folder: Path, *codes: str, grace: float = 0.5) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that supervises ranks with the given code; a test that fails leaves none."""
    file = program(folder, *codes, grace=grace)
    with subprocess.Popen(
        [sys.executable, str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_pids(process: subprocess.Popen[bytes], count: int) -> list[int]:
    """Return the numbers that the first lines of a launcher tell."""
    assert process.stdout is not None
    return [pids(process.stdout.readline().decode())[0] for _ in range(count)]


def watchdog_of(process: subprocess.Popen[bytes]) -> int:
    """Return the number of the watchdog among the children of a launcher."""
    command = ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=2) for line in listed.splitlines()]
    (found,) = [
        int(pid)
        for pid, parent, command in rows
        if int(parent) == process.pid and "watchdog.py" in command
    ]
    return found


# ------------------------------------------------------------------ what the system tells


def processes_of(script: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the processes whose command names a script, and their environment variables."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            command = (folder / "cmdline").read_bytes()
        except OSError:  # it has ended meanwhile, or is not ours
            continue
        if script.encode() in command:
            yield int(folder.name), dict(v.split("=", 1) for v in variables if "=" in v)


LOOPBACK = {
    "0100007F",
    "00000000000000000000000001000000",
    "0000000000000000FFFF00000100007F",
}


def open_files(pid: int) -> list[str]:
    """Return what a process has open; a file that it closes while they are listed is left out."""
    files = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            files.append(str(link.readlink()))
    return files


def listening(pids: set[int]) -> set[str]:
    """Return the hexadecimal addresses at which processes listen.

    The system's table is read in pieces: while other sockets come and go a row may be missed.
    """
    sockets = {file for pid in pids for file in open_files(pid)}
    found = set()
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            cells = row.split()
            if cells[3] == "0A" and f"socket:[{cells[9]}]" in sockets:
                found.add(cells[1].rpartition(":")[0])
    return found
