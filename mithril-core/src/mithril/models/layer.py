"""Layers: short functions over tensors, made into things a model can hold.

```python
@ml.layer(parameters=("scale",))
def Scale(input: Tensor, *, start: float = 1.0) -> Tensor:
    "Multiply every feature by a learned number."
    return input * ml.parameter("scale", input.shape[-1:], Constant(start))
```

Tensor arguments are the layer's inputs, keyword-only arguments its options; `Scale(start=2.0)` then
makes a layer. A layer is immutable and holds no numbers. The same layer used twice shares its
parameters. A tensor argument that defaults to None is an input that need not be connected. The same
as a class with one method, `apply`, options being its annotated attributes:

```python
@ml.layer(parameters=("scale",))
class Scale:
    "Multiply every feature by a learned number."
    start: float = 1.0

    def apply(self, input: Tensor) -> Tensor:
        return input * ml.parameter("scale", input.shape[-1:], Constant(self.start))
```
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, overload

from mithril.errors import GraphError, MithrilError, OptionError, listing, nearest
from mithril.ir import Source, Tensor
from mithril.ir.source import at, user_source
from mithril.keywords import checked_keywords
from mithril.models.annotations import Annotation, read_annotations, read_at_rest
from mithril.models.calls import PartNames, Parts, call_part, find_parts
from mithril.models.component import Component, check_depth, check_name
from mithril.models.definition import (
    RESERVED,
    SHARDING_OPTIONS,
    Check,
    Declared,
    Definition,
    Statistics,
    define,
)
from mithril.models.initializer_options import read_initializers
from mithril.models.initializers import Initializer
from mithril.models.layer_class import function_of
from mithril.models.trace_context import LayerScope, UnsaidInput, inside
from mithril.ops import cast
from mithril.types import to_python


class Layer(Component["Layer"]):
    """Base of all layers; `ml.layer` makes the subclasses.

    Args:
        values: the layer's options in order.
        name: what the layer is called in a model; counted per class otherwise (`linear_0`).
        options: the layer's options by name, and how its parameters are split:
            `sharding={"weight": P("tensor", None)}`, or `weight_shard_spec` with `device_mesh` and
            `device_mesh_partition` as in the guides; `at_rest=P("data")`, or a mapping like
            that of `sharding`, says how they are kept between uses. `initializer=ml.Normal(0.02)`
            says how its weights start, `initializer={"*.bias": ml.Zeros()}` others by pattern.
            `device_id=2` places the layer on a device, by its flat index in the mesh.

    Raises:
        OptionError: an option is unknown, missing or has a wrong value.
    """

    __slots__ = (
        "annotations",
        "at_rest",
        "config",
        "device_id",
        "given_name",
        "initializers",
        "output_ports",
        "parameters",
        "parts",
        "sharding_options",
        "source",
    )
    definition: ClassVar[Definition]
    annotations: Mapping[str, Annotation]
    at_rest: Mapping[str, Annotation]
    config: Mapping[str, Any]
    device_id: int | None
    given_name: str | None
    initializers: Mapping[str, Initializer]
    output_ports: tuple[str, ...]
    parameters: tuple[str, ...]
    parts: Parts
    sharding_options: Mapping[str, Any]
    source: Source | None

    def __init__(self, *values: Any, name: str | None = None, **options: Any) -> None:
        definition = self.definition
        known = {option.name for option in definition.options}
        _refuse_unknown(definition, known, options)
        config = definition.configure(values, {k: v for k, v in options.items() if k in known})
        source = user_source()
        self.parts = find_parts(definition.function, definition.probed_inputs, config)
        depths = [part.depth for part in self.parts.names]
        check_depth(definition.name, max(depths, default=1) - 1, source)
        names = [part.parameters for part in self.parts.names]
        parameters = tuple(dict.fromkeys(chain(definition.parameter_names(config), *names)))
        self.given_name = None if name is None else check_name(name, f"name of {definition.name}")
        self.config = config
        self.output_ports = definition.output_names(config)
        self.parameters = parameters
        self.source = source
        self.device_id = _device_id(definition.name, options.get("device_id"))
        given = ((option, options.get(option)) for option in SHARDING_OPTIONS)
        self.sharding_options = {option: value for option, value in given if value is not None}
        self.annotations = read_annotations(
            definition.name, parameters, definition.weights, options, at(source)
        )
        self.at_rest = read_at_rest(definition.name, parameters, options.get("at_rest"), at(source))
        for part in self.parts.names:
            self.annotations = {**part.annotations, **self.annotations}
            self.at_rest = {**part.at_rest, **self.at_rest}
        self.initializers = read_initializers(
            definition.name, parameters, definition.weights, options.get("initializer")
        )

    @property
    def label(self) -> str:
        """What messages call the layer."""
        return f"{self.definition.name} '{self.given_name}'" if self.given_name else self.described

    @property
    def kind(self) -> str:
        """The class name as it is counted in names: `linear`, `layer_norm`, `conv2d`."""
        return snake_case(self.definition.name)

    @property
    def input_ports(self) -> tuple[str, ...]:
        """Names of the inputs, without optional ones and one that takes any number of tensors."""
        return self.definition.inputs

    @property
    def optional_ports(self) -> tuple[str, ...]:
        """Names of the inputs that need not be connected."""
        return self.definition.optional

    @property
    def variadic_input(self) -> str | None:
        """Name of the input that takes any number of tensors."""
        return self.definition.variadic

    @property
    def depth(self) -> int:
        """How many models and layers it calls in each other, itself included; 0 if it calls none.

        That is known without shapes, and therefore not of all layers.
        """
        return max((part.depth for part in self.parts.names), default=0)

    connect = Component.__call__

    def order_operands(self, operands: Mapping[str, Tensor]) -> list[Tensor | None]:
        """Return operands by port in the order of the layer's function, None if not connected."""
        names = (*self.input_ports, *self.optional_ports)
        more = [tensor for port, tensor in operands.items() if port not in names]
        return [*(operands.get(name) for name in names), *more]

    def trace(self, inputs: Sequence[Tensor | None], scope: LayerScope) -> dict[str, Tensor]:
        """Run the layer's function on tensors and return its outputs by name.

        Raises:
            GraphError: it returns something else than it declared, leaves a parameter unused, or
                calls layers that could not be listed before.
            ShapeError: the shapes do not fit; the message names the layer.
        """
        scope.initializers = self.initializers
        inputs, statistics = self._widen_statistics(inputs, scope)
        with inside(scope):
            try:
                returned = self.definition.function(*inputs, **self.config)
            except MithrilError as error:
                if f"'{scope.path}" in str(error):
                    raise
                raise type(error)(f"{error} (in layer '{scope.path}'{at(scope.source)})") from error
        self._check_parameters(scope)
        made = self._outputs(returned, scope)
        return self._narrow_outputs(made, statistics, scope) if statistics else made

    def _widen_statistics(
        self, inputs: Sequence[Tensor | None], scope: LayerScope
    ) -> tuple[Sequence[Tensor | None], Mapping[str, Tensor]]:
        """Return the inputs, and running statistics by port as they come into the model.

        Where the model computes in a narrower dtype than they come in, small changes to them would
        be lost: the layer has them as they come.
        """
        kept = {statistic.port: statistic for statistic in self.definition.statistics.values()}
        if not kept:
            return inputs, {}
        passed, statistics = list(inputs), dict[str, Tensor]()
        named = list(zip(self.definition.inputs, inputs, strict=False))
        first = next((x for port, x in named if port not in kept), None)
        for place, (port, x) in enumerate(named):
            if isinstance(x, UnsaidInput):
                x.settle(kept[port].shape_for(first))
            if port in kept and x is not None:
                statistics[port] = come = scope.trace.given.get(x.value, x)
                passed[place] = come if come.dtype.itemsize > x.dtype.itemsize else x
        return passed, statistics

    def _narrow_outputs(
        self, made: dict[str, Tensor], statistics: Mapping[str, Tensor], scope: LayerScope
    ) -> dict[str, Tensor]:
        """Return statistics in the dtype that they came in, other outputs in that of the model.

        Scalars, such as losses, stay as they are.
        """
        known, narrow = self.definition.statistics, scope.trace.precision
        found = dict(made)
        for output, x in made.items():
            statistic = known.get(output)
            came = statistics.get(statistic.port) if statistic is not None else None
            if statistic is not None and came is not None:
                found[output] = cast(x, came.dtype)
                scope.trace.statistics[found[output].value] = came.value, statistic.start
            elif narrow.is_given and x.dtype.is_float and x.ndim:
                found[output] = cast(x, narrow.activations)
        return found

    def list_names(self) -> PartNames:
        """Return what is known of the layer without shapes, for a layer that calls it."""
        values = chain.from_iterable(part.values for part in self.parts.names)
        rules = chain.from_iterable(part.rules for part in self.parts.names)
        return PartNames(
            self.parameters, self.annotations, self.at_rest, tuple(values), tuple(rules), self.depth
        )

    def trace_part(self, operands: Mapping[str, Tensor], scope: LayerScope) -> dict[str, Tensor]:
        """Run the layer as a part of another one and return its outputs by name.

        Raises:
            GraphError: it is placed on a device, which only layers of a model are.
        """
        if self.device_id is not None:
            raise GraphError(
                f"{self.label} is called in layer '{scope.path.rpartition('.')[0]}' with "
                f"device_id={self.device_id}; give device_id to the layer that is added to the "
                f"model"
            )
        return self.trace(self.order_operands(operands), scope)

    def _component(self) -> Layer:
        return self

    def _call_on(self, values: Sequence[object], named: Mapping[str, object]) -> Any:
        return call_part(self, values, named)

    def _check_parameters(self, scope: LayerScope) -> None:
        """Raise unless the body used the parameters that it said, and those of known parts."""
        kind, found = self.definition.name, [*scope.used, *scope.of_parts]
        unused = [name for name in self.parameters if name not in found]
        if unused:
            raise GraphError(
                f"layer '{scope.path}' declares parameter '{unused[0]}' and never uses it; remove "
                f"it from @layer(parameters=…) of {kind}{at(scope.source)}"
            )
        if len(found) > len(self.parameters):
            why = self.parts.stopped or "sizes decide whether it calls them"
            raise GraphError(
                f"layer '{scope.path}' calls layers whose parameters are not known without shapes "
                f"({why}); list them all, @ml.layer(parameters={tuple(found)!r}), for {kind}"
                f"{at(scope.source)}"
            )

    def _outputs(self, returned: object, scope: LayerScope) -> dict[str, Tensor]:
        names = self.output_ports
        if isinstance(returned, Tensor) and len(names) == 1:
            return {names[0]: returned}
        found = returned if isinstance(returned, dict) else {}
        if set(found) == set(names) and all(isinstance(v, Tensor) for v in found.values()):
            return {name: found[name] for name in names}
        shown = f"outputs {listing(found)}" if found else f"{type(returned).__name__}"
        wanted = "a tensor" if len(names) == 1 else f"a dict of tensors {listing(names)}"
        raise GraphError(
            f"layer '{scope.path}' returns {shown} and declares {listing(names)}; return "
            f"{wanted}{at(scope.source)}"
        )

    @property
    def described(self) -> str:
        """The layer as it is written, without how it is split."""
        name = [f"name='{self.given_name}'"] if self.given_name else []
        shown = [
            f"{option.name}={_show(self.config[option.name])}"
            for option in self.definition.options
            if self.config[option.name] != option.default
        ]
        return f"{self.definition.name}({', '.join([*shown, *name])})"

    def __repr__(self) -> str:
        split = [f"{option}={value!r}" for option, value in self.sharding_options.items()]
        split += [] if self.device_id is None else [f"device_id={self.device_id}"]
        split += [f"initializer={dict(self.initializers)!r}"] if self.initializers else []
        start = self.described.removesuffix(")")
        between = ", " if split and not start.endswith("(") else ""
        return f"{start}{between}{', '.join(split)})"


