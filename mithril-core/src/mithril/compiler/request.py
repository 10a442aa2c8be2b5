"""What is asked of a plan, and what that means for the values of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mithril.errors import MithrilError
from mithril.ir import Graph, Value
from mithril.ir.rewrite import regions
from mithril.mesh import Mesh, Sharding, carry, coarse, coarsen
from mithril.mesh.refinement import has_same_layout
from mithril.ops.constrain import Constrain
from mithril.sharding import Constraints
from mithril.transform import cotangent_name, gradient_of
from mithril.transform.stack import Slice


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a plan.

    Args:
        inputs: how each input of the graph arrives, by name; missing ones are replicated.
        outputs: how an output must leave, by name; others keep the sharding they are computed in.
        placed: inputs that exist already, in the layout of their sharding.
        compute: inputs whose sharding says how they are computed with (annotated parameters).
        decided_by: who decided the sharding of an input, by name, for `explain`.
        output_gradients: how the gradient of each differentiated output arrives, by output name.
        differentiated: inputs whose gradients are wanted; they come back in the input's sharding.
        homes: values that must lie in a given sharding, by name.
        free: inputs that arrive in the sharding they are computed with.
        at_rest: where inputs, and their gradients, live between uses; for these `inputs` says how
            they are computed with, if it says anything.
        along: how inputs are computed with, where that is another sharding than they arrive in.
        pads: whether a dimension may be split that does not divide; its parts are then padded.
        notes: facts for readers of the plan.
    """

    inputs: Mapping[str, Sharding] = field(default_factory=dict)
    outputs: Mapping[str, Sharding] = field(default_factory=dict)
    placed: frozenset[str] = frozenset()
    compute: frozenset[str] = frozenset()
    decided_by: Mapping[str, str] = field(default_factory=dict)
    output_gradients: Mapping[str, Sharding] | None = None
    differentiated: tuple[str, ...] = ()
    homes: Mapping[str, Sharding] = field(default_factory=dict)
    free: frozenset[str] = frozenset()
    at_rest: Mapping[str, Sharding] = field(default_factory=dict)
    along: Mapping[str, Sharding] = field(default_factory=dict)
    pads: bool = True
    notes: tuple[str, ...] = ()

    def arriving(self) -> dict[str, Sharding]:
        """Return how the arrays lie that exist already."""
        given = {**self.inputs, **self.at_rest}
        given |= {cotangent_name(n): s for n, s in (self.output_gradients or {}).items()}
        return {name: sharding for name, sharding in given.items() if name in self.placed}

    def meshes(self) -> Iterator[Mesh]:
        """Yield the mesh of every sharding: the backend's, or a refinement of it."""
        given = (
            self.inputs, self.outputs, self.output_gradients or {}, self.homes, self.at_rest,
            self.along,
        )  # fmt: skip
        for shardings in given:
            yield from (sharding.mesh for sharding in shardings.values())

    def carried(self, mesh: Mesh) -> Request:
        """Return the request with every sharding said on a finer mesh."""

        def on(shardings: Mapping[str, Sharding]) -> dict[str, Sharding]:
            return {name: carry(sharding, mesh) for name, sharding in shardings.items()}

        gradients = self.output_gradients
        return replace(
            self,
            inputs=on(self.inputs),
            outputs=on(self.outputs),
            output_gradients=None if gradients is None else on(gradients),
            homes=on(self.homes),
            at_rest=on(self.at_rest),
            along=on(self.along),
        )


def of_slices(request: Request, slices: Sequence[Slice]) -> Request:
    """Return a request about stacked parameters as one about the parts they are cut into.

    Args:
        request: about whole stacks.
        slices: the parts.
    """
    parts: dict[str, list[str]] = {}
    for part in slices:
        parts.setdefault(part.stack, []).append(part.name)

    def each(shardings: Mapping[str, Sharding]) -> dict[str, Sharding]:
        found = {name: s for name, s in shardings.items() if name not in parts}
        for stack, names in parts.items():
            if stack in shardings:
                whole = shardings[stack]
                found |= dict.fromkeys(names, Sharding(whole.mesh, ((), *whole.dims[1:])))
        return found

    def names_of(names: Iterable[str]) -> list[str]:
        return [part for name in names for part in parts.get(name, [name])]

    decided = {p: who for n, who in request.decided_by.items() for p in parts.get(n, [n])}
    return replace(
        request,
        inputs=each(request.inputs),
        placed=request.placed - set(parts),
        compute=frozenset(names_of(request.compute)),
        decided_by=decided,
        differentiated=tuple(names_of(request.differentiated)),
        free=frozenset(names_of(request.free)),
        at_rest=each(request.at_rest),
    )


