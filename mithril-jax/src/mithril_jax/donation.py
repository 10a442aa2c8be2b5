"""Which donated input of a program an output takes the memory of.

JAX pairs by order: of the inputs of a shape and dtype that are donated, the first with the first
output of that kind, and so on. An output that then lies in the memory of an input which is still
needed costs a copy of all of it. Here every output is paired with an input that it is made of by
the fewest steps through values of its own kind (of `p - rate * m`, `p` before `m`), and outputs and
donations are put in the order in which JAX finds these pairs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from mithril.spi import Graph, Node, Program, TensorType, Value

REACH = 32
"""Over so many steps is an input looked for; more than any optimiser takes for an update."""


def pair_donated(program: Program, donate: Collection[int]) -> dict[int, int]:
    """Return for outputs, by position, the donated input whose memory they take.

    Args:
        program: what runs on a device.
        donate: positions of inputs that are given up.
    """
    graph = program.graph
    made = list(graph.outputs.values())
    free = {graph.inputs[position]: position for position in sorted(donate)}
    near = sorted(_find_sources(graph, made, free))
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for _, output, source in near:
        if output not in pairs and source not in taken:
            pairs[output] = source
            taken.add(source)
    left = _by_type(graph.inputs, [i for i in sorted(donate) if i not in taken])
    for output, value in enumerate(made):
        if output not in pairs and left.get(value.type):
            pairs[output] = left[value.type].pop(0)
    return pairs


def order_outputs(program: Program, order: Sequence[int], pairs: Mapping[int, int]) -> list[int]:
    """Return positions of outputs in an order in which JAX makes these pairs.

    Outputs change places with those of their own shape and dtype alone.

    Args:
        program: what runs on a device.
        order: how the outputs would stand otherwise.
        pairs: for outputs, the donated input whose memory they take.
    """
    made = list(program.graph.outputs.values())
    last = len(program.graph.inputs)
    alike = {
        type: iter(sorted(positions, key=lambda output: pairs.get(output, last)))
        for type, positions in _by_type(made, order).items()
    }
    return [next(alike[made[output].type]) for output in order]


def name_donations(
    program: Program, donate: Collection[int], pairs: Mapping[int, int]
) -> tuple[int, ...]:
    """Return the positions of inputs that JAX is told of as donated.

    An input for which there are too few outputs would take the place of another one. Where no
    output has its type, JAX may find one of its size.
    """
    used, kinds = set(pairs.values()), {value.type for value in program.graph.outputs.values()}
    inputs = program.graph.inputs
    return tuple(i for i in sorted(donate) if i in used or inputs[i].type not in kinds)


def _find_sources(
    graph: Graph, made: Sequence[Value], free: Mapping[Value, int]
) -> Iterator[tuple[int, int, int]]:
    """Yield (steps, output, input) where an output is made of a donated input of its type."""
    makers, kinds = graph.producers(), {value.type for value in free}
    for output, value in enumerate(made):
        if value.type in kinds:
            for steps, source in _walk_back(value, makers, free):
                yield steps, output, source


def _walk_back(
    value: Value, makers: Mapping[Value, Node], free: Mapping[Value, int]
) -> Iterator[tuple[int, int]]:
    seen, level = {value}, [value]
    for steps in range(REACH):
        below: dict[Value, None] = {}
        for x in level:
            if x in free:
                yield steps, free[x]
            maker = makers.get(x)
            below.update(dict.fromkeys(maker.inputs if maker else ()))
        level = [x for x in below if x.type == value.type and x not in seen]
        seen.update(level)


def _by_type(values: Sequence[Value], positions: Sequence[int]) -> dict[TensorType, list[int]]:
    found: defaultdict[TensorType, list[int]] = defaultdict(list)
    for position in positions:
        found[values[position].type].append(position)
    return dict(found)
