"""Makes docs/notebooks/pjit.ipynb from the scripts of examples/pjit, and runs it.

Each script becomes a heading, its docstring and its code; what they share comes first. `--check`
makes it again and fails where the code or the text differs from the file; times differ always.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "examples/pjit"
NOTEBOOK = ROOT / "docs/notebooks/pjit.ipynb"
ORDER = (
    "device_meshes", "sharded_function", "matmul_strategies", "parallel_linear", "mixed_mlp",
    "matmul_2d", "training_step", "resharding", "benchmark_strategies", "memory_efficient",
    "adaptive",
)  # fmt: skip
INTRODUCTION = """# Sharded functions, on any backend

Made from the scripts of `examples/pjit`; the same code runs on every backend. Here it ran on NumPy,
on eight simulated devices: write `"jax"` for `"numpy"` in the first cell to see it on JAX."""


def main() -> int:
    cells = list(made())
    if "--check" not in sys.argv:
        NOTEBOOK.parent.mkdir(exist_ok=True)
        NOTEBOOK.write_text(json.dumps(notebook(cells), indent=1) + "\n", encoding="utf-8")
        return 0
    stored = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    same = [c["source"] for c in stored] == [c["source"] for c in cells]
    print("the notebook is up to date" if same else "the notebook is old; make it again")
    return int(not same)


def made() -> list[dict[str, object]]:
    """Return the cells, run one after another in one namespace."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    text, code = parts(SCRIPTS / "setting.py")
    cells = [markdown(INTRODUCTION), run(code, namespace)]
    for name in ORDER:
        text, code = parts(SCRIPTS / f"{name}.py")
        title = name.replace("_", " ").capitalize()
        cells += [markdown(f"## {title}\n\n{text}"), run(code, namespace)]
    return cells


def parts(path: Path) -> tuple[str, str]:
    """Return the docstring of a script, and its code without what a notebook has anyway."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    text = ast.get_docstring(tree) or ""
    lines = source.splitlines()[tree.body[0].end_lineno :]
    kept = [x for x in lines if not x.startswith(("from setting import", "from __future__"))]
    return text, re.sub(r"\n{3,}", "\n\n\n", "\n".join(kept).strip())


def run(code: str, namespace: dict[str, object]) -> dict[str, object]:
    shown = io.StringIO()
    with redirect_stdout(shown):
        exec(compile(code, "<notebook>", "exec"), namespace)
    printed = shown.getvalue().splitlines(keepends=True)
    outputs = [{"name": "stdout", "output_type": "stream", "text": printed}] if printed else []
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": outputs,
        "source": code.splitlines(keepends=True),
    }


def markdown(text: str) -> dict[str, object]:
    return {"cell_type": "markdown", "metadata": {}, "source": text.splitlines(keepends=True)}


def notebook(cells: list[dict[str, object]]) -> dict[str, object]:
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    counted = [cell for cell in cells if cell["cell_type"] == "code"]
    for number, cell in enumerate(counted, start=1):
        cell["execution_count"] = number
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


if __name__ == "__main__":
    sys.exit(main())
