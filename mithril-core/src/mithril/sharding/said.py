"""What a search takes as said, as a user would: how batches, sequences and experts are split.

Experts are parameters of which each part is used with activations of its own. In a product of such
a parameter and activations the parts are along a dimension that both have, and the result has, too:
the first one of `ecd,ehd->ech`. Split along it, no device needs parameters of the others;
activations go to where their expert is (Lepikhin et al., "GShard", 2021).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from mithril.ir import Graph, Node, Phase, Rule, Value
from mithril.ir.rewrite import regions
from mithril.mesh import Mesh, Sharding
from mithril.sharding.layout import FREE, UNSAID, Layout
from mithril.sharding.regions import links
from mithril.sharding.search import ANNOTATIONS, Search


@dataclass(frozen=True, slots=True)
class ExpertProduct:
    """A product of activations and a parameter of experts.

    Args:
        parameter: its name.
        dimension: of the parameter, along which there is one expert.
        node: the product.
        at: which of its operands the parameter is.
    """

    parameter: str
    dimension: int
    node: Node
    at: int


def find_experts(graph: Graph, parameters: Collection[str]) -> dict[str, int]:
    """Return the parameters of experts, each with the dimension along which there is one expert.

    Args:
        graph: a global graph.
        parameters: names of inputs.
    """
    return {x.parameter: x.dimension for x in find_expert_products(graph, parameters)}


def find_expert_products(graph: Graph, parameters: Collection[str]) -> Iterator[ExpertProduct]:
    """Yield the products of parameters of experts, in order.

    Args:
        graph: a global graph.
        parameters: names of inputs.
    """
    known = {value: (value.name, 0) for value in graph.inputs if value.name in parameters}
    sources = {link.target: link.source for link in links(graph) if link.slices}
    for part in regions(graph):
        for value in part.graph.inputs:
            if (source := sources.get(value)) in known:
                name, leading = known[source]
                known[value] = name, leading + 1
        for node in part.graph.nodes:
            used = [at for at, value in enumerate(node.inputs) if value in known]
            if not used or node.phase != Phase.forward or node.op.bodies:
                continue
            rule = node.op.rule(
                *(tuple(v.type for v in side) for side in (node.inputs, node.outputs))
            )
            if len(node.inputs) == 1 and rule.operands == rule.results:
                known[node.outputs[0]] = known[node.inputs[0]]  # in another dtype, say
            for at in used:
                name, leading = known[node.inputs[at]]
                for dimension in find_expert_dimensions(rule, at):
                    yield ExpertProduct(name, leading + dimension, node, at)


def find_expert_dimensions(rule: Rule, at: int) -> Iterator[int]:
    """Yield the dimensions of an operand of a product that the others and the result have, too.

    Args:
        rule: of the op.
        at: which operand it is.
    """
    sides = [[factor for dim in dims for factor in dim] for dims in (*rule.operands, *rule.results)]
    made = {factor for dims in rule.results for dim in dims for factor in dim}
    is_product = len(rule.operands) > 1 and not made.issuperset(rule.factors)
    for dimension, dim in enumerate(rule.operands[at]):
        if is_product and len(dim) == 1 and all(dim[0] in side for side in sides):
            yield dimension


def find_sequences(graph: Graph, batches: Collection[str]) -> frozenset[str]:
    """Return the inputs that are batches of sequences: of tokens by number, or of vectors."""
    return frozenset(
        value.name
        for value in graph.inputs
        if value.name in batches and value.type.rank == (3 if value.type.dtype.is_float else 2)
    )


def say_layouts(
    graph: Graph, mesh: Mesh, layouts: Mapping[str, Layout], search: Search | None
) -> Mapping[str, Layout]:
    """Return layouts in which inputs lie over the axes that a search says, as far as these divide.

    Args:
        graph: a global graph.
        mesh: its devices.
        layouts: what is said, by name.
        search: what is searched for; nothing more is said in a space that chooses for itself.
    """
    if search is None or search.spaces != (ANNOTATIONS,):
        return layouts
    said = dict(layouts)
    for value in graph.inputs:
        dims = [
            _find_divisors(mesh, axes, size)
            for axes, size in zip(_list_axes(value, search), value.type.shape, strict=True)
        ]
        if any(dims) and layouts.get(value.name, UNSAID).is_free:
            said[value.name] = Layout(arrives=FREE, computed=Sharding(mesh, tuple(dims)))
    return said


def _list_axes(value: Value, search: Search) -> list[frozenset[str]]:
    """Return over which axes each dimension of an input is to be split."""
    axes: list[Collection[str]] = [()] * value.type.rank
    if value.name in search.experts:
        axes[search.experts[value.name]] = search.expert_axes or ()
    elif value.type.rank and value.name not in search.parameters:
        axes[0] = search.find_axes(value.name) or ()
        if value.name in search.sequences:
            axes[1] = search.sequence_axes or ()
    refused = search.find_refused(value.name)
    return [frozenset(some) - refused for some in axes]


def _find_divisors(mesh: Mesh, axes: Collection[str], size: int) -> tuple[str, ...]:
    """Return the axes, without as many of the first ones as it takes to divide a size."""
    names = [name for name in mesh.names if name in axes and mesh.sizes[name] > 1]
    while names and size % mesh.product(names):
        names.pop(0)
    return tuple(names)
