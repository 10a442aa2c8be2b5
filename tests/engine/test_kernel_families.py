"""An op's kernel stands in the module of the same name in every backend: that of the core's."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from mithril import ops
from mithril.ir import Constant, registry

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "mithril-core/src/mithril/engine"
SHARED = ENGINE / "standard"
NUMPY = ENGINE / "kernels"
BACKENDS = sorted(ROOT.glob("mithril-*/src/mithril_*/kernels"))
REGISTERS = {"kernel", "same", "same_name", "register", "register_same"}


def names_in(node: ast.expr, tables: dict[str, ast.Dict]) -> Iterator[str]:
    """Yield the classes that an expression of a registration names: `ops.Add`, `*_TABLE`, `{…}`."""
    if isinstance(node, ast.Starred):
        yield from names_in(node.value, tables)
    elif isinstance(node, ast.Name) and node.id in tables:
        yield from names_in(tables[node.id], tables)
    elif isinstance(node, ast.Dict):
        yield from (ast.unparse(key).split(".")[-1] for key in node.keys if key)
    elif isinstance(node, ast.Tuple):
        for item in node.elts:
            yield from names_in(item, tables)
    elif isinstance(node, ast.Name | ast.Attribute):
        yield ast.unparse(node).split(".")[-1]


def registered(path: Path) -> set[str]:
    """Return the names of the classes that a module registers kernels for."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tables = {
        ast.unparse(target): node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).split(".")[-1]
            if called in REGISTERS:
                found.update(name for x in node.args for name in names_in(x, tables))
        elif isinstance(node, ast.For):
            found.update(names_in(node.iter, tables))
    return found & classes()


def classes() -> set[str]:
    return {op.__name__ for op in registry().values()}


def families(folder: Path) -> dict[str, str]:
    """Return for each op class the module of a package that has its kernel."""
    return {name: path.stem for path in sorted(folder.glob("*.py")) for name in registered(path)}


def families_of_the_core() -> dict[str, str]:
    """Return those of the kernels for NumPy, and of the shared ones that stand beneath them."""
    return families(SHARED) | families(NUMPY)


def test_numpys_own_kernels_are_of_the_same_families() -> None:
    shared, own = families(SHARED), families(NUMPY)
    both = shared.keys() & own.keys()
    assert len(both) > 30
    assert {name: own[name] for name in both} == {name: shared[name] for name in both}


def test_the_core_has_a_family_for_every_op() -> None:
    found = families_of_the_core()
    assert found["Add"] == "elementwise"
    assert found[Constant.__name__] == "elementwise"
    assert found[ops.Cumsum.__name__] == "reduce"
    collectives = {op.__name__ for op in registry().values() if op.is_collective}
    assert {"MaxPool", "Rope", "MoeCombine", "TakeShard", "After"} <= found.keys()
    assert not found.keys() & collectives


def test_there_are_three_other_backends() -> None:
    assert [path.parent.name for path in BACKENDS] == [
        "mithril_jax",
        "mithril_mlx",
        "mithril_torch",
    ]


@pytest.mark.parametrize("folder", BACKENDS, ids=lambda path: path.parent.name)
def test_families_are_those_of_the_core(folder: Path) -> None:
    core, found = families_of_the_core(), families(folder)
    apart = {
        name: (home, core[name]) for name, home in found.items() if core.get(name, home) != home
    }
    assert apart == {}
    assert len(found.keys() & core.keys()) > 50
