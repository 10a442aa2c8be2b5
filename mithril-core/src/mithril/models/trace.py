"""Trace: a model and the types of its inputs become a graph.

Names that need no shapes — inputs, outputs, parameters — can be asked for before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mithril.errors import GraphError, listing, nearest
from mithril.ir import Graph, Tensor, Value
from mithril.ir.capture import CapturedArray, Convert
from mithril.models.annotations import Annotation
from mithril.models.calls import PartNames
from mithril.models.composition import Composition, Member
from mithril.models.initializers import Initializer
from mithril.models.layer import Layer
from mithril.models.layer_builder import LayerBuilder, describe_values, enter
from mithril.models.parameter_rules import (
    frozen_of,
    list_rules,
    merge_tied_annotations,
    starts_of,
    ties_of,
)
from mithril.models.prefixes import Traceable, component_of, list_declared, parameter_prefixes
from mithril.models.rules import match_rules
from mithril.models.slips import explain_missing
from mithril.models.statistics import find_unsaid
from mithril.models.trace_context import SEED, LayerScope, Trace, UnsaidInput
from mithril.options import AS_THEY_COME, Precision
from mithril.types import TensorType


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """A model as a graph, and what its names mean.

    Args:
        graph: inputs are the model's inputs, then its parameters, then `seed` if it is used.
        input_names: the model's inputs, in order.
        parameter_names: full names of the parameters, in order.
        initializers: how each parameter starts.
        annotations: the user's wish for each parameter that has one.
        at_rest: how parameters are kept between uses, where the user says so.
        value_names: the value of every connection, layer output and single-output layer path.
        value_annotations: the user's wish for inputs and results, by `model.shard`.
        stacked: how many leading dimensions of each parameter only stack the layers of a loop.
        uses_seed: whether the graph has the hidden input `seed`.
        captured: arrays of values that layers use from around them, each a hidden input.
        statistics: outputs that the next step of training takes as inputs: the input of each, and
            the number that it begins with.
    """

    graph: Graph
    input_names: tuple[str, ...]
    parameter_names: tuple[str, ...]
    initializers: Mapping[str, Initializer]
    annotations: Mapping[str, Annotation]
    at_rest: Mapping[str, Annotation]
    value_names: Mapping[str, Value]
    value_annotations: Mapping[Value, Annotation]
    stacked: Mapping[str, int]
    uses_seed: bool
    captured: tuple[CapturedArray, ...] = ()
    statistics: Mapping[str, tuple[str, float]] = field(default_factory=dict)


def input_names(model: Traceable) -> tuple[str, ...]:
    """Return the names of a model's inputs.

    Raises:
        GraphError: a lone layer takes any number of inputs, or the model has no layers.
    """
    return component_of(model).input_ports


def output_names(model: Traceable) -> tuple[str, ...]:
    """Return the names of a model's outputs.

    Raises:
        GraphError: a lone layer takes any number of inputs, or the model has no layers.
    """
    return component_of(model).output_ports


def main_output_names(model: Traceable) -> tuple[str, ...]:
    """Return the names of outputs that are not merely what a layer tells besides its result.

    Raises:
        GraphError: a lone layer takes any number of inputs, or the model has no layers.
    """
    component = component_of(model)
    if isinstance(component, Layer):
        return component.output_ports[:1]
    return component.main_outputs


def parameter_names(model: Traceable) -> tuple[str, ...]:
    """Return the full names of a model's parameters, in the order they were added.

    Raises:
        GraphError: a lone layer takes any number of inputs, or the model has no layers.
    """
    component = component_of(model)
    ties, names = ties_of(component), list_declared(component)
    return tuple(dict.fromkeys(ties.get(name, name) for name in names))


def check_patterns(model: Traceable) -> None:
    """Raise unless all that is said by pattern is said of some name; needs no shapes.

    Raises:
        ShardingError: a pattern of shard or at_rest matches no parameter, layer or connection.
        GraphError: one of freeze, trainable or initialize matches no parameter.
    """
    component = component_of(model)
    if isinstance(component, Composition):
        annotations_of(component)
        resting(component)
        frozen_of(component)
        starts_of(component)


def value_names(model: Composition) -> tuple[str, ...]:
    """Return the names of all connections and layers of a model; needs no shapes."""
    return tuple(_value_names(model, ""))


def _value_names(composition: Composition, prefix: str) -> Iterator[str]:
    for member in composition.members:
        path = f"{prefix}{member.name}"
        yield path
        yield from (f"{prefix}{name}" for _, name in (*member.inputs, *member.outputs))
        yield from _names_inside(member.component, path)


def _names_inside(component: Composition | Layer, path: str) -> Iterator[str]:
    if isinstance(component, Composition):
        yield from _value_names(component, f"{path}.")
        return
    yield from (f"{path}.{value}" for value in component.list_names().values)
    block = component.config.get("block")  # of a Repeat
    if isinstance(block, Layer):
        path = f"{path}.{block.given_name or block.kind}"
        yield path
    if isinstance(block, Composition | Layer):
        yield from _names_inside(block, path)


def trace(
    model: Traceable,
    input_types: Mapping[str, TensorType],
    *,
    inference: bool = False,
    precision: Precision = AS_THEY_COME,
    convert: Convert = describe_values,
) -> Traced:
    """Return the graph of a model for inputs of these types.

    Args:
        model: a model, its snapshot, or a lone layer.
        input_types: shape and dtype of every input of the model; running statistics whose layer
            knows their shape may be left out, and are float32.
        inference: whether dropout and its like do nothing.
        precision: float inputs, parameters and arrays of values are cast to its activation dtype,
            if it is given.
        convert: what makes arrays of the values that layers use from around them; by default they
            are only described.

    Raises:
        GraphError: an input is missing or unknown, or a layer is wrong.
        ShapeError: shapes do not fit; the message names the layer and the user's line.
        ShardingError: a pattern of `model.shard` matches no name.
    """
    component = component_of(model)
    unsaid = find_unsaid(component, input_types)
    _check_inputs(component, [*input_types, *unsaid])
    builder = LayerBuilder(convert, precision)
    run = Trace(builder, inference, precision, ties=ties_of(component))
    inputs: dict[str, Tensor] = {name: UnsaidInput(builder, name) for name in unsaid}
    walk = _Walk(run, parameter_prefixes(component))
    for name in component.input_ports:
        if name not in unsaid:
            given = builder.input(input_types[name], name)
            walk.record({name: given.value})
            inputs[name] = entered = enter(given, precision)
            run.given[entered.value] = given
    if isinstance(component, Layer):
        path = component.given_name or component.kind
        operands = [inputs[name] for name in component.input_ports]
        outputs = walk.layer(component, operands, path, own_prefix="")
        walk.record({n: run.builder.assign_name(tensor, n).value for n, tensor in outputs.items()})
    else:
        outputs = walk.composition(component, inputs, "")
    walk.record({name: inputs[name].value for name in unsaid})
    return _finish(run, walk, component, outputs, builder.captured_arrays)


def trace_inside(
    run: Trace, component: Composition | Layer, inputs: Mapping[str, Tensor], prefix: str
) -> tuple[dict[str, Tensor], Mapping[str, Value]]:
    """Trace a component as a part of a layer; return its outputs, and its values by full name.

    Args:
        run: collects nodes and parameters; these are named as if the component stood alone.
        component: a snapshot or a layer.
        inputs: a tensor for each of its inputs.
        prefix: the path of the layer, with a dot.
    """
    run.ties = ties_of(component)
    walk = _Walk(run, parameter_prefixes(component))
    if isinstance(component, Layer):
        path = prefix + (component.given_name or component.kind)
        made = walk.layer(component, component.order_operands(inputs), path, own_prefix="")
    else:
        made = walk.composition(component, inputs, prefix)
    run.name_parts()
    values = {**run.inner, **walk.values}
    if isinstance(component, Composition):
        mine = {name.removeprefix(prefix): value for name, value in values.items()}
        said = match_rules(component, [*parameter_names(component), *mine])
        run.wishes |= {mine[name]: annotation for name, annotation in said if name in mine}
    return made, values


def trace_part(
    component: Composition, operands: Mapping[str, Tensor], scope: LayerScope
) -> dict[str, Tensor]:
    """Trace a model as a part of a layer's body; return its outputs.

    Args:
        component: its snapshot.
        operands: a tensor for each of its inputs.
        scope: of the part.
    """
    prefixes, start = parameter_prefixes(component), scope.prefix
    ties = {start + name: start + kept for name, kept in ties_of(component).items()}
    scope.trace.ties = {**scope.trace.ties, **ties}
    walk = _Walk(scope.trace, {layer: scope.prefix + name for layer, name in prefixes.items()})
    made = walk.composition(component, operands, f"{scope.path}.")
    scope.trace.record_part(walk.values)
    return made


def list_names(component: Composition) -> PartNames:
    """Return what is known of a model without shapes, for a layer that calls it."""
    values = tuple(_value_names(component, ""))
    names = parameter_names(component)
    rules = tuple(list_rules(component))
    return PartNames(
        names, annotations_of(component), resting(component), values, rules, component.depth
    )


def annotations_of(component: Composition | Layer) -> dict[str, Annotation]:
    """Return the user's annotation of each parameter that has one; needs no shapes."""
    names = list_declared(component)
    found = _of_layers(parameter_prefixes(component))
    if isinstance(component, Composition):
        rules = match_rules(component, [*names, *_value_names(component, "")])
        found += [(name, annotation) for name, annotation in rules if name in names]
    return merge_tied_annotations(found, ties_of(component), "is split")


