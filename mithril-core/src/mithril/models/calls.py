"""Layers and models called on tensors, as parts of a layer's body, or of a function.

```python
@ml.layer
def Block(input: Tensor) -> Tensor:
    hidden = ml.Linear(4 * input.shape[-1], name="up")(input)
    return input + ml.Linear(input.shape[-1], name="down")(mnp.tanh(hidden))
```

A part is counted by its kind, or has a name of its own; the names of its parameters follow:
`block_0.up.weight`. A layer that is called again shares its parameters. Which parts a layer has is
learned by running its body once without shapes (`find_parts`), and holds when it is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mithril.errors import GraphError, MithrilError, kind_of, listing
from mithril.ir import Builder, Tensor
from mithril.ir.running import is_within, trace_of_call
from mithril.ir.source import at, user_source
from mithril.models.annotations import Annotation
from mithril.models.component import Connectable, number_ports, refuse_port
from mithril.models.parameter_rule import ParameterRule
from mithril.models.trace_context import LayerScope, Trace, find_traced_layer, inside
from mithril.models.unknown import Guesses, UnknownBuilder, UnknownTensor

MOST_RUNS = 16
"""How often a body is run without shapes, with other guesses at what sizes decide."""


@dataclass(frozen=True, slots=True)
class PartNames:
    """What is known of a layer or model before shapes are.

    Args:
        parameters: names of its parameters.
        annotations: how they are split, where that is said.
        at_rest: how they are kept between uses, where that is said.
        values: names of what it makes inside.
        rules: what it says of its parameters by pattern, and what their names begin with.
        depth: how many models and layers are nested in each other in it.
    """

    parameters: tuple[str, ...]
    annotations: Mapping[str, Annotation]
    at_rest: Mapping[str, Annotation]
    values: tuple[str, ...] = ()
    rules: tuple[tuple[str, ParameterRule], ...] = ()
    depth: int = 0

    def below(self, name: str) -> PartNames:
        """Return the same with names that follow that of a part."""
        return PartNames(
            tuple(f"{name}.{p}" for p in self.parameters),
            {f"{name}.{p}": annotation for p, annotation in self.annotations.items()},
            {f"{name}.{p}": annotation for p, annotation in self.at_rest.items()},
            (name, *(f"{name}.{value}" for value in self.values)),
            tuple((f"{name}.{start}", rule) for start, rule in self.rules),
            self.depth + 1,
        )


class PartTarget(Connectable, Protocol):
    """A layer, or the snapshot of a model."""

    @property
    def given_name(self) -> str | None:
        """The name it was given."""

    @property
    def kind(self) -> str:
        """What it is counted as."""


class Part(Protocol):
    """A layer or model."""

    def _component(self) -> PartTarget: ...

    def list_names(self) -> PartNames:
        """Return what is known of it without shapes."""

    def trace_part(self, operands: Mapping[str, Tensor], scope: LayerScope) -> dict[str, Tensor]:
        """Run it as a part of a layer and return its outputs."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a layer, as far as they are known without shapes.

    Args:
        names: of all parts, below their own names.
        stopped: why the body was not run to its end; empty if it was.
    """

    names: tuple[PartNames, ...] = ()
    stopped: str = ""


def find_parts(function: Callable[..., Any], inputs: int, config: Mapping[str, Any]) -> Parts:
    """Run a layer's body without shapes and return the parts it calls.

    Args:
        function: of the layer.
        inputs: number of its inputs, without those that need not be connected.
        config: its options.
    """
    guesses, first = Guesses(), None
    for _ in range(MOST_RUNS):
        found = _try_parts(function, inputs, config, guesses)
        first = first or found
        if not found.stopped:
            return found
        if not guesses.change():
            break
    assert first is not None, "there was a run"
    return first


def _try_parts(
    function: Callable[..., Any], inputs: int, config: Mapping[str, Any], guesses: Guesses
) -> Parts:
    builder, stopped = UnknownBuilder(guesses), ""
    scope = LayerScope(Trace(builder, inference=False), "", "", "", (), None)
    with inside(scope):
        try:
            function(*(UnknownTensor(builder) for _ in range(inputs)), **config)
        except Exception as error:  # it runs again with shapes, and fails there if it is wrong
            is_ours = isinstance(error, MithrilError)
            stopped = str(error) if is_ours else f"{type(error).__name__}: {error}"
    names = (part.list_names().below(name) for name, part in scope.parts.items())
    return Parts(tuple(names), stopped)


def call_part(part: Part, values: Sequence[object], named: Mapping[str, object]) -> Any:
    """Return what a layer or model makes of tensors; a dict if it has several outputs.

    Args:
        part: the layer or model.
        values: its inputs, in order.
        named: more of them, by name.

    Raises:
        GraphError: an input is missing, unknown, or no tensor; it runs on a device of its own; or
            it has parameters, and no layer is being traced that could have them.
    """
    target, scope = part._component(), find_traced_layer()
    given = _bind_inputs(target, values, named)
    builder = trace_of_call(given.values())
    assert builder is not None, "nothing is called on tensors without a trace"
    if scope is None or not is_within(builder, scope.trace.builder):
        made = _call_in_function(part, target, given, builder)
    elif isinstance(scope.trace.builder, UnknownBuilder):
        _name_part(scope, part, target)
        made = {port: UnknownTensor(scope.trace.builder) for port in target.output_ports}
    else:
        made = _call_in_layer(part, target, given, scope)
    outputs = {port: made[port] for port in target.output_ports}
    return outputs if len(outputs) > 1 else outputs[target.output_ports[0]]


def _call_in_layer(
    part: Part, target: PartTarget, given: Mapping[str, object], scope: LayerScope
) -> dict[str, Tensor]:
    name, names = _name_part(scope, part, target), part.list_names().parameters
    path = f"{scope.path}.{name}"
    inner = LayerScope(
        scope.trace, path, f"{scope.prefix}{name}.", f"{scope.own_prefix}{name}.", names,
        getattr(target, "source", None),
    )  # fmt: skip
    if names:
        scope.trace.claim(target, target.label, inner.prefix)
    tensors = {port: _tensor(x, port, target, scope.trace.builder) for port, x in given.items()}
    made = part.trace_part(tensors, inner)
    scope.of_parts.update(dict.fromkeys(f"{name}.{p}" for p in names))
    ports = target.output_ports
    if len(ports) == 1:
        scope.trace.record_part({path: made[ports[0]].value})
    scope.trace.record_part({f"{path}.{port}": made[port].value for port in ports})
    return made


def _call_in_function(
    part: Part, target: PartTarget, given: Mapping[str, object], builder: Builder
) -> dict[str, Tensor]:
    names, name = part.list_names().parameters, target.given_name or target.kind
    if names:
        raise GraphError(
            f"{target.label} is called in a function{at(user_source())} and has parameters "
            f"{listing(names)}; a function has none of its own: call it in a layer, or pass the "
            f"parameters as arguments and compute with them"
        )
    path = f"{builder.scope}.{name}" if builder.scope else name
    trace = Trace(builder, inference=False, is_function=True)
    scope = LayerScope(trace, path, "", "", (), getattr(target, "source", None))
    tensors = {port: _tensor(x, port, target, builder) for port, x in given.items()}
    return part.trace_part(tensors, scope)


def _name_part(scope: LayerScope, part: Part, target: PartTarget) -> str:
    """Return what a part is called in its layer: the same each time it is called.

    Raises:
        GraphError: another part has the name.
    """
    for name, known in scope.parts.items():
        if known._component() is target:
            return name
    start = scope.section + (target.given_name or target.kind)
    name, number = start, 0
    if target.given_name is None:
        name = f"{start}_0"
        while name in scope.parts:
            number += 1
            name = f"{start}_{number}"
    elif name in scope.parts:
        raise GraphError(
            f"layer '{scope.path}' calls two layers named '{name}'{at(user_source())}; give each a "
            f"name of its own, such as name=f'{name}_{{i}}' in a loop, or call one layer twice"
        )
    scope.parts[name] = part
    return name


def _bind_inputs(
    target: PartTarget, values: Sequence[object], named: Mapping[str, object]
) -> dict[str, object]:
    """Return what is given for each input.

    Raises:
        GraphError: an input is missing or unknown, or there are too many.
    """
    ports, several = (*target.input_ports, *target.optional_ports), target.variadic_input
    more = list(values[len(ports) :])
    given: dict[str, object] = dict(zip(ports, values, strict=False))
    for port, x in named.items():
        if port == several and isinstance(x, list | tuple):
            more += x
        elif port not in ports or port in given:
            raise refuse_port(target, port, is_given=port in given)
        else:
            given[port] = x
    if more and several is None:
        raise GraphError(
            f"{target.label} is called on {len(values)} tensors{at(user_source())} and has "
            f"{len(ports)} inputs: {listing(ports)}; give these"
        )
    given |= zip(number_ports(several or "", len(more)), more, strict=True)
    missing = [port for port in target.input_ports if given.get(port) is None]
    if missing or (several is not None and not more):
        raise GraphError(
            f"{target.label} is called without '{missing[0] if missing else several}'"
            f"{at(user_source())}; it takes {listing((*ports, *filter(None, [several])))}"
        )
    return {port: x for port, x in given.items() if x is not None}


def _tensor(x: object, port: str, target: PartTarget, builder: Builder) -> Tensor:
    found = x if isinstance(x, Tensor) else builder.adopt(x)
    if found is None:
        raise GraphError(
            f"input '{port}' of {target.label} is {kind_of(x)}{at(user_source())}; call it on "
            f"tensors, and on arrays of numbers"
        )
    return found


__all__ = ["Part", "PartNames", "Parts", "call_part", "find_parts"]
