"""What a layer function says about itself: its inputs, configuration, parameters and outputs.

Everything here is known before any shape is, so that names can be listed and options checked when a
layer is made rather than when it is compiled.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mithril.errors import GraphError, OptionError, listing, nearest
from mithril.models.component import check_printable
from mithril.models.unknown import UnknownSize
from mithril.types import Shape, to_python

SHARDING_OPTIONS = (
    "weight_shard_spec",
    "device_mesh",
    "device_mesh_partition",
    "sharding",
    "at_rest",
)
RESERVED = ("name", "device_id", "initializer", *SHARDING_OPTIONS)
"""Options of every layer, which none can have as its own."""
Names = tuple[str, ...]
Declared = Sequence[str] | Callable[..., Sequence[str]]


@dataclass(frozen=True, slots=True)
class Check:
    """What an option's value must be: words for the message, and the test."""

    wanted: str
    holds: Callable[[Any], bool]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


POSITIVE = Check("a positive integer", lambda value: _is_integer(value) and value > 0)
POSITIVE_OR_NONE = Check(
    "a positive integer or None", lambda value: value is None or POSITIVE.holds(value)
)
FINITE = Check("a finite number", lambda value: _is_number(value) and math.isfinite(value))
POSITIVE_NUMBER = Check(
    "a positive, finite number", lambda value: FINITE.holds(value) and value > 0
)
FRACTION = Check(
    "a number from 0 up to, not including, 1", lambda value: _is_number(value) and 0 <= value < 1
)
INTEGER_OR_NONE = Check("an integer or None", lambda value: value is None or _is_integer(value))
SHARE = Check("a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1)
_BY_ANNOTATION = {
    "bool": Check("True or False", lambda value: isinstance(value, bool)),
    "int": Check("an integer", _is_integer),
    "float": Check("a number", _is_number),
    "str": Check("a string", lambda value: isinstance(value, str)),
}


ShapeOf = Callable[[Any], Shape]
"""Gives the shape of a running statistic for the first input of its layer."""
Statistics = Mapping[str, tuple[str, float] | tuple[str, float, ShapeOf | None]]
"""Running statistics by output; see `Statistic`."""


class Statistic(NamedTuple):
    """What an output of a layer is in the next step of training.

    Args:
        port: the input that it is given to.
        start: the number that this begins with.
        shape: gives its shape; without one users have to.
    """

    port: str
    start: float
    shape: ShapeOf | None = None

    def shape_for(self, input: object) -> Shape:
        """Return the shape for the first input of the layer, which has said one.

        Raises:
            GraphError: it gives no shape.
        """
        assert self.shape is not None, f"nothing says the shape of '{self.port}'"
        found = self.shape(input)
        if not isinstance(found, tuple) or not all(map(_is_integer, found)):
            raise GraphError(
                f"statistic '{self.port}' is given the shape {found!r} by its layer, and a shape "
                f"is a tuple of integers; give one, such as input.shape[1:2]"
            )
        return found


@dataclass(frozen=True, slots=True)
class Definition:
    """A layer function, taken apart.

    Args:
        name: the layer's name, such as `Linear`.
        function: the user's function.
        inputs: names of its tensor arguments.
        optional: names of those that default to None, and need not be connected.
        variadic: name of its `*args`, when it takes any number of tensors.
        options: its keyword-only arguments, the configuration.
        outputs: names of what it returns, or a function of options that returns them.
        parameters: names of its parameters, or a function of options that returns them.
        weights: which parameters each entry of `weight_shard_spec` is for.
        checks: what the value of an option must be.
        statistics: outputs that the next step of training takes as inputs.
    """

    name: str
    function: Callable[..., Any]
    inputs: Names
    optional: Names
    variadic: str | None
    options: tuple[inspect.Parameter, ...]
    outputs: Declared
    parameters: Declared
    weights: tuple[Names, ...]
    checks: Mapping[str, Check] = field(default_factory=dict)
    statistics: Mapping[str, Statistic] = field(default_factory=dict)

    def configure(self, values: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return every option's value from positional and named arguments.

        Raises:
            OptionError: too many values, an option twice, one missing, or a value that cannot be.
        """
        names = [option.name for option in self.options]
        if len(values) > len(names):
            raise OptionError(
                f"{self.name} takes {len(names)} options {listing(names)}, not {len(values)} "
                f"values; inputs are connected afterwards: {self.usage()}"
            )
        config = dict(zip(names, values, strict=False))
        for name, value in named.items():
            if name in config:
                raise OptionError(f"{self.name} gets option '{name}' twice; give it once")
            config[name] = value
        for option in self.options:
            if option.name not in config:
                if option.default is inspect.Parameter.empty:
                    raise OptionError(
                        f"{self.name} needs option '{option.name}'; write {self.usage()}"
                    )
                config[option.name] = option.default
        config = {name: to_python(value) for name, value in config.items()}
        for name, value in config.items():
            self._check(name, value)
        return {name: config[name] for name in names}

    @property
    def probed_inputs(self) -> int:
        """How many inputs the function is called with to learn which layers it calls."""
        return len(self.inputs) if self.variadic is None else len(self.inputs) + 1

    def parameter_names(self, config: Mapping[str, Any]) -> Names:
        """Return the parameters a layer with this configuration has."""
        names = _evaluate_declared(self.parameters, config, f"parameter of layer {self.name}")
        ports = (*self.inputs, *self.optional, *self.output_names(config), self.variadic)
        for name in names:
            if name in ports or names.count(name) > 1:
                raise GraphError(
                    f"layer {self.name} has two things called '{name}' among its inputs, outputs "
                    f"and parameters; rename one"
                )
        return names

    def output_names(self, config: Mapping[str, Any]) -> Names:
        """Return the outputs a layer with this configuration has."""
        return _evaluate_declared(self.outputs, config, f"output of layer {self.name}")

    def usage(self) -> str:
        """Return how the layer is written, for messages.

        >>> from mithril.models import Linear
        >>> Linear.definition.usage()
        'Linear(dimension=…)(input=…, output=…)'
        """
        required = [o.name for o in self.options if o.default is inspect.Parameter.empty]
        config = ", ".join(f"{name}=…" for name in required)
        variadic = [f"{self.variadic}=[…]"] if self.variadic else []
        wires = [f"{name}=…" for name in self.inputs] + variadic
        wires += ["output_0=…"] if callable(self.outputs) else [f"{n}=…" for n in self.outputs]
        return f"{self.name}({config})({', '.join(wires)})"

    def _check(self, name: str, value: Any) -> None:
        if isinstance(value, UnknownSize):
            return  # a layer that another one calls, before shapes are known
        option = next(option for option in self.options if option.name == name)
        check = self.checks.get(name) or _BY_ANNOTATION.get(_annotation(option))
        if check is not None and not check.holds(value):
            raise OptionError(
                f"{self.name} option '{name}' is {value!r}; it must be {check.wanted}"
            )


def _evaluate_declared(declared: Declared, config: Mapping[str, Any], what: str) -> Names:
    if callable(declared):
        wanted = inspect.signature(declared).parameters
        declared = declared(**{name: config[name] for name in wanted})
    names = tuple(declared)
    for name in names:
        check_printable(name, what)
    return names


def define(
    function: Callable[..., Any],
    parameters: Declared,
    outputs: Declared,
    weights: Sequence[Sequence[str]] | None,
    checks: Mapping[str, Check] | None,
    statistics: Statistics | None = None,
) -> Definition:
    """Take a layer function apart.

    Raises:
        GraphError: it has no tensor argument, takes `**options`, two ports share a name, an option
            has the name of one that every layer has, or a tensor a default other than None.
    """
    name = function.__name__
    inputs, optional, options, variadic = [], [], [], None
    for argument in _signature(function).parameters.values():
        if argument.kind is inspect.Parameter.KEYWORD_ONLY:
            options.append(_check_not_reserved(name, argument))
        elif argument.kind is inspect.Parameter.VAR_POSITIONAL:
            variadic = argument.name
        elif argument.kind is inspect.Parameter.VAR_KEYWORD:
            raise GraphError(
                f"layer {name} takes **{argument.name}; list its options by name after a *"
            )
        elif argument.default is inspect.Parameter.empty:
            inputs.append(argument.name)
        else:
            optional.append(_optional(name, argument))
    fixed = () if callable(outputs) else tuple(outputs)
    ports = [*inputs, *optional, *([variadic] if variadic else []), *fixed]
    repeated = sorted({port for port in ports if ports.count(port) > 1})
    if repeated:
        raise GraphError(f"layer {name} has an input and an output '{repeated[0]}'; rename one")
    if not inputs and variadic is None:
        raise GraphError(
            f"layer {name} has no input; write def {name}(input, *, option=…), tensors first and "
            f"options after the *"
        )
    unknown = sorted(set(checks or ()) - {option.name for option in options})
    if unknown:
        known = [option.name for option in options]
        raise GraphError(
            f"layer {name} checks '{unknown[0]}', which is not one of its options "
            f"{listing(known)}{nearest(unknown[0], known)}"
        )
    kept = {output: _read_statistic(name, said) for output, said in (statistics or {}).items()}
    for output, (port, *_) in kept.items():
        if output not in fixed or port not in inputs:
            raise GraphError(
                f"layer {name} has statistics '{output}' of '{port}', which are no output and "
                f"input of it; outputs: {listing(fixed)}; inputs: {listing(inputs)}"
            )
    groups = (("weight",),) if weights is None else tuple(tuple(group) for group in weights)
    return Definition(
        name, function, tuple(inputs), tuple(optional), variadic, tuple(options),
        outputs if callable(outputs) else fixed, parameters, groups, dict(checks or {}),
        kept,
    )  # fmt: skip


def _read_statistic(layer: str, said: object) -> Statistic:
    """Return what `statistics=` says of an output.

    Raises:
        GraphError: it is no input, start and function.
    """
    found = Statistic(*said) if isinstance(said, tuple) and len(said) in (2, 3) else None
    is_known = found is not None and isinstance(found.port, str) and _is_number(found.start)
    if found is None or not is_known or not (found.shape is None or callable(found.shape)):
        raise GraphError(
            f"layer {layer} has statistics {said!r}; give the input, the number it begins with, "
            f"and a function from the first input to its shape, such as "
            f'("mean", 0.0, lambda input: input.shape[1:2])'
        )
    return found


def _check_not_reserved(layer: str, option: inspect.Parameter) -> inspect.Parameter:
    if option.name in RESERVED:
        raise GraphError(
            f"layer {layer} has an option '{option.name}', which every layer has; rename it"
        )
    return option


def _optional(layer: str, argument: inspect.Parameter) -> str:
    if argument.default is not None:
        raise GraphError(
            f"layer {layer} gives its input '{argument.name}' the default {argument.default!r}; an "
            f"input that need not be connected is None by default, and options come after a *"
        )
    return argument.name


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except NameError:  # an annotation that exists for type checkers only
        return inspect.signature(function)


def _annotation(option: inspect.Parameter) -> str:
    kind = option.annotation
    return kind if isinstance(kind, str) else getattr(kind, "__name__", "")
