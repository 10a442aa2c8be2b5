"""Repeat: one block, many times, each time with parameters of its own, as one loop of the plan.

The block's inputs are of three kinds: *carried* ones, which each repetition gets from the one
before; *stacked* ones, of which each gets a slice of its own, as of the parameters; and all others,
which are the same in every repetition. Outputs that are not carried on are stacked in their turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mithril.errors import GraphError, OptionError, ShapeError, listing, nearest
from mithril.ir import Builder, Graph, Tensor, Value
from mithril.ir import Repeat as Loop
from mithril.ir.source import user_source
from mithril.mesh import PartitionSpec
from mithril.models.annotations import Annotation
from mithril.models.component import check_depth
from mithril.models.composition import Composition
from mithril.models.definition import POSITIVE, Check, define
from mithril.models.layer import Layer
from mithril.models.model import Model
from mithril.models.prefixes import component_of
from mithril.models.trace import (
    annotations_of,
    parameter_names,
    resting,
    trace_inside,
)
from mithril.models.trace_context import (
    LayerScope,
    Trace,
    current,
    layer_salt,
    parameter,
    seed,
)
from mithril.ops import split_seed

_CARRY = Check(
    'a mapping from inputs of the block to outputs, such as {"x": "y"}, or None',
    lambda value: value is None or (isinstance(value, Mapping) and _are_names(value.items())),
)
_STACKED = Check(
    "names of inputs of the block, in a tuple",
    lambda value: isinstance(value, tuple | list) and _are_names([value]),
)


def _are_names(groups: Any) -> bool:
    return all(isinstance(name, str) for group in groups for name in group)


@dataclass(frozen=True, slots=True)
class _Ports:
    """How the inputs and outputs of a block take part in its repetition.

    Args:
        carried: from inputs to the outputs they become.
        stacked: inputs of which each repetition gets a slice.
        shared: inputs that are the same in every repetition.
        optional: those of them that need not be connected.
        results: the outputs, and of what each is: a carried input, or None for a stack.
    """

    carried: Mapping[str, str]
    stacked: tuple[str, ...]
    shared: tuple[str, ...]
    optional: tuple[str, ...]
    results: Mapping[str, str | None]

    @staticmethod
    def of(
        block: Composition | Layer, carry: Mapping[str, str] | None, stacked: Sequence[str]
    ) -> _Ports:
        """Return them for a block and the options that were given."""
        carried = _default_carry(block, stacked) if carry is None else carry
        every = (*block.input_ports, *block.optional_ports)
        used = {*carried, *stacked}
        results: dict[str, str | None] = dict.fromkeys(block.output_ports)
        results |= {output: port for port, output in reversed(tuple(carried.items()))}
        return _Ports(
            carried,
            tuple(stacked),
            tuple(port for port in every if port not in used),
            tuple(port for port in block.optional_ports if port not in used),
            results,
        )

    @property
    def required(self) -> tuple[str, ...]:
        """The inputs that have to be connected."""
        shared = (port for port in self.shared if port not in self.optional)
        return (*self.carried, *self.stacked, *shared)

    @property
    def is_plain(self) -> bool:
        """Whether there is one of each, which are called `input` and `output`."""
        return len(self.required) == len(self.results) == len(self.carried) == 1

    @property
    def input_names(self) -> tuple[str, ...]:
        """What the required inputs are called outside."""
        return ("input",) if self.is_plain else self.required

    @property
    def output_names(self) -> tuple[str, ...]:
        """What the outputs are called outside."""
        return ("output",) if self.is_plain else tuple(self.results)


def _default_carry(block: Composition | Layer, stacked: Sequence[str]) -> dict[str, str]:
    """Return what is carried where nothing is said, and only one thing can be meant.

    Raises:
        GraphError: the block has several inputs or outputs.
    """
    inputs = [port for port in block.input_ports if port not in stacked]
    if not inputs and stacked:
        return {}
    outputs = block.output_ports
    main = "output" if "output" in outputs else outputs[-1]
    if len(inputs) != 1 or (main != "output" and len(outputs) != 1):
        raise GraphError(
            f"Repeat is given {block.label} with inputs {list(block.input_ports)} and outputs "
            f"{list(outputs)}, and cannot tell which output becomes which input of the next "
            f"repetition; say it, such as carry={{'{(inputs or ['x'])[0]}': '{main}'}}"
        )
    return {inputs[0]: main}


def _parameters(block: Any) -> tuple[str, ...]:
    return parameter_names(block)


def _outputs(
    block: Any, carry: Mapping[str, str] | None, stacked: Sequence[str]
) -> tuple[str, ...]:
    return _Ports.of(block, carry, stacked).output_names


def _repeat(
    *operands: Tensor | None,
    block: Any,
    count: int,
    carry: Mapping[str, str] | None = None,
    stacked: Sequence[str] = (),
) -> dict[str, Tensor]:
    scope = current("Repeat")
    ports = _Ports.of(block, carry, stacked)
    names = (*ports.required, *ports.optional)
    given = {n: x for n, x in zip(names, operands, strict=True) if x is not None}
    run = Trace(
        Builder(inside=scope.trace.builder),
        scope.trace.inference,
        scope.trace.precision,
        prefix=scope.trace.prefix + scope.prefix,
    )
    with run.builder.at(scope=scope.path, source=scope.source):
        inside = {port: run.builder.input(given[port].type, port) for port in ports.carried}
        for port in ports.stacked:
            inside[port] = run.builder.input(_slice_type(given[port], port, count, scope), port)
        inside |= {port: run.builder.own(given[port]) for port in ports.shared if port in given}
        outputs, values = trace_inside(run, block, inside, f"{scope.path}.")
    scope.trace.inner.update({**run.inner, **values})
    scope.trace.wishes.update(run.wishes)
    stacks = [given[port] for port in ports.stacked]
    slices = [inside[port].value for port in ports.stacked]
    for name, found in run.parameters.items():
        shape, levels = (count, *found.tensor.shape), found.stacked + 1
        stacks.append(parameter(name, shape, found.initializer, found.tensor.dtype, stacked=levels))
        slices.append(found.tensor.value)
    if run.seed is not None:
        stacks.append(split_seed(seed(), count, layer_salt()))
        slices.append(run.seed.value)
    body = _order_body(run.builder, ports, inside, outputs, slices)
    loop = Loop(body, count, len(ports.carried), len(slices))
    carries = [given[port] for port in ports.carried]
    results = scope.trace.builder.apply(loop, *carries, *run.builder.captured, *stacks)
    made = dict(zip(body.outputs, results, strict=True))
    return {
        shown: made[port if carried is None else carried]
        for shown, (port, carried) in zip(ports.output_names, ports.results.items(), strict=True)
    }


def _order_body(
    builder: Builder,
    ports: _Ports,
    inside: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    slices: Sequence[Value],
) -> Graph:
    """Return one repetition: carries, what is shared, slices; next carries, what is stacked."""
    after = {port: builder.own(outputs[output]) for port, output in ports.carried.items()}
    made = {port: builder.own(outputs[port]) for port, of in ports.results.items() if of is None}
    body = builder.build({**after, **made})
    carries = tuple(inside[port].value for port in ports.carried)
    mine = {*carries, *slices}
    shared = tuple(value for value in body.inputs if value not in mine)
    return Graph((*carries, *shared, *slices), body.nodes, body.outputs)


def _slice_type(stack: Tensor, port: str, count: int, scope: LayerScope) -> Any:
    if stack.shape[:1] != (count,):
        raise ShapeError(
            f"layer '{scope.path}' runs {count} repetitions, and its stacked input '{port}' is "
            f"{stack.type}; its first dimension must be {count}, one slice a repetition"
        )
    return stack.type.with_shape(stack.shape[1:])


class Repeat(Layer):
    """Run a block again and again, each time with parameters of its own.

    Every parameter of the block gets a leading dimension of `count`, one slice a repetition. The
    plan, its price and the compiled program contain the block once, however often it runs, so deep
    models plan and compile as fast as shallow ones. Random layers draw anew in every repetition.

    A block with one input and one output is fed its own output, and the layer's ports are `input`
    and `output`. Of any other block `carry` says which outputs become which inputs of the next
    repetition, and the ports bear the block's names. Inputs of which `stacked` says so have a
    leading dimension of `count`, one slice a repetition (a cache of keys, say); all others are
    shared: every repetition gets them whole (a mask, the output of an encoder). Outputs that are
    not carried are stacked (new caches, the losses of a mixture of experts).

    Shardings said inside the block are those of one repetition. A `model.shard` pattern from
    outside speaks of the stacked parameter, leading dimension included.

    Args:
        block: a Model or layer.
        count: number of repetitions.
        carry: from inputs of the block to the outputs they become, of the same shape and dtype.
            By default its one input becomes its one output, or the one called `output`; nothing
            is carried if all inputs are stacked.
        stacked: inputs of the block that are given as stacks, [count, ...].
        name: what the layer is called; counted (`repeat_0`) by default.
        options: how parameters are kept, as for every layer.

    Returns:
        What is carried, as it is after the last repetition; other outputs as [count, ...].

    Raises:
        OptionError: the count is not positive, the block is no model or layer, or carry and stacked
            name no ports of it.
        GraphError: the block has several inputs or outputs, and carry is not given; or models and
            layers are nested too deep in it.
        ShapeError: what is carried changes its shape or dtype, or a stack has another size.

    >>> from mithril.models import Add, Linear, Model, Relu
    >>> block = Model()
    >>> block += Linear(8)
    >>> block += Relu()
    >>> Repeat(block, 12).parameters
    ('linear_0.weight', 'linear_0.bias')
    >>> block = Model()
    >>> block |= Add()(inputs=["x", "memory"], output="y")
    >>> Repeat(block, 12, carry={"x": "y"}).input_ports
    ('x', 'memory')
    """

    __slots__ = ("_ports",)
    definition = replace(
        define(
            _repeat,
            _parameters,
            _outputs,
            (),
            {"count": POSITIVE, "carry": _CARRY, "stacked": _STACKED},
        ),
        name="Repeat",
    )

    def __init__(
        self,
        block: object,
        count: int,
        carry: Mapping[str, str] | None = None,
        stacked: Sequence[str] = (),
        **options: Any,
    ) -> None:
        frozen = _freeze_block(block)
        check_depth("Repeat", frozen.depth, user_source())
        _check_names(frozen, carry, stacked)
        carry = dict(carry) if isinstance(carry, Mapping) else carry
        stacked = tuple(stacked) if isinstance(stacked, list) else stacked
        super().__init__(frozen, count, carry, stacked, **options)
        self._ports = _Ports.of(frozen, self.config["carry"], self.config["stacked"])
        inside = {name: _stack(annotation) for name, annotation in annotations_of(frozen).items()}
        self.annotations = {**inside, **self.annotations}
        kept = {name: _stack(annotation) for name, annotation in resting(frozen).items()}
        self.at_rest = {**kept, **self.at_rest}

    @property
    def input_ports(self) -> tuple[str, ...]:
        """Names of the inputs, without those that the block does not need."""
        return self._ports.input_names

    @property
    def optional_ports(self) -> tuple[str, ...]:
        """Names of the inputs that need not be connected."""
        return self._ports.optional

    @property
    def depth(self) -> int:
        """How many models and layers are nested in each other in it, itself included."""
        inside: int = self.config["block"].depth
        return inside + 1

    @property
    def variadic_input(self) -> None:
        """None: the number of inputs is that of the block."""

    @property
    def described(self) -> str:
        """The layer as it is written, without how it is split."""
        config = self.config
        options = [config["block"].label, str(config["count"])]
        options += [f"carry={dict(config['carry'])}"] if config["carry"] is not None else []
        options += [f"stacked={tuple(config['stacked'])}"] if config["stacked"] else []
        options += [f"name='{self.given_name}'"] if self.given_name else []
        return f"Repeat({', '.join(options)})"


def _freeze_block(block: object) -> Composition | Layer:
    if not isinstance(block, Model | Composition | Layer):
        raise OptionError(
            f"Repeat option 'block' is {block!r}; give a Model or a layer, such as "
            f"Repeat(block, 12)"
        )
    return component_of(block)


def _check_names(block: Composition | Layer, carry: object, stacked: object) -> None:
    """Raise unless the options name inputs and outputs of the block, each input once."""
    inputs = (*block.input_ports, *block.optional_ports)
    carried = carry if isinstance(carry, Mapping) else {}
    stacks = stacked if isinstance(stacked, Sequence) and not isinstance(stacked, str) else ()
    wanted = [("carry", "input", port, inputs) for port in carried]
    wanted += [("carry", "output", port, block.output_ports) for port in carried.values()]
    wanted += [("stacked", "input", port, inputs) for port in stacks]
    for option, kind, port, known in wanted:
        if port not in known:
            near = nearest(port, known) if isinstance(port, str) else ""
            raise OptionError(
                f"Repeat option '{option}' names {port!r}, which is no {kind} of {block.label}; "
                f"{kind}s: {listing(known)}{near}"
            )
    for port in stacks:
        if port in carried:
            raise OptionError(
                f"Repeat options carry and stacked both name input '{port}'; carry it, or give "
                f"each repetition a slice of it"
            )


def _stack(annotation: Annotation) -> Annotation:
    """Return what is wished for one repetition's parameter as a wish for the stack."""
    spec, slices = annotation.spec, annotation.slices
    if annotation.least_rank:
        annotation = replace(annotation, least_rank=annotation.least_rank + 1)
    if slices is not None:
        annotation = replace(annotation, slices=replace(slices, dimension=slices.dimension + 1))
    if isinstance(spec, PartitionSpec):
        return replace(annotation, spec=spec.stack())
    return replace(annotation, spec=(None, *spec))


__all__ = ["Repeat"]
