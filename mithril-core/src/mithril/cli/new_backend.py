"""`mithril backends new`: write the package of a new backend, which installs and passes its tests.

What it writes runs every op by the shared kernels of Mithril on the namespace of an array library,
on simulated devices; its author replaces one part after the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.metadata import packages_distributions
from importlib.resources import files
from pathlib import Path
from string import Template
from textwrap import wrap
from types import ModuleType
from typing import Annotated, NamedTuple

import typer

from mithril.errors import OptionError, listing, nearest
from mithril.plugins.discover import names
from mithril.plugins.published import PUBLISHED
from mithril.plugins.spec import BACKEND_API

TEMPLATES = files("mithril.cli") / "backend_template"
FILES = {
    "pyproject.toml": "pyproject.toml.in",
    "README.md": "README.md.in",
    ".gitignore": "gitignore.in",
    ".github/workflows/test.yml": "test.yml.in",
    "src/{package}/__init__.py": "init.py.in",
    "src/{package}/plugin.py": "plugin.py.in",
    "src/{package}/arrays.py": "arrays_{on}.py.in",
    "src/{package}/kernels.py": "kernels_{on}.py.in",
    "src/{package}/engine.py": "engine.py.in",
    "tests/test_backend.py": "test_backend.py.in",
}
"""By the path of a file in the package: the template that it is made from."""
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
CORE = "mithril-core>=0.1,<0.2"


class Kind(NamedTuple):
    """What a package is written on.

    Args:
        module: what is imported.
        namespace: what shared kernels call.
        library: what a text calls it.
        requires: distributions that it needs, the framework first.
    """

    module: str
    namespace: str
    library: str
    requires: tuple[str, ...]


HINT = """
# Where the library differs from the standard (a name, a keyword that it does not take), let `xp` be
# a module of your own that has what differs and hands on the rest: def __getattr__(name).
"""

KINDS = {
    "array-api": Kind(
        *("array_api_compat.numpy",) * 2, "NumPy", ("numpy>=2.0", "array-api-compat>=1.9")
    ),
    "torch-like": Kind(
        "torch", "array_api_compat.torch", "PyTorch", ("torch>=2.4", "array-api-compat>=1.9")
    ),
}
"""By `--on`: a library with the Python array API, or one that has an adapter to it."""


def new(
    name: Annotated[str, typer.Argument(help="Name of the backend: lower case, with hyphens.")],
    on: Annotated[
        str, typer.Option(help="What the library is like: array-api, or torch-like.")
    ] = "array-api",
    module: Annotated[
        str,
        typer.Option(help="Module of a library with the array API, such as array_api_strict."),
    ] = "",
    folder: Annotated[
        Path | None, typer.Option(help="Where it is written; by default mithril-NAME.")
    ] = None,
) -> None:
    """Write the package of a new backend: plugin, engine, two kernels, tests, CI."""
    written = write_backend(name, on, module, folder or Path(f"mithril-{name}"))
    for path in written:
        typer.echo(f"wrote {path}")
    for line in describe_lacking(module) if module else ():
        typer.echo(line)
    typer.echo(
        f"next: cd {folder or f'mithril-{name}'} && pip install -e '.[test]' && "
        f"mithril backends check {name} --level smoke"
    )


def write_backend(name: str, on: str, module: str, folder: Path) -> list[Path]:
    """Write the package of a new backend, and return the paths of its files.

    Args:
        name: of the backend.
        on: a key of `KINDS`.
        module: of the library, if it is another one that has the array API.
        folder: a new one.

    Raises:
        OptionError: the name is taken or is none, the module cannot be imported, or the folder is
            there already.
    """
    _check(name, on, module, folder)
    values = _describe(name, KINDS[on], module)
    written = []
    own = {"src/{package}/xp.py": "xp.py.in"} if values["lacking"] else {}  # a place for it
    for target, template in {**FILES, **own}.items():
        path = folder / target.format(package=values["package"])
        text = (TEMPLATES / template.format(on=on)).read_text(encoding="utf-8")
        _write(path, Template(text).substitute(values))
        written.append(path)
    return written


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError(
            f"file '{path}' cannot be written; {error}; choose another --folder"
        ) from error


def _check(name: str, on: str, module: str, folder: Path) -> None:
    if not NAME.fullmatch(name):
        raise OptionError(
            f"backend name '{name}' is not written as names of packages are; use lower case "
            f"letters, digits and hyphens, such as my-npu"
        )
    if name in PUBLISHED or name in names():
        raise OptionError(f"backend name '{name}' is taken; choose one that nobody has")
    if on not in KINDS:
        raise OptionError(f"--on '{on}' is unknown; write {listing(KINDS)}{nearest(on, KINDS)}")
    if module and on != "array-api":
        raise OptionError(
            f"--module {module} is of libraries with the array API; leave it out with --on {on}"
        )
    if module and not all(part.isidentifier() for part in module.split(".")):
        raise OptionError(f"--module '{module}' is no name of a module; write it as in import")
    if folder.exists():
        raise OptionError(f"folder {folder} is there already; choose another one with --folder")
    if module:
        _import(module)


def _import(module: str) -> ModuleType:
    """Return a module.

    Raises:
        OptionError: it cannot be imported.
    """
    try:
        return import_module(module)
    except Exception as error:  # whatever a library raises where it is not whole
        text = " ".join(str(error).split())
        raise OptionError(
            f"--module {module} cannot be imported; {type(error).__name__}: {text}; install the "
            f"library in this environment, or mend the name"
        ) from None


def find_distribution(package: str) -> str:
    """Return what a package is installed by: by its own name where none or several brought it.

    >>> find_distribution("absl"), find_distribution("no_such_package")
    ('absl-py', 'no-such-package')
    """
    brought = set(packages_distributions().get(package, ()))
    name = brought.pop() if len(brought) == 1 else package
    return re.sub(r"[-_.]+", "-", name).lower()


class Lacking(NamedTuple):
    """What a library does not have of what Mithril asks for, by its names in the standard."""

    functions: Sequence[str] = ()
    dtypes: Sequence[str] = ()
    factorisations: Sequence[str] = ()

    def list_names(self) -> list[str]:
        """Return what the namespace has to have of it, in order; other dtypes may be left out."""
        from mithril.engine.standard.namespace import NEEDED_DTYPES

        dtypes = [name for name in self.dtypes if name in NEEDED_DTYPES]
        return [*sorted([*self.functions, *dtypes]), *self.factorisations]


def find_lacking(module: str) -> Lacking:
    """Return what a module does not have; nothing if it is not here.

    >>> find_lacking("array_api_compat.numpy").list_names(), find_lacking("math").dtypes[:1]
    ([], ['bool'])
    """
    from mithril.engine.standard.namespace import FACTORISATIONS, ArrayNamespace
    from mithril.types import DType

    try:
        library = _import(module)
    except OptionError:  # a library that --on stands for need not be installed
        return Lacking()
    linalg = getattr(library, "linalg", None)
    return Lacking(
        [name for name in ArrayNamespace.__annotations__ if not hasattr(library, name)],
        [dtype.value for dtype in DType if not hasattr(library, dtype.value)],
        [f"linalg.{x}" for x in sorted({*FACTORISATIONS.values()}) if not hasattr(linalg, x)],
    )


def describe_lacking(module: str) -> Iterator[str]:
    """Yield what a library lacks, and what that means for the backend."""
    from mithril.engine.standard.namespace import FACTORISATIONS, NEEDED_DTYPES

    functions, dtypes, factorisations = find_lacking(module)
    if functions:
        yield (
            f"{module} lacks {len(functions)} functions that shared kernels call: "
            f"{', '.join(functions)}; xp.py hands on the others: write these there"
        )
    needed = [name for name in dtypes if name in NEEDED_DTYPES]
    if needed:
        yield (
            f"{module} lacks {', '.join(needed)} among its dtypes, without which no model runs: "
            f"name it in xp.py"
        )
    if len(dtypes) > len(needed):
        others = (name for name in dtypes if name not in needed)
        yield f"{module} lacks the dtypes {', '.join(others)}: the backend is without them"
    if factorisations:
        ops = (op for op, name in FACTORISATIONS.items() if f"linalg.{name}" in factorisations)
        what = ", ".join(factorisations)
        if not hasattr(_import(module), "linalg"):
            what = "the extension linalg"
        yield f"{module} lacks {what}: {', '.join(ops)} are missing until xp.py has it"


def _describe(name: str, kind: Kind, module: str) -> dict[str, str]:
    """Return what stands in the places of the templates."""
    if module and module != kind.module:
        library = module.partition(".")[0]
        kind = Kind(module, module, library, (find_distribution(library),))
    quoted = [f'"{requirement}"' for requirement in kind.requires]
    package = f"mithril_{name.replace('-', '_')}"
    lacking = find_lacking(kind.namespace).list_names()
    imports = ["import numpy as np", *([] if lacking else [f"import {kind.module} as xp"])]
    own = f"\n\nfrom {package} import xp" if lacking else ""
    return {
        "name": name,
        "distribution": f"mithril-{name}",
        "package": package,
        "engine": "".join(part.capitalize() for part in name.split("-")) + "Engine",
        "library": kind.library,
        "module": kind.module,
        "imports": "\n".join([*sorted(imports), f"from mithril.spi import DType{own}"]),
        "hint": "" if lacking else HINT,
        "lacking": "\n".join(
            wrap(", ".join(lacking), 97, initial_indent="# ", subsequent_indent="# ")
        ),
        "requires": f"({', '.join(quoted)}{',' * (len(quoted) == 1)})",
        "dependencies": ", ".join([f'"{CORE}"', *quoted]),
        "api": str(BACKEND_API),
    }
