"""Fails where a docstring documents an argument, under `Args:`, that the signature does not have.

A function has its parameters, and takes any with `**options`; a class has its fields and what its
`__init__`, `__new__` and `__call__` take, and those of its bases here. An entry is
`name: what it is`, `first, second: what both are`, or `*names: …`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("mithril-*/src", "tools", "benchmarks", "examples")
ENTRY = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): ")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def main() -> int:
    files = sorted(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*.py"))
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}
    classes = {
        node.name: node
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path, tree in trees.items()
        for line, text in find_strangers(tree, classes)
    ]
    print("\n".join([*found, f"docstrings: {len(files)} files, {len(found)} unknown arguments"]))
    return int(bool(found))


def find_strangers(
    tree: ast.AST, classes: Mapping[str, ast.ClassDef] | None = None
) -> Iterator[tuple[int, str]]:
    """Yield the line, and what is wrong there, of each argument that is documented and not there.

    Args:
        tree: of a module.
        classes: by name, for the fields of bases.

    >>> list(find_strangers(ast.parse('def f(x):\\n  \"\"\"Do.\\n\\n  Args:\\n    y: a.\\n  \"\"\"')))
    [(1, "'f' documents 'y' under Args:, which it does not take; it takes: 'x'")]
    """
    for node in ast.walk(tree):
        if isinstance(node, Function):
            taken = list_parameters(node)
        elif isinstance(node, ast.ClassDef):
            taken = list_fields(node, classes or {})
        else:
            continue
        if "**" in taken:
            continue
        for name in list_documented(ast.get_docstring(node) or ""):
            if name not in taken:
                own = ", ".join(map(repr, taken)) or "nothing"
                text = f"{node.name!r} documents {name!r} under Args:, which it does not take"
                yield node.lineno, f"{text}; it takes: {own}"


def list_documented(text: str) -> list[str]:
    """Return the names under `Args:` of a docstring.

    >>> list_documented("Do.\\n\\nArgs:\\n    x, y: numbers;\\n        any: of both.\\n    *z: more.\\n")
    ['x', 'y', 'z']
    """
    names: list[str] = []
    least = None  # how far entries are indented; None outside of the section
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if line.strip() == "Args:":
            least, head = 0, indent
        elif least is not None and line.strip():
            least = least or indent
            entry = ENTRY.match(line, least) if indent == least > head else None
            if entry:
                names += [name.strip(" *") for name in entry[1].split(",")]
            elif indent <= head:
                least = None
    return names


def list_parameters(function: Function) -> list[str]:
    """Return the names that a function is given arguments by, `**` among them if those are all."""
    taken = function.args
    every = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs]
    named = [one.arg for one in (*every, taken.vararg) if one is not None]
    return [*named, "**"] if taken.kwarg else named


def list_fields(cls: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> list[str]:
    """Return what an object of a class is made of."""
    names: list[str] = []
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
        elif isinstance(node, Function) and node.name in ("__init__", "__new__", "__call__"):
            names += list_parameters(node)[1:]
    for base in cls.bases:
        name = base.id if isinstance(base, ast.Name) else ""
        if name in classes and classes[name] is not cls:
            names += list_fields(classes[name], classes)
    return names


if __name__ == "__main__":
    sys.exit(main())
