"""No modules import each other in a circle, also late or for their types, but for real recursions."""

from __future__ import annotations

import grimp
import pytest

PACKAGES = ("mithril", "mithril_jax", "mithril_torch", "mithril_mlx")
RECURSIONS = {
    # A graph has nodes, a node an op, and an op's gradient builds nodes of a graph on tensors.
    frozenset({"ir.constant", "ir.graph", "ir.op", "ir.operand", "ir.printer", "ir.tensor"}),
    # The gradient of what broadcasts is a sum, and that of a sum broadcasts.
    frozenset({
        "ops.arithmetic", "ops.choice", "ops.elementwise", "ops.functions", "ops.reduce", "ops.shape",
    }),
}  # fmt: skip
"""Modules of the core that have to know each other, and why."""


def find_circles(package: str) -> set[frozenset[str]]:
    """Return the sets of modules of a package that import each other, one way or another."""
    graph = grimp.build_graph(package, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    reached = {module: _reachable(module, imports) for module in imports}
    return {
        frozenset(other.partition(".")[2] for other in found if module in reached[other])
        for module, found in reached.items()
        if module in found
    }


def _reachable(start: str, imports: dict[str, set[str]]) -> set[str]:
    """Return the modules that one imports, directly or through others."""
    found: set[str] = set()
    waiting = list(imports[start])
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += imports[module]
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_only_real_recursions_are_circles(package: str) -> None:
    expected = RECURSIONS if package == "mithril" else set()
    assert find_circles(package) == expected


def test_a_circle_would_be_found() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert _reachable("a", imports) == {"a", "b", "c"}
    assert "d" not in _reachable("d", imports)
