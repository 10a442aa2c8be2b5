"""Model: layers and models put together by the names of their connections.

```python
model = ml.Model()
model |= ml.Linear(dimension=128)(input="input", output="hidden")
model += ml.Relu()(input="hidden", output="hidden_act")
model += ml.Linear(dimension=10)(input="hidden_act", output="output")
```

A model may be changed at any time; compiling it, or adding it to another model, takes it as it is
at that moment. An operation that fails leaves it as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from mithril.errors import GraphError, OptionError, ShapeError, kind_of, listing, nearest
from mithril.ir import Source, Tensor
from mithril.ir.source import at, user_source
from mithril.mesh import PartitionSpec, Sharding
from mithril.models.calls import PartNames, call_part
from mithril.models.component import Component, Connected, check_name
from mithril.models.composition import (
    AnyComponent,
    AnyConnected,
    Composition,
    ShardRule,
)
from mithril.models.initializer_options import as_initializer
from mithril.models.initializers import Initializer
from mithril.models.joining import join_member, link_ports
from mithril.models.layer import Layer
from mithril.models.outputs import add_output
from mithril.models.parameter_rule import ParameterRule
from mithril.models.parameter_rules import read_rules
from mithril.models.placement import placement_spec_of
from mithril.models.rules import check_rules
from mithril.models.stages import StageRule
from mithril.models.summary import summarize, tabulate
from mithril.models.trace import list_names, parameter_names, trace, trace_part
from mithril.models.trace_context import LayerScope
from mithril.models.wiring import Wiring
from mithril.tables import render_html
from mithril.types import TensorType, as_dtype, to_python


class Model(Component[Composition]):
    """A network of layers, wired by the names of their connections.

    `model |= layer(input="x", output="y")` adds a layer with the connections given, and only those.
    `model += layer` also feeds the last output to the layer's first input that has no connection,
    unless the layer was told to read that output already. Of a layer with several outputs that is
    the one called `output`, or the last if there is none.
    Inputs nobody feeds are the model's inputs, outputs nobody reads its outputs. Models nest; a
    nested model shows only its inputs and outputs, under the same names.

    Args:
        name: what the model is called inside another model; counted otherwise (`model_0`).
    """

    __slots__ = ("_wiring",)

    def __init__(self, *, name: str | None = None) -> None:
        given_name = None if name is None else check_name(name, "name")
        self._wiring = Wiring(Composition(given_name=given_name))

    def __ior__(self, other: AnyConnected | AnyComponent) -> Self:
        """Add a layer or model with the connections it was called with.

        Raises:
            GraphError: a name is taken or ambiguous, or connections form a cycle.
        """
        join_member(self._wiring, self._addable(other), feed=False)
        return self

    def __iadd__(self, other: AnyConnected | AnyComponent) -> Self:
        """Add a layer or model, and feed the last output to its first unconnected input.

        Raises:
            GraphError: a name is taken or ambiguous, or connections form a cycle.
        """
        join_member(self._wiring, self._addable(other), feed=True)
        return self

    def connect(self, *, source: str, destination: str) -> None:
        """Feed an input from another connection.

        A connection `+=` made by itself is replaced; saying the same twice is allowed.

        Args:
            source: an output of some layer, or an input of the model.
            destination: an input nothing else feeds.

        Raises:
            GraphError: a name is unknown or ambiguous, the destination is an output or already fed
                by another explicit connection, or connections form a cycle.
        """
        link_ports(self._wiring, source, destination, user_source())

    def output(self, *names: str) -> None:
        """Make values outputs of the model although later layers read them.

        `model.output("logits")` after a loss was put behind it. Outputs keep the order of their
        layers.

        Args:
            names: connections that a layer makes.

        Raises:
            GraphError: a name is unknown or ambiguous, or that of an input of the model.

        >>> from mithril.models import Linear, MeanSquaredError
        >>> model = Model()
        >>> model |= Linear(4)(input="x", output="guess")
        >>> model += MeanSquaredError()(target="target", output="loss")
        >>> model.output("guess")
        >>> model.outputs
        ('guess', 'loss')
        """
        for name in names:
            add_output(self._wiring, name)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs: of what layers read and none makes."""
        return self._state.input_ports

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs: of what no layer reads, and of what `output` names."""
        return self._state.output_ports

    @property
    def parameters(self) -> tuple[str, ...]:
        """Full names of the parameters, in the order they were added."""
        return parameter_names(self) if self._wiring.members else ()

    def shard(self, rules: Mapping[str, PartitionSpec | Sharding]) -> None:
        """Say how parameters and values are split, by patterns over their full names.

        `model.shard({"*.attn.*.weight": P("tensor", None)})`; the last rule that matches a name
        wins. Patterns are matched when the model is compiled, so layers may be added later.

        Args:
            rules: partition specs, or shardings of arrays, by pattern, with `*`, `?` and `[…]` as
                in `fnmatch`.

        Raises:
            ShardingError: a pattern is not a string, or there is no spec for it.
        """
        self._add_rules(rules, user_source(), at_rest=False)

    def at_rest(self, rules: Mapping[str, PartitionSpec | Sharding]) -> None:
        """Say how parameters are kept between uses, by patterns over their full names.

        `model.at_rest({"*": P("data")})` stores every parameter, its gradient and its optimizer
        state split over `data` (ZeRO-3, fully sharded data parallel): a parameter is gathered
        when a phase needs it, and its gradient scattered. How it is computed with is another
        matter, and said by `shard`.

        Args:
            rules: partition specs by pattern, as in `shard`; patterns match parameters only. One
                that may match many, such as `*`, says nothing of scalars among them.

        Raises:
            ShardingError: a pattern is not a string, or there is no spec for it.
        """
        self._add_rules(rules, user_source(), at_rest=True)

    def stage(self, pattern: str, number: int | Sequence[int] = ()) -> None:
        """Say which stage of a pipeline layers belong to, by a pattern over their paths.

        `model.stage("block_0*", 0)`; the last rule that matches a layer wins, and one for a model
        holds for the layers inside. Layers that no rule matches run where what they read is made.
        How the stages run is said by `mithril.compile(pipeline=…)`.

        Args:
            pattern: with `*`, `?` and `[…]` as in `fnmatch`; matched when the model is compiled.
            number: of the stage, from 0, in the order in which values go through them; for a
                `Repeat` several numbers, over which its repetitions are divided.

        Raises:
            OptionError: the pattern is no string, or the number no integer of 0 or more.
        """
        place, number = user_source(), to_python(number)
        numbers = tuple(number) if isinstance(number, Sequence) else (number,)
        if not isinstance(pattern, str) or not numbers or not all(map(_is_index, numbers)):
            got = f"{pattern!r} and {number!r}" if number != () else f"{pattern!r} alone"
            raise OptionError(
                f"model.stage got {got}{at(place)}; give a name pattern and "
                f'the number of a stage, such as "block_0*", 0'
            )
        stage = number if isinstance(number, int) else numbers
        rules = (*self._state.stage_rules, StageRule(pattern, stage, place))
        self._wiring.say(stage_rules=rules)

    def trainable(self, rules: Mapping[str, bool]) -> None:
        """Say which parameters are trained, by patterns over their full names; by default all.

        `model.trainable({"*": False, "*.lora_*": True})`; the last rule that matches a name wins.
        Of a parameter that is not trained no gradient is computed, reduced or returned, whatever
        the backend. Patterns are matched when the model is compiled.

        Args:
            rules: True or False by pattern, with `*`, `?` and `[…]` as in `fnmatch`.

        Raises:
            OptionError: it is no mapping from patterns to True or False.
        """
        self._add_parameter_rules("model.trainable", rules, _read_flag)

    def freeze(self, *patterns: str) -> None:
        """Train no parameter that a pattern matches: `trainable` with False for each.

        Args:
            patterns: over full names, with `*`, `?` and `[…]` as in `fnmatch`.

        Raises:
            OptionError: there is no pattern, or one is no string.

        >>> from mithril.models import Linear
        >>> model = Model()
        >>> model += Linear(4, name="embed")
        >>> model.freeze("embed.*")
        >>> print(str(model).splitlines()[-1])
        freeze embed.*
        """
        if not patterns:
            raise OptionError(
                f"model.freeze names no parameter{at(user_source())}; give patterns, such as "
                f'model.freeze("embed.*"), or "*" for all; the model as it is now is '
                f"model.snapshot()"
            )
        for pattern in patterns:
            if not isinstance(pattern, str):
                raise OptionError(
                    f"model.freeze got {pattern!r}{at(user_source())}; give name patterns, such as "
                    f'"embed.*"'
                )
        self._add_parameter_rules("model.freeze", dict.fromkeys(patterns, False), _read_flag)

    def initialize(self, rules: Mapping[str, Initializer]) -> None:
        """Say how parameters start, by patterns over their full names.

        `model.initialize({"*.weight": ml.Normal(0.02), "*.bias": ml.Zeros()})`; the last rule that
        matches a name wins, and any of them over what a layer says. Numbers depend on seed, name
        and position only: they are the same bits on every mesh and backend. Patterns are matched
        when the model is compiled.

        Args:
            rules: initializers by pattern, with `*`, `?` and `[…]` as in `fnmatch`; a function
                `(key, shape, box) -> numbers` is one, too, see `ml.Initializer.draw`.

        Raises:
            OptionError: it is no mapping from patterns to initializers.
        """
        self._add_parameter_rules("model.initialize", rules, as_initializer)

    def tie(self, name: str, kept: str) -> None:
        """Make two parameters one: `model.tie("head.weight", "embed.weight")`.

        The second name is kept; gradients of both uses add. What is said of either name (how it is
        split, kept, trained and starts) holds for it.

        Args:
            name: full name of a parameter, which is none of its own from now on.
            kept: full name of the parameter that it is.

        Raises:
            GraphError: there is no such parameter, or both names are one.
            ShapeError: when shapes are known, if they differ.
        """
        known = self.parameters
        for given in (name, kept):
            if given not in known:
                raise GraphError(
                    f"model.tie names '{given}'{at(user_source())}, which is no parameter"
                    f"{nearest(str(given), known)}; parameters: {listing(known[:8])}"
                )
        if name == kept:
            raise GraphError(
                f"model.tie gets '{name}' twice{at(user_source())}; give two parameters"
            )
        self._wiring.say(ties=(*self._state.ties, (name, kept)))

    def _add_parameter_rules(
        self, call: str, rules: object, read: Callable[[object, str], bool | Initializer]
    ) -> None:
        place = user_source()
        found = read_rules(rules, call, at(place), read)
        added = tuple(ParameterRule(call, pattern, value, place) for pattern, value in found)
        self._wiring.say(parameter_rules=(*self._state.parameter_rules, *added))

    def _add_rules(self, rules: object, place: Source | None, *, at_rest: bool) -> None:
        call = "model.at_rest" if at_rest else "model.shard"
        found = check_rules(rules, call, at(place))
        added = tuple(ShardRule(pattern, spec, place, at_rest) for pattern, spec in found.items())
        self._wiring.say(rules=(*self._state.rules, *added))

    def snapshot(self) -> Composition:
        """Return the model as it is now; later changes do not reach it."""
        return self._wiring.snapshot

    @property
    def _state(self) -> Composition:
        return self._wiring.snapshot

    def summary(self, shapes: Mapping[str, object] | None = None) -> str:
        """Return a table of the layers, their connections, parameters and shardings.

        Args:
            shapes: for each input a shape (of float32) or anything with `shape` and `dtype`; then
                the table also says what each layer makes, and how many numbers it learns.

        Raises:
            GraphError: an input is missing or unknown, or the model is incomplete.
            ShapeError: the shapes do not fit; the message names the layer.
        """
        if shapes is None:
            return summarize(self._state)
        types = {name: _type_of(name, given) for name, given in shapes.items()}
        return summarize(self._state, trace(self, types))

    def _repr_html_(self) -> str:
        return render_html([tabulate(self._state)])

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        name = f"name='{self._state.given_name}', " if self._state.given_name else ""
        return f"Model({name}{len(self._state.members)} layers)"

    def list_names(self) -> PartNames:
        """Return what is known of the model without shapes, for a layer that calls it."""
        return list_names(self._state)

    def trace_part(self, operands: Mapping[str, Tensor], scope: LayerScope) -> dict[str, Tensor]:
        """Run the model as a part of a layer and return its outputs by name.

        Raises:
            GraphError: layers of it run on devices or in stages of their own.
        """
        if placement_spec_of(self._state).is_placed:
            raise GraphError(
                f"{self._state.label} is called in layer '{scope.path.rpartition('.')[0]}' and "
                f"places its layers with device_id or stages; place layers that are added to the "
                f"model, not what they call"
            )
        return trace_part(self._state, operands, scope)

    def _component(self) -> Composition:
        return self._state

    def _call_on(self, values: Sequence[object], named: Mapping[str, object]) -> Any:
        return call_part(self, values, named)

    def _addable(self, other: object) -> AnyConnected:
        if isinstance(other, Connected):
            return other
        if other is self:
            raise GraphError(
                f"{self._state.label} cannot contain itself{at(user_source())}; make another model"
            )
        if isinstance(other, Component):
            return Connected(other._component(), (), (), user_source())
        if isinstance(other, type) and issubclass(other, Layer):
            raise GraphError(
                f"{other.__name__} is a layer class{at(user_source())}; make a layer of it: "
                f"{other.definition.usage()}"
            )
        raise GraphError(
            f"{self._state.label} takes layers and models, not {kind_of(other)}"
            f"{at(user_source())}; add one with model += ml.Relu()"
        )


def _read_flag(given: object, what: str) -> bool:
    if not isinstance(given, bool):
        raise OptionError(f"{what} is {given!r}; give True or False")
    return given


def _is_index(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def _type_of(name: str, given: object) -> TensorType:
    """Return the type of an input given as a shape, or as something that has one."""
    shape = to_python(getattr(given, "shape", given))
    if not isinstance(shape, Sequence) or not all(isinstance(size, int) for size in shape):
        raise ShapeError(
            f"shape of input '{name}' is {given!r}; give a tuple of integers, or an array"
        )
    return TensorType(tuple(shape), as_dtype(getattr(given, "dtype", "float32")))