def _of_layers(prefixes: Mapping[Layer, str]) -> list[tuple[str, Annotation]]:
    """Return what layers say of how their own parameters are split."""
    return [
        (prefix + name, annotation)
        for layer, prefix in prefixes.items()
        for name, annotation in layer.annotations.items()
    ]


def resting(
    component: Composition | Layer, aliases: Mapping[str, str] | None = None
) -> dict[str, Annotation]:
    """Return how the parameters of a component are kept between uses; needs no shapes."""
    also = aliases or {}
    found = [
        (prefix + name, annotation)
        for layer, prefix in parameter_prefixes(component).items()
        for name, annotation in layer.at_rest.items()
    ]
    if isinstance(component, Composition):
        names = [*list_declared(component), *also]
        rules = match_rules(component, names, at_rest=True)
        found += [(also.get(name, name), annotation) for name, annotation in rules]
    return merge_tied_annotations(found, ties_of(component), "rests")


@dataclass(slots=True)
class _Walk:
    """Goes through a model in order of its connections and collects what names mean."""

    run: Trace
    prefixes: Mapping[Layer, str]
    values: dict[str, Value] = field(default_factory=dict)

    def composition(
        self, composition: Composition, inputs: Mapping[str, Tensor], prefix: str
    ) -> dict[str, Tensor]:
        """Trace a model; return its outputs by the names it shows."""
        wires = {name: inputs[composition.shown[name]] for name in composition.open_inputs}
        for member in composition.order:
            operands = {port: wires[composition.root(name)] for port, name in member.inputs}
            results = self._member(member, operands, prefix)
            for port, name in member.outputs:
                wires[name] = self.run.builder.assign_name(
                    results[port], _title(member, name, prefix)
                )
        self._record_connections(composition, wires, prefix)
        return {shown: wires[name] for name, shown in composition.shown.items() if name in wires}

    def layer(
        self, layer: Layer, operands: Sequence[Tensor | None], path: str, own_prefix: str
    ) -> dict[str, Tensor]:
        """Trace a layer; return its outputs by port."""
        if layer.parameters:
            self.run.claim(layer, layer.label, self.prefixes[layer])
        scope = LayerScope(
            self.run, path, self.prefixes[layer], own_prefix, layer.parameters, layer.source
        )
        return layer.trace(operands, scope)

    def record(self, names: Mapping[str, Value]) -> None:
        """Remember what names mean; the first meaning of a name stays.

        A port that is passed an input of the model means that input, not what it is cast to, which
        has no name by which anybody could find it again.
        """
        for name, value in names.items():
            given = self.run.given.get(value)
            self.values.setdefault(name, value if given is None else given.value)

    def _member(
        self, member: Member, operands: Mapping[str, Tensor], prefix: str
    ) -> dict[str, Tensor]:
        path = prefix + member.name
        if isinstance(member.component, Composition):
            return self.composition(member.component, operands, f"{path}.")
        return self.layer(
            member.component, member.component.order_operands(operands), path, f"{path}."
        )

    def _record_connections(
        self, composition: Composition, wires: Mapping[str, Tensor], prefix: str
    ) -> None:
        names = {name: composition.root(name) for name in sorted(composition.names)}
        names |= {shown: name for name, shown in composition.shown.items()}
        for member in composition.members:  # after the connections: a layer may be called as one
            for port, name in member.outputs:
                names.setdefault(f"{member.name}.{port}", name)
            if len(member.outputs) == 1:
                names.setdefault(member.name, member.outputs[0][1])
        self.record({prefix + name: wires[root].value for name, root in names.items()})


