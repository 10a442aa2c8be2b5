"""Plant the faults of tools/faults.toml one at a time, and say which of them the tests find.

    python tools/plant_faults.py                     # every fault, until the first failure of each
    python tools/plant_faults.py --check             # only see that each has its place in the code
    python tools/plant_faults.py --command "make test-all OPTIONS=-x" --only 3,17
    python tools/plant_faults.py --kit               # those of tools/kernel_faults.toml, by the kit

A fault is written into the working tree, which has to be clean, and taken back afterwards, also
when the run is interrupted. Minutes to hours; not part of CI.

With `--kit` the faults are of kernels and collectives: each is planted into a copy of the NumPy
engine, which is a backend of its own, and `mithril backends check` has to find it, with the sound
engine as its oracle. Minutes; `tests/kit/test_faults.py` runs it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
FAULTS = Path(__file__).with_name("faults.toml")
KERNEL_FAULTS = Path(__file__).with_name("kernel_faults.toml")
ENGINE = ROOT / "mithril-core/src/mithril/engine"
SPI = ROOT / "mithril-core/src/mithril/spi/__init__.py"
COPIED = (
    "collectives", "kernels", "lockstep", "moving", "numpy_engine", "shards", "standard",
    "variables",
)  # fmt: skip
"""What of the engine package a copy has of its own; the rest it shares with the oracle."""
NAME = "mutant"
PLUGIN = f"""
from mithril.spi import BackendSpec, hookimpl

def open_mutant(mesh, options):
    from acme_mutant.numpy_engine import NumpyEngine

    class Mutant(NumpyEngine):
        __slots__ = ()
        name = "{NAME}"

    return Mutant(mesh)

@hookimpl
def mithril_backends():
    return [BackendSpec("{NAME}", open_mutant, (2, 0))]
"""


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


def write_copy(folder: Path, fault: Fault | None = None) -> None:
    """Write a copy of the NumPy engine as the backend `mutant`, as pip would install it.

    Args:
        folder: what belongs on `sys.path`.
        fault: planted into the copy.
    """
    package = folder / "acme_mutant"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(PLUGIN, encoding="utf-8")
    spoilt = None if fault is None else fault.find()
    own = re.compile(rf"\bmithril\.(?:engine\.)?({'|'.join(COPIED)}|spi(?!\.))\b")
    paths = [p for n in COPIED for p in (*ENGINE.glob(f"{n}.py"), *ENGINE.glob(f"{n}/*.py"))]
    for path in [*paths, SPI]:
        text = path.read_text(encoding="utf-8")
        if fault is not None and path == spoilt:
            text = text.replace(fault.before, fault.after)
        target = package / (path.relative_to(ENGINE) if path != SPI else "spi.py")
        target.parent.mkdir(exist_ok=True)
        target.write_text(own.sub(r"acme_mutant.\1", text), encoding="utf-8")
    metadata = folder / "acme_mutant-1.0.dist-info"
    metadata.mkdir()
    header = "Metadata-Version: 2.1\nName: acme-mutant\nVersion: 1.0\n"
    (metadata / "METADATA").write_text(header, encoding="utf-8")
    points = f"[mithril.backends]\n{NAME} = acme_mutant\n"
    (metadata / "entry_points.txt").write_text(points, encoding="utf-8")


def try_in_copy(fault: Fault | None, level: str = "basic") -> tuple[str, float]:
    """Return the first check of the kit that finds a fault in a copy of the NumPy engine.

    Args:
        fault: what is planted; None for a sound copy.
        level: of the kit.

    Returns:
        The id of the check and what it says, empty if all pass; and after how many seconds.
    """
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        write_copy(Path(folder), fault)
        path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        command = f"-m mithril backends check {NAME} --level {level} --exitfirst --json"
        done = subprocess.run(
            [sys.executable, *command.split()], env={**os.environ, "PYTHONPATH": path},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if not done.stdout:
        sys.exit(f"the kit does not run on a copy of the engine: {done.stderr}")
    rows = [row for row in json.loads(done.stdout)["results"] if not row["good"]]
    found = f"{rows[0]['id']}: {rows[0]['note']}" if rows else ""
    return found, time.perf_counter() - start


def main() -> None:
    """Plant the faults and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", default="make test OPTIONS=-x", help="what has to fail")
    parser.add_argument("--only", default="", help="numbers of faults, by commas; all if left out")
    parser.add_argument("--check", action="store_true", help="only look for their places")
    parser.add_argument("--kit", action="store_true", help="faults of kernels, found by the kit")
    options = parser.parse_args()
    if options.check:
        for fault in [*read_faults(FAULTS), *read_faults(KERNEL_FAULTS)]:
            fault.find()
        return
    faults = read_faults(KERNEL_FAULTS if options.kit else FAULTS)
    paths = [fault.find() for fault in faults]
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=ROOT, check=False).returncode
    if changed and not options.kit:
        sys.exit("the working tree has changes; commit them first")
    chosen = [int(number) for number in options.only.split(",") if number] or range(len(faults))
    missed = []
    for number in chosen:
        fault = faults[number]
        failure, seconds = try_in_copy(fault) if options.kit else try_fault(fault, options.command)
        missed += [] if failure else [number]
        where = paths[number].relative_to(ROOT)
        verdict = "found " if failure else "MISSED"
        print(f"{number:2} {verdict} {seconds:5.0f} s  {fault.area:14} {where}")
        print(f"   {failure[:150]}", flush=True)
    print(f"found {len(chosen) - len(missed)} of {len(chosen)}; missed: {missed or 'none'}")


def read_faults(path: Path) -> list[Fault]:
    """Return the faults of a file."""
    return [Fault(**row) for row in tomllib.loads(path.read_text(encoding="utf-8"))["fault"]]


if __name__ == "__main__":
    main()
