"""Experts under ZeRO's stage 3: tokens travel to them where these are fewer bytes than experts are.

What rests split is gathered by each phase, and its gradient scattered: each device receives three
times the parameter in a step. Experts that rest split along the dimension of which each has one
entry can be left where they are: then rows of tokens go to them and come back, and so do their
gradients, of which each device receives its part alone (Rajbhandari et al., "DeepSpeed-MoE", 2022).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mithril.mesh import Sharding
from mithril.models.trace import Traced
from mithril.sharding import ExpertProduct, find_expert_products
from mithril.units import format_bytes


@dataclass(frozen=True, slots=True)
class Experts:
    """Parameters of the experts of one layer.

    Args:
        dimensions: of each, along which there is one entry an expert.
        nbytes: of those that are multiplied with rows, by name.
        row_bytes: of the rows that enter their first product and leave their last one.
    """

    dimensions: Mapping[str, int]
    nbytes: Mapping[str, int]
    row_bytes: int

    def explain_if_fixed(self, computed: Mapping[str, Sharding], count: int) -> str | None:
        """Return why rows travel to experts where these rest; None if they are better gathered.

        Args:
            computed: what each is computed with, but for the axes that ZeRO splits it over.
            count: of devices over which these axes split the experts.
        """
        parts = {n: x.mesh.product(x.split_axes) for n, x in computed.items()}
        gathered = 3 * sum(size // parts[name] for name, size in self.nbytes.items())
        sent = 2 * self.row_bytes // count
        if sent >= gathered:
            return None
        return (
            f"a step sends {format_bytes(sent)} of rows to the experts and back, and would gather "
            f"{format_bytes(gathered)} of these"
        )


def find_experts_of_layers(traced: Traced) -> Iterator[Experts]:
    """Yield the experts of each layer that has some: parameters said to be stacks that are such."""
    names = [name for name in traced.parameter_names if traced.stacked.get(name)]
    layers: dict[str, list[ExpertProduct]] = {}
    for product in find_expert_products(traced.graph, names) if names else ():
        if product.dimension < traced.stacked[product.parameter]:
            layers.setdefault(_name_layer(product.parameter), []).append(product)
    for layer, products in layers.items():
        yield _describe(traced, products, [n for n in names if _name_layer(n) == layer])


def count_whole_dimensions(traced: Traced) -> Mapping[str, int]:
    """Return how many leading dimensions of parameters only stack layers: not those of experts."""
    experts = find_experts_of_layers(traced)
    return {**traced.stacked, **{n: d for one in experts for n, d in one.dimensions.items()}}


def _name_layer(parameter: str) -> str:
    """Return what the names of all parameters of the same experts begin with.

    >>> _name_layer("block.moe.experts.in.weight")
    'block.moe.experts'
    """
    return parameter.rsplit(".", 2)[0]


def _describe(
    traced: Traced, products: Sequence[ExpertProduct], siblings: Sequence[str]
) -> Experts:
    """Return what experts there are; of stacks beside them, such as biases, each has one, too.

    Args:
        traced: the model.
        products: theirs, in order.
        siblings: all stacks of the same layer.
    """
    first, last = products[0], products[-1]
    dimensions = {name: traced.stacked[name] - 1 for name in siblings}
    dimensions |= {x.parameter: x.dimension for x in products}
    times = max(Counter(x.parameter for x in products).values())
    entering = sum(x.type.nbytes for at, x in enumerate(first.node.inputs) if at != first.at)
    leaving = sum(x.type.nbytes for x in last.node.outputs)
    sizes = {x.parameter: x.node.inputs[x.at].type.nbytes for x in products}
    return Experts(dimensions, sizes, times * (entering + leaving))


__all__ = ["Experts", "count_whole_dimensions", "find_experts_of_layers"]
