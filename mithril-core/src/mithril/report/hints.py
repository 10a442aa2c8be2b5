"""What a plan's author may have meant otherwise.

A weight split over the axis that also splits the activation it meets looks alike in tensor
parallelism and in sharded storage (ZeRO). Only declared intent tells them apart: a compute spec
makes the activation move, `at_rest` the weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mithril.errors import listing
from mithril.ir import Graph, Node, Phase, Value
from mithril.ir.rewrite import regions
from mithril.mesh import Sharding
from mithril.ops.collective import AllToAll
from mithril.sharding import Choice, Constraints, find_expert_dimensions
from mithril.sharding.regions import drop_leading_dim, links


def hints(graph: Graph, given: Constraints, choice: Choice) -> tuple[str, ...]:
    """Return a remark for every parameter that was probably meant to be kept another way."""
    weights = given.binding()
    made = {v: layout.arrival(given.mesh, v.type.rank) for v, layout in given.layouts.items()}
    found: dict[str, None] = {}
    for part in regions(graph):
        for node in part.graph.nodes:
            if node in choice.options:
                made.update(zip(node.outputs, choice.options[node].results, strict=True))
                if node.phase == Phase.forward:
                    found.update(dict.fromkeys(_remarks(node, weights, made, choice)))
    found.update(dict.fromkeys(_remark_dropped_axes(given)))
    found.update(dict.fromkeys(_remark_split_stacks(graph, given, choice)))
    return tuple(found)


def _remark_split_stacks(graph: Graph, given: Constraints, choice: Choice) -> Iterator[str]:
    """Yield a remark on the stacks of a loop that rest split over its repetitions."""
    better: dict[str, list[str]] = {}
    for link in links(graph):
        rest = given.of(link.source).resting
        if link.slices and rest is not None and rest.dims[0]:
            slice_home = choice.home(link.target)
            if slice_home is not None and slice_home != drop_leading_dim(rest):
                split = max(d for d, axes in enumerate(slice_home.dims) if axes)
                short = Sharding(rest.mesh, ((), *slice_home.dims[: split + 1]))
                better.setdefault(repr(short.spec), []).append(link.source.name)
    for spec, names in better.items():
        held = dict.fromkeys(names)
        yield (
            f"stacked {listing(held)} {'rest' if len(held) > 1 else 'rests'} split by repetition, "
            f"and every device needs a part of each; at_rest {spec} would save an "
            f"{AllToAll.name} of the stack whenever it is used"
        )


def _remark_dropped_axes(given: Constraints) -> Iterator[str]:
    """Yield a remark where a parameter at rest is not split over an axis it is computed with."""
    for value, layout in given.layouts.items():
        rest, used = layout.resting, layout.computed
        if rest is None or used is None:
            continue
        dropped = tuple(axis for axis in used.split_axes if axis not in rest.split_axes)
        if dropped:
            both = [
                (*(axis for axis in u if axis in dropped), *r)
                for u, r in zip(used.dims, rest.dims, strict=True)
            ]
            better = Sharding(rest.mesh, tuple(both)).spec
            yield (
                f"parameter '{value.name}' is split over {listing(dropped)} to compute and not "
                f"at rest, so it is laid out anew each time; at_rest {better!r} would keep both"
            )


def _remarks(
    node: Node,
    weights: Mapping[Value, Sharding],
    made: Mapping[Value, Sharding],
    choice: Choice,
) -> Iterator[str]:
    """Yield a remark where an activation must leave the axis that a weight takes."""
    needs = dict(zip(node.inputs, choice.options[node].operands, strict=True))
    for at, weight in enumerate(node.inputs):
        for other in node.inputs:
            if weight not in weights or other in weights or other not in made:
                continue
            for axis in _list_axes_except_experts(node, at, weights[weight]):
                held, needed = (s.dimension_of(axis) for s in (made[other], needs[other]))
                if held is not None and held != needed:
                    where = f" at {node.where()}" if node.scope else ""
                    yield (
                        f"parameter '{weight.name}' and the activation it meets{where} are both "
                        f"split over '{axis}', so the activation is moved; if the parameter is "
                        f"only to be stored split, say at_rest instead of sharding"
                    )


def _list_axes_except_experts(node: Node, at: int, weight: Sharding) -> Iterator[str]:
    """Yield the axes that split a weight, but for those that split it by experts.

    There the activation is moved in order that no expert is.
    """
    types = (tuple(v.type for v in side) for side in (node.inputs, node.outputs))
    by_expert = set(find_expert_dimensions(node.op.rule(*types), at))
    for axis in weight.split_axes:
        if weight.dimension_of(axis) not in by_expert:
            yield axis
