"""`mithril.spi` offers what the backends need: lazily, once, and nothing else of the core is used."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from mithril import spi
from mithril.engine import Engine
from mithril.ir import registry
from mithril.spi import ops

from tests.plugin_packages import python

ROOT = Path(__file__).parent.parent.parent
CORE = ROOT / "mithril-core/src/mithril"
BACKENDS = sorted(
    path for name in ("jax", "torch", "mlx") for path in ROOT.glob(f"mithril-{name}/src/**/*.py")
)
OWN = {CORE / "engine/numpy_engine.py": {"mithril.engine.kernels", "mithril.engine.kernels.writing"}, CORE / "plugins/numpy.py": {
    "mithril.engine.numpy_engine"
}}  # fmt: skip
"""The modules of the NumPy backend, and which of its own modules each may import beside spi."""
INSIDE = {"MarkGradient"}
"""Ops that a pass of the core takes out again: no engine sees them."""


def imported(path: Path) -> set[str]:
    """Return the modules of the core that a file imports, wherever and for whatever it does."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.partition(".")[0] == "mithril"}


@pytest.mark.parametrize(
    "path", [*BACKENDS, *OWN], ids=lambda path: f"{path.parent.name}.{path.stem}"
)
def test_a_backend_imports_nothing_else_of_the_core(path: Path) -> None:
    """Imports for types alone count here, which import-linter leaves out."""
    assert imported(path) - OWN.get(path, set()) <= {"mithril.spi", "mithril.spi.ops"}


def test_there_are_backends_to_check() -> None:
    assert len(BACKENDS) > 100


def type_checked(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the module of every name that a type checker sees, and the name there and here."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                assert isinstance(statement, ast.ImportFrom)
                for alias in statement.names:
                    yield str(statement.module), ast.unparse(alias)


def test_type_checkers_see_what_there_is() -> None:
    said = [(home, name) for home, names in spi._HOMES.items() for name in names]
    seen = [pair for pair in type_checked(Path(spi.__file__)) if pair[1] != "ops"]
    assert sorted(said) == sorted(seen)
    assert sorted(spi.__all__) == sorted([*spi._HOME_OF, "ops"])
    assert set(spi.__all__) <= set(dir(spi))


@pytest.mark.parametrize("name", spi.__all__)
def test_each_name_is_found_and_explained(name: str) -> None:
    assert getattr(spi, name) is not None
    assert f"`{name}`" in (spi.__doc__ or "") or name == "ops"


def test_the_ops_are_all_there() -> None:
    """Those of docstrings, which are run in the names of their modules, stay in their examples."""
    found = [op for op in registry().values() if op.__module__.startswith("mithril.")]
    own = {op.__name__ for op in found if hasattr(sys.modules[op.__module__], op.__name__)}
    assert own - INSIDE <= set(ops.__all__)
    assert spi.ops is ops


def test_a_plugin_module_stays_light() -> None:
    code = (
        "import sys\n"
        "from mithril.spi import BackendSpec, LaunchRequest, free_port, hookimpl\n"
        "heavy = {'numpy', 'mithril.engine', 'mithril.ops', 'mithril.ir', 'mithril.plan'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert python(code, CORE.parent).strip() == "[]"


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(AttributeError, match=r"mithril\.spi has no 'BackendSpek'.*BackendSpec"):
        spi.BackendSpek  # noqa: B018
    with pytest.raises(
        AttributeError, match=r"has no 'xyzzy'; dir\(mithril\.spi\) lists what there is"
    ):
        spi.xyzzy  # noqa: B018


def test_a_deprecated_name_works_and_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    said = spi.Deprecated("mithril.engine:Engine", (2, 7), "write Engine")
    monkeypatch.setitem(spi.DEPRECATED, "OldEngine", said)
    text = (
        "mithril.spi.OldEngine is deprecated since backend API 2.7; write Engine; backend API 3.0 "
        "is without it"
    )
    for _ in range(2):  # not once only
        with pytest.warns(DeprecationWarning) as warned:
            assert spi.OldEngine is Engine
        assert [str(one.message) for one in warned] == [text]
        assert warned[0].filename == __file__


@pytest.mark.parametrize("name", spi.DEPRECATED)
def test_deprecated_names_lead_somewhere(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert getattr(spi, name) is not None
    assert name not in spi.__all__


def test_homes_lie_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is offered is of the layers below; import-linter does not see imports by name."""
    below = {"engine", "errors", "ir", "mesh", "option_checks", "plan", "plugins", "types"}
    assert {home.split(".")[1] for home in spi._HOMES} <= below
    assert all(import_module(home) for home in spi._HOMES)