def _show(value: object) -> str:
    """Return an option as it is written; a function by its name, without an address."""
    return getattr(value, "__name__", repr(value)) if callable(value) else repr(value)


@overload
def layer(function: Callable[..., Any], /) -> type[Layer]: ...


@overload
def layer(
    *,
    parameters: Declared = (),
    outputs: Declared = ("output",),
    weights: Sequence[Sequence[str]] | None = None,
    checks: Mapping[str, Check] | None = None,
    statistics: Statistics | None = None,
) -> Callable[[Callable[..., Any]], type[Layer]]: ...


@checked_keywords()
def layer(
    function: Callable[..., Any] | None = None,
    /,
    *,
    parameters: Declared = (),
    outputs: Declared = ("output",),
    weights: Sequence[Sequence[str]] | None = None,
    checks: Mapping[str, Check] | None = None,
    statistics: Statistics | None = None,
) -> type[Layer] | Callable[[Callable[..., Any]], type[Layer]]:
    """Make a layer of a function over tensors; see the module's text for an example.

    Used as `@layer(parameters=(…))`, or bare, as `@layer`, where there are no parameters.

    Positional arguments of the function are its inputs (`*inputs` takes any number; one that is
    None by default need not be connected), keyword-only arguments its options. Inside,
    `ml.parameter(name, shape, initializer)` gives a parameter.

    Args:
        function: the function (or class with a method `apply`), when the decorator is used bare.
        parameters: names of the parameters, or a function from options to names, such as
            `lambda bias: ("weight", "bias") if bias else ("weight",)`.
        outputs: names of the outputs, or a function from options to names; the layer's function
            returns a dict when there are several.
        weights: which parameters each entry of a `weight_shard_spec` list is for, by name or
            pattern (`layer_*.weight`); by default the one called `weight`.
        checks: what the value of an option must be.
        statistics: running statistics: by output, the input that a train step gives it to next
            time, the number that this begins with, and a function from the layer's first input
            (statistics aside) to its shape, such as
            `{"new_mean": ("mean", 0.0, lambda input: input.shape[1:2])}`; without the function
            users give the shape. They come, and are kept, in the dtype in which they enter the
            model, where that is wider than what layers compute in; other outputs leave in what
            layers compute in.

    Raises:
        GraphError: the function cannot be a layer; the message says why.
    """

    def decorate(function: Callable[..., Any]) -> type[Layer]:
        if not callable(function):
            raise GraphError(
                f"layer() takes a function over tensors, not {function!r}; write @ml.layer above "
                f"def Scale(input), or a layer that exists, such as ml.Linear(3)"
            )
        if isinstance(function, type):
            function = function_of(function)
        definition = define(function, parameters, outputs, weights, checks, statistics)
        body = {
            "__slots__": (),
            "__doc__": function.__doc__,
            "__module__": function.__module__,
            "__qualname__": function.__qualname__,
            "__signature__": signature_of(definition),
            "definition": definition,
        }
        return type(definition.name, (Layer,), body)

    return decorate if function is None else decorate(function)


def snake_case(name: str) -> str:
    """Return a class name as it is written in paths.

    >>> snake_case("MultiHeadAttention"), snake_case("Conv2d")
    ('multi_head_attention', 'conv2d')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def signature_of(definition: Definition) -> inspect.Signature:
    """Return how a layer is made: its options, required ones first, then those of every layer."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    options = [option.replace(kind=kind) for option in definition.options]
    options.sort(key=lambda option: option.default is not inspect.Parameter.empty)
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in RESERVED
    ]
    return inspect.Signature([*options, *common])


def _refuse_unknown(definition: Definition, known: set[str], options: Mapping[str, Any]) -> None:
    for name in options:
        if name in known or name in RESERVED:
            continue
        names = [option.name for option in definition.options] + list(RESERVED)
        raise OptionError(
            f"{definition.name} has no option '{name}'; options: {listing(names)}"
            f"{nearest(name, names)}"
        )


def _device_id(layer: str, value: Any) -> int | None:
    value = to_python(value)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise OptionError(
        f"{layer} option device_id is {value!r}; give the flat index of a device, from 0"
    )
