"""Third-party plugins for tests: installed with pip as strangers would, or written on the spot."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.folders import session_folder

PACKAGES = Path(__file__).parent / "plugins"
ALONE = PACKAGES / "alone"
FAULTY = ("broken", "duplicate", "incompatible", "missing")
PREAMBLE = """
from dataclasses import dataclass
from mithril.errors import MeshError
from mithril.plugins import BackendSpec, hookimpl

def never(mesh, options):
    raise AssertionError("opened")

"""


@cache
def installed(*folders: str) -> Path:
    """Install packages of tests/plugins, once a session, and return the folder they are in."""
    return install_projects(session_folder("plugins"), *(PACKAGES / folder for folder in folders))


def install_projects(target: Path, *projects: Path) -> Path:
    """Install projects into a folder, as pip does without a network, and return it."""
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "install", "--quiet", *offline, "--target", str(target)]
    done = subprocess.run(
        [*command, *map(str, projects)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return target


def environment(*paths: Path, **variables: str) -> dict[str, str]:
    """Return an environment in which the packages of some folders are installed, beside the core."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MITHRIL_")}
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)  # where sources are not installed
    searched = [*map(str, (ALONE, *paths)), *filter(None, own)]
    return kept | {"PYTHONPATH": os.pathsep.join(searched)} | variables


def mithril(*arguments: str, path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the `mithril` command in a process of its own."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("mithril")), *arguments],
        env=environment(path, **variables),
        capture_output=True,
        text=True,
        check=False,
    )


def python(code: str, *paths: Path, **variables: str) -> str:
    """Run code in a process of its own and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(*paths, **variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_plugin(
    folder: Path,
    name: str,
    source: str,
    version: str = "1.0",
    group: str = "mithril.backends",
    requires: Sequence[str] = (),
) -> None:
    """Write the distribution `acme-NAME`, which offers the backend NAME, as pip would leave it."""
    (folder / f"acme_{name}.py").write_text(PREAMBLE + source, encoding="utf-8")
    metadata = folder / f"acme_{name}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: acme-{name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {text}\n" for text in requires),
        encoding="utf-8",
    )
    (metadata / "entry_points.txt").write_text(
        f"[{group}]\n{name} = acme_{name}\n", encoding="utf-8"
    )
