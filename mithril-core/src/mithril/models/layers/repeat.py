"""Repeat: one block, many times, each time with parameters of its own, as one loop of the plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mithril.errors import GraphError, OptionError
from mithril.ir import Builder, Graph, Tensor
from mithril.ir import Repeat as Loop
from mithril.mesh import PartitionSpec
from mithril.models.annotations import Annotation
from mithril.models.composition import Composition
from mithril.models.definition import POSITIVE, define
from mithril.models.layer import Layer
from mithril.models.model import Model
from mithril.models.prefixes import component_of
from mithril.models.trace import (
    annotations_of,
    parameter_names,
    resting,
    trace_inside,
)
from mithril.models.trace_context import Trace, current, parameter, seed
from mithril.ops import cast, iota
from mithril.types import DType

SEED_STEP = 0x9E3779B9
"""Distance of the seeds of two iterations: 2**32 over the golden ratio, so that none come close."""


def parameter_names_of(block: Any) -> tuple[str, ...]:
    """Return the parameters of a block."""
    return parameter_names(block)


def _repeat(input: Tensor, *, block: Any, count: int) -> Tensor:
    scope = current("Repeat")
    outer = scope.trace.builder
    run = Trace(
        Builder(inside=outer),
        scope.trace.inference,
        scope.trace.precision,
        prefix=scope.trace.prefix + scope.prefix,
    )
    with run.builder.at(scope=scope.path, source=scope.source):
        carry = run.builder.input(input.type, block.input_ports[0])
        outputs, names = trace_inside(run, block, {carry.value.name: carry}, f"{scope.path}.")
    scope.trace.inner.update(names)
    stacks = [
        parameter(
            name,
            (count, *found.tensor.shape),
            found.initializer,
            found.tensor.dtype,
            stacked=found.stacked + 1,
        )
        for name, found in run.parameters.items()
    ]
    slices = [found.tensor.value for found in run.parameters.values()]
    if run.seed is not None:
        steps = cast(iota(input, (count,), 0), DType.uint32) * SEED_STEP
        stacks.append(steps + seed())
        slices.append(run.seed.value)
    result = outputs[block.output_ports[0]]
    body = run.builder.build({carry.value.name: result})
    mine = {carry.value, *slices}
    captured = tuple(value for value in body.inputs if value not in mine)
    ordered = Graph((carry.value, *captured, *slices), body.nodes, body.outputs)
    loop = Loop(ordered, count, 1, len(slices))
    return outer.apply(loop, input, *run.builder.captured, *stacks)[0]


class Repeat(Layer):
    """Run a block again and again, each time with parameters of its own.

    Every parameter of the block gets a leading dimension of `count`, one slice a repetition. The
    plan, its price and the compiled program contain the block once, however often it runs, so deep
    models plan and compile as fast as shallow ones. Random layers draw anew in every repetition.

    Shardings said inside the block are those of one repetition. A `model.shard` pattern from
    outside speaks of the stacked parameter, leading dimension included.

    Args:
        block: a Model or layer with one input and one output of the same shape and dtype.
        count: number of repetitions.
        name: what the layer is called; counted (`repeat_0`) by default.

    Returns:
        The block's output after the last repetition.

    Raises:
        OptionError: the count is not positive, or the block is no model or layer.
        GraphError: the block has several inputs or outputs.
        ShapeError: its output has another shape or dtype than its input.

    >>> from mithril.models import Linear, Model, Relu
    >>> block = Model()
    >>> block += Linear(8)
    >>> block += Relu()
    >>> Repeat(block, 12).parameters
    ('linear_0.weight', 'linear_0.bias')
    """

    __slots__ = ()
    definition = replace(
        define(_repeat, parameter_names_of, ("output",), (), {"count": POSITIVE}), name="Repeat"
    )

    def __init__(self, block: object, count: int, **options: Any) -> None:
        frozen = _freeze_block(block)
        super().__init__(frozen, count, **options)
        inside = {name: _stack(annotation) for name, annotation in annotations_of(frozen).items()}
        self.annotations = {**inside, **self.annotations}
        kept = {name: _stack(annotation) for name, annotation in resting(frozen).items()}
        self.at_rest = {**kept, **self.at_rest}

    @property
    def described(self) -> str:
        """The layer as it is written, without how it is split."""
        block = self.config["block"]
        name = f", name='{self.given_name}'" if self.given_name else ""
        return f"Repeat({block.label}, {self.config['count']}{name})"


def _freeze_block(block: object) -> Composition | Layer:
    if not isinstance(block, Model | Composition | Layer):
        raise OptionError(
            f"Repeat option 'block' is {block!r}; give a Model or a layer, such as "
            f"Repeat(block, 12)"
        )
    component = component_of(block)
    if len(component.input_ports) != 1 or len(component.output_ports) != 1:
        raise GraphError(
            f"Repeat takes a block with one input and one output; {component.label} has inputs "
            f"{list(component.input_ports)} and outputs {list(component.output_ports)}; connect "
            f"the others inside it"
        )
    return component


def _stack(annotation: Annotation) -> Annotation:
    """Return what is wished for one repetition's parameter as a wish for the stack."""
    spec = annotation.spec
    if isinstance(spec, PartitionSpec):
        entries = (spec.axes(dimension) for dimension in range(len(spec)))
        shown = (axes[0] if len(axes) == 1 else (axes or None) for axes in entries)
        return replace(annotation, spec=PartitionSpec(None, *shown))
    return replace(annotation, spec=(None, *spec))


__all__ = ["Repeat"]
