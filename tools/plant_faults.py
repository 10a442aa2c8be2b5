"""Plant the faults of tools/faults.toml one at a time, and say which of them the tests find.

    python tools/plant_faults.py                     # every fault, until the first failure of each
    python tools/plant_faults.py --check             # only see that each has its place in the code
    python tools/plant_faults.py --command "make test-all OPTIONS=-x" --only 3,17

A fault is written into the working tree, which has to be clean, and taken back afterwards, also
when the run is interrupted. Minutes to hours; not part of CI.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
FAULTS = Path(__file__).with_name("faults.toml")


@dataclass(frozen=True)
class Fault:
    """One change that makes the code wrong.

    Args:
        area: what is spoilt.
        package: the folder of the package it is in.
        before: text that stands once in the sources of the package.
        after: what stands there instead.
    """

    area: str
    package: str
    before: str
    after: str

    def find(self) -> Path:
        """Return the file it belongs in.

        Raises:
            SystemExit: the text stands nowhere, or several times.
        """
        sources = sorted((ROOT / self.package / "src").rglob("*.py"))
        found = [path for path in sources for _ in range(path.read_text().count(self.before))]
        if len(found) != 1:
            sys.exit(f"{self.before!r} stands {len(found)} times in {self.package}; make it unique")
        return found[0]


def try_fault(fault: Fault, command: str) -> tuple[str, float]:
    """Return what of a command fails with the fault in place, and after how many seconds.

    Args:
        fault: planted before, taken back afterwards.
        command: runs tests.

    Returns:
        The first failure that pytest names, or the last line where it names none; empty if all
        tests pass.
    """
    path = fault.find()
    sound = path.read_text()
    path.write_text(sound.replace(fault.before, fault.after))
    start = time.perf_counter()
    try:
        done = subprocess.run(
            shlex.split(command), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, check=False,
        )  # fmt: skip
    finally:
        path.write_text(sound)
    seconds = time.perf_counter() - start
    if done.returncode == 0:
        return "", seconds
    lines = [*filter(None, done.stdout.splitlines())] or [f"exit code {done.returncode}"]
    named = (line for line in lines if line.startswith(("FAILED ", "ERROR ")))
    return next(named, lines[-1]), seconds


def main() -> None:
    """Plant the faults and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", default="make test OPTIONS=-x", help="what has to fail")
    parser.add_argument("--only", default="", help="numbers of faults, by commas; all if left out")
    parser.add_argument("--check", action="store_true", help="only look for their places")
    options = parser.parse_args()
    faults = [Fault(**row) for row in tomllib.loads(FAULTS.read_text())["fault"]]
    paths = [fault.find() for fault in faults]
    if options.check:
        return
    if subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=ROOT, check=False).returncode:
        sys.exit("the working tree has changes; commit them first")
    chosen = [int(number) for number in options.only.split(",") if number] or range(len(faults))
    missed = []
    for number in chosen:
        failure, seconds = try_fault(faults[number], options.command)
        missed += [] if failure else [number]
        where = paths[number].relative_to(ROOT)
        verdict = "found " if failure else "MISSED"
        print(f"{number:2} {verdict} {seconds:5.0f} s  {faults[number].area:14} {where}")
        print(f"   {failure[:150]}", flush=True)
    print(f"found {len(chosen) - len(missed)} of {len(chosen)}; missed: {missed or 'none'}")


if __name__ == "__main__":
    main()