def _title(member: Member, name: str, prefix: str) -> str:
    """What a value is called: the user's connection name, or the path of its layer."""
    if "." not in name:
        return prefix + name
    return prefix + (member.name if len(member.outputs) == 1 else name)


def _finish(
    run: Trace,
    walk: _Walk,
    component: Composition | Layer,
    outputs: Mapping[str, Tensor],
    captured: Sequence[CapturedArray],
) -> Traced:
    if run.seed is not None and SEED in component.input_ports:
        raise GraphError(
            f"input '{SEED}' of the model has the name of the hidden input that layer "
            f"'{run.seed_user}' draws random numbers with; rename the input"
        )
    names = parameter_names(component)
    run.name_parts()
    graph = run.builder.build({name: outputs[name] for name in component.output_ports})
    inputs = {value.name: value for value in graph.inputs}
    hidden = [item.name for item in captured] + ([SEED] if run.seed is not None else [])
    order = [*component.input_ports, *names, *hidden]
    walk.record(run.inner)
    matched = _match_annotations(run, walk, component)
    return Traced(
        graph=replace(graph, inputs=tuple(inputs[name] for name in order)),
        input_names=component.input_ports,
        parameter_names=names,
        initializers=_resolve_initializers(run, component),
        annotations=_parameter_annotations(run, walk.prefixes, matched),
        at_rest=resting(component, run.aliases),
        value_names=walk.values,
        value_annotations=run.wishes | {walk.values[n]: a for n, a in matched if n in walk.values},
        stacked={name: found.stacked for name, found in run.parameters.items()},
        uses_seed=run.seed is not None,
        captured=tuple(captured),
        statistics={
            name: (run.statistics[value][0].name, run.statistics[value][1])
            for name, value in graph.outputs.items()
            if value in run.statistics and run.statistics[value][0].name in component.input_ports
        },
    )


