"""The layers that are recomputed whole: only what enters them is kept.

Without further words these are the outermost layers that repeat (`block_0`, `block_1`, …) and those
beside them. A layer without products of tensors belongs to the one before it: a ReLU is computed
again with the linear layer that feeds it. Otherwise patterns of layer paths say which layers they
are; the last pattern that matches a layer wins, and of layers in each other the outermost counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from mithril.ir import Node
from mithril.ir.rewrite import all_nodes

LayerOf = Callable[[Node], str | None]
"""Returns the path of the layer that a node is recomputed with; None if it is not."""


@dataclass(slots=True)
class _Scope:
    """A layer with the layers in it, in the order in which they run first."""

    path: str
    nodes: dict[Node, bool] = field(default_factory=dict)
    inside: dict[str, _Scope] = field(default_factory=dict)

    def all(self) -> Iterator[tuple[Node, bool]]:
        """Yield its nodes, and those of the layers in it, and whether each is a product."""
        yield from self.nodes.items()
        for scope in self.inside.values():
            yield from scope.all()

    def signature(self) -> frozenset[tuple[str, str]]:
        """Return the layers in it and their products, without its name, sizes and the rest.

        What is shared by layers, such as the number of a device, is computed in the first of them.
        """
        return frozenset(
            (node.scope.removeprefix(self.path), node.op.name if multiplies else "")
            for node, multiplies in self.all()
        )


def find_layers(nodes: Sequence[Node]) -> LayerOf:
    """Return the layers of a forward that may be recomputed whole.

    Args:
        nodes: the early nodes of a graph, without what only brings inputs into place.
    """
    root = _read_scopes(nodes)
    return _join_small(_list_layers(root) or [root]).get


def match_layers(patterns: Mapping[str, str]) -> LayerOf:
    """Return the layers that patterns of their paths mean.

    Args:
        patterns: `all` or `none` by pattern.
    """
    known: dict[str, str | None] = {}

    def layer_of(node: Node) -> str | None:
        if node.scope not in known:
            known[node.scope] = _match(node.scope, patterns)
        return known[node.scope]

    return layer_of


def list_paths(scopes: Iterable[str]) -> list[str]:
    """Return the paths of all layers that nodes of some scopes are in, outer ones first."""
    return sorted({path for scope in scopes for path in list_prefixes(scope)})


def _match(scope: str, patterns: Mapping[str, str]) -> str | None:
    for path in list_prefixes(scope):
        said = [what for pattern, what in patterns.items() if fnmatchcase(path, pattern)]
        if said:
            return path if said[-1] == "all" else None
    return None


def list_prefixes(scope: str) -> list[str]:
    """Return the paths of the layers that something of a scope is in, outermost first."""
    parts = scope.split(".") if scope else []
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _read_scopes(nodes: Sequence[Node]) -> _Scope:
    root = _Scope("")
    known = {"": root}
    for node in nodes:
        if node.scope not in known:
            scope = root
            for path in list_prefixes(node.scope):
                scope = scope.inside.setdefault(path, _Scope(path))
            known[node.scope] = scope
        known[node.scope].nodes[node] = is_product(node)
    return root


def _list_layers(scope: _Scope) -> list[_Scope] | None:
    """Return the layers to recompute in a layer; None if that is one itself."""
    if not scope.inside:
        return None
    inside = list(scope.inside.values())
    if _repeats(inside):
        return [_Scope(scope.path, scope.nodes), *inside] if scope.nodes else inside
    found = [(inner, _list_layers(inner)) for inner in inside]
    if scope.path and all(layers is None for _, layers in found):
        return None
    own = [_Scope(scope.path, scope.nodes)] if scope.nodes else []
    return own + [layer for inner, layers in found for layer in (layers or [inner])]


def _repeats(inside: Sequence[_Scope]) -> bool:
    """Whether layers that are alike make up most of what is in a layer."""
    sizes = {scope.path: sum(1 for _ in scope.all()) for scope in inside}
    alike = Counter(scope.signature() for scope in inside)
    repeated = [scope for scope in inside if alike[scope.signature()] > 1]
    return 2 * sum(sizes[scope.path] for scope in repeated) > sum(sizes.values())


def _join_small(scopes: Sequence[_Scope]) -> dict[Node, str]:
    """Return the layer of each node; one without products belongs to the layer before it."""
    found: dict[Node, str] = {}
    current = ""
    for scope in scopes:
        nodes = dict(scope.all())
        if not current or any(nodes.values()):
            current = scope.path
        found.update(dict.fromkeys(nodes, current))
    return found


def is_product(node: Node) -> bool:
    """Whether a node, or one of its bodies, multiplies tensors."""
    return any(map(_contracts, all_nodes(node)))


def _contracts(node: Node) -> bool:
    if node.op.is_collective or node.op.bodies:
        return False
    if node.op.is_product or len(node.inputs) < 2:
        return node.op.is_product
    return node.op.contracts([v.type for v in node.inputs], [v.type for v in node.outputs])


__all__ = ["LayerOf", "find_layers", "is_product", "list_paths", "list_prefixes", "match_layers"]
