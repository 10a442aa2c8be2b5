"""Backends of third parties on real libraries, installed with pip, shown right by the kit alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.plugin_packages import installed, mithril, python
from tests.profiles import quick

NAMES = ("strict", "eager", "dask")


@pytest.fixture(scope="module")
def packages() -> Path:
    return installed(*NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["strict", "eager"])
def test_the_demo_on_four_devices_equals_one(name: str, packages: Path) -> None:
    done = mithril("demo", "--backend", name, "--steps", "3", path=packages)
    assert done.returncode == 0, done.stderr
    losses = re.findall(r"step \d  mesh (\S+)  one device (\S+)", done.stdout)
    assert len(losses) == 3
    for mesh, one in losses:
        assert float(mesh) == pytest.approx(float(one), rel=1e-4)


@quick(lambda name: name != "dask")
@pytest.mark.parametrize("name", NAMES)
def test_steps_of_the_demo_are_those_of_numpy(name: str, packages: Path) -> None:
    """Those of `mithril demo`, without the text that it writes."""
    code = (
        "import mithril as ml\n"
        "from mithril.cli.gpt import Sizes, Trainer, help_text\n"
        f"for name, mesh in (({name!r}, ml.Mesh(data=2, tensor=2)), ('numpy', ml.Mesh())):\n"
        "    trainer = Trainer(help_text(), Sizes(), ml.open_backend(name, mesh))\n"
        "    print(*(trainer.step() for _ in range(2)))\n"
    )
    found, expected = ([*map(float, x.split())] for x in python(code, packages).splitlines())
    assert found == pytest.approx(expected, rel=1e-4)


@quick(lambda name, level: level == "smoke" and name != "dask")
@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("strict", "smoke"),
        ("strict", "full"),
        ("eager", "smoke"),
        ("eager", "basic"),
        ("dask", "smoke"),
    ],
)  # Dask plans each array anew: `basic` takes it a quarter of an hour
def test_the_kit_finds_it_right(name: str, level: str, packages: Path) -> None:
    done = mithril("backends", "check", name, "--level", level, path=packages)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert f"backend '{name}' is good at level {level}" in done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_nothing_but_the_spi_is_imported_from_the_core(name: str) -> None:
    sources = sorted((Path(__file__).parent / "plugins" / name).rglob("*.py"))
    assert len(sources) >= 3
    found = [
        line
        for source in sources
        for line in source.read_text(encoding="utf-8").splitlines()
        if re.match(r"\s*(from|import) mithril", line) and "from mithril.spi import" not in line
    ]
    assert found == []


def test_the_list_imports_neither_library(packages: Path) -> None:
    code = (
        "import sys\n"
        "from mithril.plugins.discover import discover\n"
        "print({entry.name: entry.status.value for entry in discover()})\n"
        "print([name for name in ('dask', 'array_api_strict', 'numpy') if name in sys.modules])\n"
    )
    statuses, imported = python(code, packages).splitlines()
    assert "'dask': 'ready'" in statuses
    assert "'strict': 'ready'" in statuses
    assert imported == "[]"
