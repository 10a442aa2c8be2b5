"""Kills what a launch has started once the launcher is gone, however it went: even by SIGKILL.

The launcher starts this file as a process of its own and holds the other end of its stdin. The
kernel closes that end when the launcher dies, whatever the ranks are doing: a thread inside a rank
would not run while C code holds the interpreter lock, and Linux' "signal me when my parent dies"
reaches neither grandchildren nor macOS. Here nothing but the standard library is used, since the
file runs without site-packages.

Processes are found in two ways: by the process groups that stdin names (`+PID`, and `-PID` when one
is empty), and, where /proc shows it, by a mark in their environment, which also finds those that
left their group. Last goes the folder in which the job has its files.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

MARK = "MITHRIL_LAUNCH"
"""The environment variable that holds the mark of a launch, and of those around it."""
PASSES = 100
PAUSE = 0.1
PROC = Path("/proc")


def kill_group(group: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to every process of a group, if there still is one."""
    # macOS answers with a PermissionError where only ended processes are left in the group.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def kill_marked(mark: str) -> None:
    """Kill every process whose environment has the mark, until no new one shows up."""
    for _ in range(PASSES):
        found = find_marked(mark)
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def find_marked(mark: str) -> list[int]:
    """Return the processes whose environment has the mark; ended ones have no environment."""
    folders = PROC.glob("[0-9]*") if PROC.is_dir() else ()
    return [int(folder.name) for folder in folders if _has(folder, mark.encode())]


def _has(folder: Path, mark: bytes) -> bool:
    try:
        variables = (folder / "environ").read_bytes().split(b"\0")
    except OSError:  # it is another user's, or has ended since it was listed
        return False
    prefix = MARK.encode() + b"="
    return any(mark in variable for variable in variables if variable.startswith(prefix))


def watch(lines: Iterable[str], mark: str, folder: str = "") -> None:
    """Follow the launcher until its end of the pipe closes, then kill and remove what is left."""
    groups: set[int] = set()
    for line in lines:
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        kill_group(group)
    kill_marked(mark)
    # A process that was just being started has its environment a moment later.
    time.sleep(PAUSE)
    kill_marked(mark)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)  # the launcher may be at it, too


if __name__ == "__main__":
    watch(sys.stdin, *sys.argv[1:])
