"""`mithril doctor`: what this machine has, what is wrong with it, and how to mend that.

Each check yields findings: a fact, a note (something is not there that some users want), or a fault
(something is there and does not work). The command ends with exit code 1 if there is a fault.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import requires, version
from pathlib import Path
from tempfile import gettempdir
from typing import Annotated

import typer

JSON_SCHEMA = 1
GIB = 2**30
LEAST_MEMORY, LEAST_DISK = GIB, GIB
"""Below these bytes a small model may fail to train."""
COMPILERS = ("c++", "g++", "clang++")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class State(StrEnum):
    """How a finding is."""

    fact = "fact"
    note = "note"
    fault = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Args:
        topic: what it is about: `interpreter`, `packages`, ….
        text: what was found.
        state: how it is.
        remedy: what to do; empty for a fact.
    """

    topic: str
    text: str
    state: State = State.fact
    remedy: str = ""


Check = Callable[[], Iterator[Finding]]


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Look at this machine: packages, devices, libraries, memory; say what to mend."""
    found = [finding for check in CHECKS for finding in check()]
    typer.echo(_as_json(found) if as_json else _as_text(found))
    if any(finding.state is State.fault for finding in found):
        raise typer.Exit(1)


def _as_json(found: Sequence[Finding]) -> str:
    document = {"schema": JSON_SCHEMA, "findings": [asdict(finding) for finding in found]}
    return json.dumps(document, indent=2)


def _as_text(found: Sequence[Finding]) -> str:
    width = max(len(finding.topic) for finding in found)
    lines = []
    for finding in found:
        mark = "" if finding.state is State.fact else f"{finding.state}: "
        lines.append(f"{finding.topic:<{width}}  {mark}{finding.text}")
        if finding.remedy:
            lines.append(f"{'':<{width}}  -> {finding.remedy}")
    counts = {state: sum(x.state is state for x in found) for state in (State.fault, State.note)}
    lines.append(", ".join(f"{count} {state}s" for state, count in counts.items()))
    return "\n".join(lines)


# ------------------------------------------------------------------ checks


def check_interpreter() -> Iterator[Finding]:
    """Say which Python runs, and where."""
    where = "" if sys.prefix != sys.base_prefix else ", no virtual environment"
    yield Finding(
        "interpreter",
        f"{platform.python_implementation()} {platform.python_version()} on {platform.platform()}"
        f"{where}",
    )
    if platform.python_implementation() != "CPython":
        yield Finding(
            "interpreter",
            "layer bodies are read as CPython compiles them",
            State.note,
            "use CPython, or list the names of parts and constants of layers of your own",
        )


def check_packages() -> Iterator[Finding]:
    """Say which versions of the core's packages are installed."""
    from mithril.plugins.requirements import Requirement

    yield Finding("packages", f"mithril-core {version('mithril-core')}")
    for text in requires("mithril-core") or ():
        if "extra ==" in text:
            continue
        needed = Requirement.parse(text)
        found = f"{needed.name} {needed.installed or 'is not installed'}"
        if needed.is_met:
            yield Finding("packages", found)
        else:
            yield Finding("packages", found, State.fault, f"pip install '{text}'")


def check_backends() -> Iterator[Finding]:
    """Open each backend on one device; say what it finds, and what is wrong with the others."""
    from mithril.plugins.discover import Status, discover

    for entry in discover():
        framework = entry.framework
        has = f" on {framework.name} {framework.installed}" if framework else ""
        title = f"{entry.name} ({entry.package} {entry.package_version}{has})"
        if entry.status is Status.ready:
            yield from _open_backend(entry.name, title)
        elif entry.status in (Status.missing, Status.blocked):
            yield Finding("backends", f"{title}: {entry.fact}", State.note, entry.remedy)
        else:
            yield Finding("backends", f"{title}: {entry.fact}", State.fault, entry.remedy)


