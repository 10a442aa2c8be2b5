"""Rules of the house that no tool checks: docstrings, start-up imports, one version, dependencies."""

from __future__ import annotations

import ast
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import mithril
import pytest

from tests.plugin_packages import python

ROOT = Path(__file__).parent.parent
PROJECTS = sorted(ROOT.glob("mithril-*/pyproject.toml"))
MODULES = sorted(path for project in PROJECTS for path in project.parent.glob("src/**/*.py"))


def metadata(project: Path) -> dict[str, object]:
    table: dict[str, object] = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    return table


def test_there_are_modules_to_check() -> None:
    assert ROOT / "mithril-core/src/mithril/errors.py" in MODULES


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_opens_with_what_it_promises(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring
    assert len(docstring) > 20


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.parent.name)
def test_all_packages_have_one_version(project: Path) -> None:
    assert metadata(project)["version"] == version("mithril-core") == mithril.__version__


def test_the_changelog_tells_what_is_unreleased() -> None:
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_core_depends_on_what_was_decided() -> None:
    core = metadata(ROOT / "mithril-core/pyproject.toml")["dependencies"]
    decision = (ROOT / "docs/decisions/0001-core-dependencies.md").read_text(encoding="utf-8")
    decided = re.findall(r"^\| (\w+) ≥ ([\d.]+) \|", decision, flags=re.MULTILINE)
    assert isinstance(core, list)
    assert sorted(core) == sorted(f"{name}>={least}" for name, least in decided)


def test_every_package_carries_the_license() -> None:
    license_text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    for project in PROJECTS:
        assert (project.parent / "LICENSE").read_text(encoding="utf-8") == license_text


def test_importing_mithril_imports_nothing_heavy(tmp_path: Path) -> None:
    frameworks = ("jax", "mlx", "torch")
    for framework in frameworks:  # importable, so an import would be seen
        (tmp_path / f"{framework}.py").touch()
    code = "import sys, mithril; print(*(name.partition('.')[0] for name in sys.modules))"
    loaded = set(python(code, tmp_path).split())
    assert not loaded & {*frameworks, "numpy", "pluggy", "rich", "typer"}
    assert "mithril" in loaded
