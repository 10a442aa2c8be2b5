"""The scripts of examples/pjit, each run on every installed backend; they check themselves."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "examples/pjit"
SCRIPTS = sorted(path for path in FOLDER.glob("*.py") if path.name != "setting.py")
PACKAGES = {"numpy": "mithril", "jax": "mithril_jax", "mlx": "mithril_mlx"}
QUICK = {
    "numpy": {"mixed_mlp", "resharding", "sharded_function"}, "jax": {"training_step"}, "mlx": set(),
}  # fmt: skip
"""Each starts an interpreter, and on JAX XLA; the notebook shows what all of them print."""


def test_there_are_eleven_and_each_is_in_the_table() -> None:
    assert len(SCRIPTS) == 11
    table = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"`{path.name}`" in table for path in SCRIPTS)


@pytest.mark.slow
@pytest.mark.parametrize("backend", PACKAGES)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script(script: Path, backend: str) -> None:
    if importlib.util.find_spec(PACKAGES[backend]) is None:
        pytest.skip(f"{PACKAGES[backend]} is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), "--backend", backend],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


ALL = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
for path in sys.argv[2:]:
    sys.argv = [path, "--backend", "torch"]
    print("==", path, flush=True)
    runpy.run_path(path, run_name="__main__")
"""


@pytest.mark.slow
def test_all_scripts_on_one_pool_of_workers() -> None:
    """In one process, since a pool is kept and the next script goes on with it."""
    pytest.importorskip("mithril_torch")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ALL, str(FOLDER), *map(str, SCRIPTS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    told = done.stdout.split("== ")[1:]
    assert [part.splitlines()[0] for part in told] == [str(path) for path in SCRIPTS]
    assert all(len(part.splitlines()) > 1 for part in told)


@pytest.mark.slow
def test_the_notebook_is_made_of_them_and_was_run() -> None:
    root = FOLDER.parent.parent
    done = subprocess.run(
        [sys.executable, str(root / "tools/make_notebook.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert (done.returncode, done.stdout) == (0, "the notebook is up to date\n"), done.stderr
    stored = json.loads((root / "docs/notebooks/pjit.ipynb").read_text(encoding="utf-8"))
    code = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert len(code) == 12
    assert all(cell["outputs"] for cell in code[1:])