def constraints(graph: Graph, mesh: Mesh, request: Request) -> Constraints:
    """Return the given shardings of a graph's own values, said on a refinement of the mesh."""
    fine = request.carried(mesh)
    arriving, before = dict(fine.inputs), dict(request.inputs)
    for name, sharding in (fine.output_gradients or {}).items():
        arriving[cotangent_name(name)] = sharding
        before[cotangent_name(name)] = (request.output_gradients or {})[name]
    arriving |= fine.at_rest
    before |= request.at_rest
    at_rest = frozenset(value for value in graph.inputs if value.name in fine.at_rest)
    free = frozenset(value for value in graph.inputs if value.name in fine.free)
    inputs: dict[Value, Sharding] = {}
    computed: dict[Value, Sharding] = {}
    ports: dict[Value, Sharding] = {}
    for value in graph.inputs:
        wanted = arriving.get(value.name) or Sharding.replicated(mesh, value.type.rank)
        inputs[value] = wanted
        if value not in at_rest or value.name in fine.inputs:
            computed[value] = fine.inputs.get(value.name, wanted)
        if value.name in fine.along:
            computed[value] = fine.along[value.name]
        if value.name in fine.placed:
            inputs[value] = _met(before[value.name], wanted, value)
            if inputs[value] != wanted:
                ports[value] = before[value.name]
    outputs: dict[str, Sharding] = {}
    exits: dict[str, Sharding] = {}
    tied: dict[str, Value] = {}
    resting: set[str] = set()
    for name, wanted in fine.outputs.items():
        outputs[name] = _met(request.outputs[name], wanted, graph.outputs[name])
        if outputs[name] != wanted:
            exits[name] = request.outputs[name]
    for name in fine.differentiated if fine.output_gradients is not None else ():
        source, gradient = graph.input(name), gradient_of(name)
        if source in free:
            tied[gradient] = source
            continue
        outputs[gradient] = inputs[source]
        if source in at_rest:
            resting.add(gradient)
        if source in ports:
            exits[gradient] = ports[source]
    parts = [part.graph for part in regions(graph)]
    homes = {
        value: fine.homes[value.name]
        for part in parts
        for value in part.values()
        if value.name in fine.homes
    }
    homes |= dict(_constrain(parts, mesh, fine.pads))
    return Constraints(
        mesh=mesh,
        inputs=inputs,
        outputs=outputs,
        computed=computed,
        compute=frozenset(value for value in graph.inputs if value.name in fine.compute),
        homes=homes,
        free=free,
        tied=tied,
        at_rest=at_rest,
        resting=frozenset(resting),
        ports=ports,
        exits=exits,
        pads=fine.pads,
    )


def _constrain(graphs: Iterable[Graph], mesh: Mesh, pads: bool) -> Iterator[tuple[Value, Sharding]]:
    """Yield where the user's code constrains values to lie; on one device there is no choice.

    Raises:
        MeshError: the mesh lacks an axis; the message names the line.
        ShardingError: a dimension does not divide, and padding is refused.
    """
    given = coarse(mesh)
    for graph in graphs if mesh.size > 1 else ():
        for node in graph.nodes:
            if isinstance(node.op, Constrain):
                (value,) = node.outputs
                try:
                    sharding = Sharding.of(given, node.op.spec, value.type.rank)
                    if not pads:
                        sharding.check_even(value.type.shape, "tensor")
                except MithrilError as error:
                    raise type(error)(f"{error} (constrained at {node.where()})") from None
                yield value, carry(coarsen(sharding, value.type.shape), mesh)


def _met(placed: Sharding, wanted: Sharding, value: Value) -> Sharding:
    """Return how an array that exists can be met on a finer mesh: padded parts only as a whole."""
    if has_same_layout(placed, wanted, value.type.shape):
        return wanted
    dims = tuple(
        () if size % wanted.shards_along(d) else wanted.dims[d]
        for d, size in enumerate(value.type.shape)
    )
    return Sharding(wanted.mesh, dims)
