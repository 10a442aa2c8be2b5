"""`mithril backends new`: what it writes installs, is listed, and passes its own tests unchanged."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from mithril.cli.new_backend import FILES, write_backend
from mithril.errors import OptionError

from tests.plugin_packages import environment, install_projects, mithril


@pytest.mark.slow
@pytest.mark.parametrize("on", ["array-api", "torch-like"])
def test_it_passes_unchanged(on: str, tmp_path: Path) -> None:
    name = f"npu-{on.partition('-')[0]}"
    folder = tmp_path / "written"
    if on == "torch-like":
        pytest.importorskip("torch")
        pytest.importorskip("array_api_compat")
    done = mithril("backends", "new", name, "--on", on, "--folder", str(folder), path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("wrote ") == len(FILES)
    site = install_projects(tmp_path / "site", folder)
    assert f"{name} " in mithril("backends", "list", path=site).stdout
    done = mithril("backends", "check", name, "--level", "smoke", path=site)
    assert done.returncode == 0, done.stdout + done.stderr
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    ran = subprocess.run(
        tests, env=environment(site), cwd=folder, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    if on == "array-api":  # PyTorch takes minutes for the text that it writes
        done = mithril("demo", "--backend", name, "--steps", "3", path=site)
        assert "equal within" in done.stdout, done.stderr


def test_names_are_put_in(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    written = write_backend("my-npu", "array-api", "array_api_strict", folder)
    assert {path.relative_to(folder).parts[0] for path in written} >= {"src", "tests", ".github"}
    assert not [
        path for path in written if "$" in path.read_text().replace("$ ", "").replace("${{", "")
    ]
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == "mithril-my-npu"
    assert "array-api-strict" in project["dependencies"]
    assert project["entry-points"]["mithril.backends"] == {"my-npu": "mithril_my_npu.plugin"}
    assert "import array_api_strict as xp" in (folder / "src/mithril_my_npu/arrays.py").read_text()
    assert "class MyNpuEngine(Engine)" in (folder / "src/mithril_my_npu/engine.py").read_text()


def check_style(folder: Path) -> None:
    ruff = str(Path(sys.executable).with_name("ruff"))
    for asked in (("check",), ("format", "--diff")):
        done = subprocess.run(
            [ruff, *asked, str(folder)], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("on", "module"),
    [("array-api", ""), ("array-api", "array_api_strict"), ("array-api", "ml_dtypes"),
     ("torch-like", "")],
)  # fmt: skip
def test_ruff_finds_nothing_in_it(on: str, module: str, tmp_path: Path) -> None:
    write_backend("my-npu", on, module, tmp_path / "x")
    check_style(tmp_path / "x")


@pytest.mark.slow
def test_a_module_that_lacks_functions_is_wrapped(tmp_path: Path) -> None:
    asked = ("backends", "new", "my-npu", "--module", "ml_dtypes", "--folder", str(tmp_path / "x"))
    done = mithril(*asked, path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ml_dtypes lacks " in done.stdout
    assert ", zeros_like; xp.py hands on the others: write these there" in done.stdout
    assert "ml_dtypes lacks bool, int32, float32 among its dtypes, without which no" in done.stdout
    assert "float16, float64: the backend is without them" in done.stdout
    assert "bfloat16" not in done.stdout
    assert "ml_dtypes lacks the extension linalg: cholesky, det, " in done.stdout
    assert "triangular_solve are missing until xp.py has it" in done.stdout
    source = tmp_path / "x" / "src" / "mithril_my_npu"
    assert "linalg.cholesky" in (source / "xp.py").read_text()
    assert "import ml_dtypes as library\n" in (source / "xp.py").read_text()
    assert "astype, atan2" not in (source / "xp.py").read_text()
    assert "from mithril_my_npu import xp\n" in (source / "arrays.py").read_text()
    for member in ("dtype_name", "dtype_remedy", "wait_for"):
        assert f"    # def {member}(self" in (source / "engine.py").read_text()


def test_the_distribution_of_a_module_is_required(tmp_path: Path) -> None:
    write_backend("my-npu", "array-api", "absl", tmp_path / "x")
    project = tomllib.loads((tmp_path / "x" / "pyproject.toml").read_text())["project"]
    assert "absl-py" in project["dependencies"]
    assert '("absl-py",)' in (tmp_path / "x/src/mithril_my_npu/plugin.py").read_text()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda x: x | {"name": "My_NPU"}, r"^backend name 'My_NPU' is not written as names of packages"),
        (lambda x: x | {"name": "numpy"}, "^backend name 'numpy' is taken; choose one that nobody has"),
        (lambda x: x | {"name": "jax"}, "^backend name 'jax' is taken"),
        (lambda x: x | {"on": "torchlike"}, "^--on 'torchlike' is unknown; write 'array-api', 'torch-like'; did"),
        (lambda x: x | {"on": "torch-like", "module": "cupy"}, "^--module cupy is of libraries with the array API; leave"),
        (lambda x: x | {"module": "a b"}, "^--module 'a b' is no name of a module; write it as in import"),
        (lambda x: x | {"module": "not_here"}, "^--module not_here cannot be imported; ModuleNotFoundError: No module named 'not_here'; install the library in this"),
        (lambda x: x | {"folder": Path()}, r"^folder \. is there already; choose another one with --folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused(
    change: Callable[[dict[str, object]], dict[str, object]], text: str, tmp_path: Path
) -> None:
    asked = {"name": "npu", "on": "array-api", "module": "", "folder": tmp_path / "x"}
    with pytest.raises(OptionError, match=text):
        write_backend(**change(asked))  # type: ignore[arg-type]
    assert not (tmp_path / "x").exists()


def test_a_folder_that_cannot_be_written() -> None:
    with pytest.raises(OptionError, match=r"cannot be written; .*; choose another --folder"):
        write_backend("mine", "array-api", "", Path("/proc/mine"))