def check_blas() -> Iterator[Finding]:
    """Say which linear algebra NumPy uses, and how many threads it is given."""
    import numpy as np

    built = np.show_config(mode="dicts")
    blas = (built or {}).get("Build Dependencies", {}).get("blas", {})
    name = blas.get("name", "")
    if name in ("", "none"):
        yield Finding(
            "blas",
            "NumPy was built without a BLAS; its products are slow",
            State.note,
            "install NumPy's own wheels: pip install --force-reinstall numpy",
        )
    else:
        yield Finding("blas", f"NumPy: {name} {blas.get('version', '')}".rstrip())
    threads = [f"{name}={os.environ[name]}" for name in THREADS if name in os.environ]
    if threads:
        yield Finding("blas", f"threads are set by {', '.join(threads)}")


def check_mpi() -> Iterator[Finding]:
    """Say whether MPI is there, which MLX uses for groups of ranks."""
    found = shutil.which("mpirun")
    if found:
        yield Finding("mpi", f"mpirun at {found}")
    else:
        yield Finding(
            "mpi",
            "mpirun is not installed; MLX emulates collectives of a part of the ranks on a ring",
            State.note,
            "install Open MPI if MLX shall use it: apt-get install openmpi-bin libopenmpi-dev",
        )


def check_compilers() -> Iterator[Finding]:
    """Say whether there is a C++ compiler, which torch.compile needs on CPUs."""
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    if found:
        yield Finding("compilers", f"C++ compiler at {found}")
    else:
        yield Finding(
            "compilers",
            "no C++ compiler is installed; TorchBackend(jit=True) needs one on CPUs",
            State.note,
            "install one: apt-get install g++",
        )


def check_memory() -> Iterator[Finding]:
    """Say how many processors and how much memory and disk there are."""
    yield Finding("processors", f"{os.cpu_count()} logical")
    free, total = _read_memory()
    text = f"{free / GIB:.1f} GiB free of {total / GIB:.1f}"
    if free < LEAST_MEMORY:
        yield Finding("memory", text, State.note, "end other programs, or use smaller models")
    else:
        yield Finding("memory", text)
    folder = Path(gettempdir())
    left = shutil.disk_usage(folder).free
    if left < LEAST_DISK:
        yield Finding(
            "disk",
            f"{left / GIB:.1f} GiB are left for temporary files in '{folder}'",
            State.note,
            "make room, or set TMPDIR to a folder with more",
        )
    else:
        yield Finding("disk", f"{left / GIB:.1f} GiB are left for temporary files in '{folder}'")


def check_environment() -> Iterator[Finding]:
    """Say which variables change what Mithril does."""
    for name, value in sorted(os.environ.items()):
        if name.startswith("MITHRIL_"):
            yield Finding("environment", f"{name}={value}")


CHECKS: tuple[Check, ...] = (
    check_interpreter,
    check_packages,
    check_backends,
    check_blas,
    check_mpi,
    check_compilers,
    check_memory,
    check_environment,
)


def _open_backend(name: str, title: str) -> Iterator[Finding]:
    from mithril.cli.faults import read_facts
    from mithril.errors import MithrilError
    from mithril.mesh import Mesh
    from mithril.plugins.opening import open_entry, require

    try:
        engine = open_entry(require(name), Mesh(), {})
        facts = read_facts(engine)
    except MithrilError as error:
        yield Finding(
            "backends",
            f"{title}: cannot be opened",
            State.fault,
            f"{type(error).__name__}: {error}",
        )
        return
    yield Finding("backends", f"{title}: {', '.join(engine.devices)}")
    for label, text in facts.items():
        yield Finding("backends", f"{name} {label}: {text}")


def _read_memory() -> tuple[int, int]:
    """Return the bytes of memory that are free, and all."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    if "SC_AVPHYS_PAGES" not in os.sysconf_names:  # macOS does not tell
        return total, total
    return page * os.sysconf("SC_AVPHYS_PAGES"), total
