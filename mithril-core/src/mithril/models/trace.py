"""Trace: a model and the types of its inputs become a graph.

Names that need no shapes — inputs, outputs, parameters — can be asked for before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from mithril.errors import GraphError, listing, nearest
from mithril.ir import Builder, Graph, Tensor, Value
from mithril.models.annotations import Annotation
from mithril.models.caller import at
from mithril.models.composition import Composition, Member
from mithril.models.initializers import Initializer
from mithril.models.layer import Layer
from mithril.models.model import Model
from mithril.models.rules import apply_rules
from mithril.models.tracing import SEED, LayerScope, Trace
from mithril.types import TensorType

Traceable = Model | Composition | Layer


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """A model as a graph, and what its names mean.

    Args:
        graph: inputs are the model's inputs, then its parameters, then `seed` if it is used.
        input_names: the model's inputs, in order.
        parameter_names: full names of the parameters, in order.
        initializers: how each parameter starts.
        annotations: the user's wish for each parameter that has one.
        value_names: the value of every connection, layer output and single-output layer path.
        value_annotations: the user's wish for inputs and results, by `model.shard`.
        uses_seed: whether the graph has the hidden input `seed`.
    """

    graph: Graph
    input_names: tuple[str, ...]
    parameter_names: tuple[str, ...]
    initializers: Mapping[str, Initializer]
    annotations: Mapping[str, Annotation]
    value_names: Mapping[str, Value]
    value_annotations: Mapping[Value, Annotation]
    uses_seed: bool


def input_names(model: Traceable) -> tuple[str, ...]:
    """Return the names of a model's inputs.

    Raises:
        GraphError: a lone layer takes any number of inputs, or the model has no layers.
    """
    return _component(model).input_ports


def output_names(model: Traceable) -> tuple[str, ...]:
    """Return the names of a model's outputs.

    Raises:
        GraphError: a lone layer takes any number of inputs, or the model has no layers.
    """
    return _component(model).output_ports


def parameter_names(model: Traceable) -> tuple[str, ...]:
    """Return the full names of a model's parameters, in the order they were added.

    Raises:
        GraphError: a lone layer takes any number of inputs, or the model has no layers.
    """
    prefixes = _parameter_prefixes(_component(model))
    return tuple(f"{prefix}{name}" for layer, prefix in prefixes.items() for name in layer.parameters)


def trace(
    model: Traceable, input_types: Mapping[str, TensorType], *, inference: bool = False
) -> Traced:
    """Return the graph of a model for inputs of these types.

    Args:
        model: a model, its snapshot, or a lone layer.
        input_types: shape and dtype of every input of the model.
        inference: whether dropout and its like do nothing.

    Raises:
        GraphError: an input is missing or unknown, or a layer is wrong.
        ShapeError: shapes do not fit; the message names the layer and the user's line.
        ShardingError: a pattern of `model.shard` matches no name.
    """
    component = _component(model)
    _check_inputs(component, input_types)
    run = Trace(Builder(), inference)
    inputs = {name: run.builder.input(input_types[name], name) for name in component.input_ports}
    walk = _Walk(run, _parameter_prefixes(component))
    walk.record({name: tensor.value for name, tensor in inputs.items()})
    if isinstance(component, Layer):
        path = component.given_name or component.kind
        outputs = walk.layer(component, list(inputs.values()), path, own_prefix="")
        walk.record({path: tensor.value for tensor in outputs.values() if len(outputs) == 1})
    else:
        outputs = walk.composition(component, inputs, "")
    return _finished(run, walk, component, outputs)


@dataclass(slots=True)
class _Walk:
    """Goes through a model in order of its connections and collects what names mean."""

    run: Trace
    prefixes: Mapping[Layer, str]
    traced: set[Layer] = field(default_factory=set)
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
                wires[name] = results[port]
                self._name(results[port], member, port, name, prefix)
        self.record(
            {f"{prefix}{name}": wires[composition.root(name)].value
             for name in (*composition.consumers, *composition.producers)}
        )  # fmt: skip
        return {shown: wires[name] for name, shown in composition.shown.items()
                if name in composition.producers}  # fmt: skip

    def layer(
        self, layer: Layer, operands: list[Tensor], path: str, own_prefix: str
    ) -> dict[str, Tensor]:
        """Trace a layer; return its outputs by port."""
        scope = LayerScope(
            self.run, path, self.prefixes[layer], own_prefix, layer.parameters,
            layer in self.traced, layer.source,
        )  # fmt: skip
        self.traced.add(layer)
        return layer.trace(operands, scope)

    def record(self, names: Mapping[str, Value]) -> None:
        """Remember what names mean; the first meaning of a name stays."""
        for name, value in names.items():
            self.values.setdefault(name, value)

    def _member(
        self, member: Member, operands: Mapping[str, Tensor], prefix: str
    ) -> dict[str, Tensor]:
        path = prefix + member.name
        if isinstance(member.component, Composition):
            return self.composition(member.component, operands, f"{path}.")
        return self.layer(member.component, list(operands.values()), path, f"{path}.")

    def _name(self, tensor: Tensor, member: Member, port: str, name: str, prefix: str) -> None:
        path = prefix + member.name
        lone = len(member.outputs) == 1
        own = path if lone else f"{path}.{port}"
        self.run.builder.named(tensor, own if "." in name else prefix + name)
        self.record({f"{path}.{port}": tensor.value})
        if lone:
            self.record({path: tensor.value})


def _finished(
    run: Trace, walk: _Walk, component: Composition | Layer, outputs: Mapping[str, Tensor]
) -> Traced:
    names = parameter_names(component)
    types = {tensor.value.name: tensor.value for tensor in _inputs_of(run, outputs)}
    if run.seed is not None and SEED in component.input_ports:
        raise GraphError(
            f"input '{SEED}' of the model has the name of the hidden input that layer "
            f"'{run.seed_user}' draws random numbers with; rename the input"
        )
    del types
    graph = run.builder.build({name: outputs[name] for name in component.output_ports})
    by_name = {value.name: value for value in graph.inputs}
    order = [*component.input_ports, *names, *([SEED] if run.seed is not None else [])]
    annotations, value_annotations = _annotations(run, walk, component)
    return Traced(
        replace(graph, inputs=tuple(by_name[name] for name in order)),
        component.input_ports,
        names,
        {name: run.parameters[name].initializer for name in names},
        {name: annotations[name] for name in names if name in annotations},
        walk.values,
        value_annotations,
        run.seed is not None,
    )