def _match_annotations(
    run: Trace, walk: _Walk, component: Composition | Layer
) -> list[tuple[str, Annotation]]:
    if isinstance(component, Layer):
        return []
    return match_rules(component, [*run.parameters, *run.ties, *run.aliases, *walk.values])


def _resolve_initializers(run: Trace, component: Composition | Layer) -> dict[str, Initializer]:
    """Return what draws each parameter: what the model says last, or else its layer."""
    said = starts_of(component)
    return {
        name: said.get(name, found.initializer).resolve(name, found.tensor.shape, found.stacked)
        for name, found in run.parameters.items()
    }


def _parameter_annotations(
    run: Trace, prefixes: Mapping[Layer, str], matched: Sequence[tuple[str, Annotation]]
) -> dict[str, Annotation]:
    found = _of_layers(prefixes)
    for name, annotation in matched:
        full = run.aliases.get(name, name)
        if full in run.parameters or full in run.ties:
            found.append((full, annotation))
    return merge_tied_annotations(found, run.ties, "is split")


def _check_inputs(component: Composition | Layer, given: Collection[str]) -> None:
    wanted = component.input_ports
    extra = [name for name in given if name not in wanted]
    missing = [name for name in wanted if name not in given]
    for name in extra:
        raise GraphError(
            f"{component.label} has no input '{name}'; inputs: {listing(wanted)}"
            f"{nearest(name, missing or wanted)}"
        )
    for name in missing:
        raise GraphError(
            f"{component.label} needs input '{name}'; {explain_missing(component, name)}"
        )
