"""What a user says about an op of their own, and the op that follows from it.

`mithril.ops.custom.define_op` reads and checks a definition; `UserOp` answers for it whatever the
passes ask of any op. Kernels are held by backend name; engines ask for them when they lower.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from mithril.errors import GraphError, OptionError, ShapeError, listing, nearest
from mithril.ir.op import Cost, Cotangents, Op, Shard, Tensors, Types
from mithril.ir.rule import Rule, elementwise_rule
from mithril.ir.tensor import Tensor
from mithril.ops.elementwise import broadcast_shape
from mithril.ops.expansion import gradient_by_expansion
from mithril.types import DType, TensorType, as_dtype

ELEMENTWISE = "elementwise"
Function = Callable[..., Any]
Settings = Mapping[str, Any]
_TERM = re.compile(r"\([^)]*\)|\S+")


@dataclass(frozen=True)
class Part:
    """A function of the definition, and the attributes it asks for; None stands for all."""

    function: Function
    attributes: frozenset[str] | None = None

    def __call__(self, *operands: Any, settings: Settings) -> Any:
        """Call the function on operands and those of the attributes that it names."""
        wanted = self.attributes
        given = {k: v for k, v in settings.items() if wanted is None or k in wanted}
        return self.function(*operands, **given)


@dataclass(frozen=True)
class Definition:
    """All that a user said about an op; `define_op` explains the fields.

    Args:
        kinds: the type of each attribute.
        operands: the smallest and the largest number of operands; None: any number.
    """

    shapes: Part
    rule: str | Part
    kernels: Mapping[str, Function]
    expand: Part | None
    gradient: Part | None
    flops: Part | None
    kinds: Mapping[str, type]
    operands: tuple[int, int | None]
    whole: tuple[str, ...] = ()
    expandable: tuple[str, ...] = ()
    reductions: Mapping[str, str] = field(default_factory=dict)
    linear: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class UserOp(Op):
    """Base of the ops that users define; attributes are checked, and made of their types."""

    definition: ClassVar[Definition]

    def __post_init__(self) -> None:
        for item in fields(self):
            value = _convert(self, item.name, getattr(self, item.name))
            object.__setattr__(self, item.name, value)  # not yet shown to anybody

    def infer(self, inputs: Types) -> Types:
        self.check_count(len(inputs))
        types = self._results(inputs)
        self.rule(inputs, types)
        return types

    def _results(self, inputs: Types) -> list[TensorType]:
        found = self.definition.shapes(*inputs, settings=self.attributes)
        results = [found] if isinstance(found, TensorType) else found
        if not _is_list_of(results, TensorType) or not results:
            raise ShapeError(
                f"op '{self.name}': shapes= returned {found!r}; return the type of the result, or "
                f"a list of types when there are several"
            )
        return [TensorType(tuple(map(int, t.shape)), as_dtype(t.dtype)) for t in results]

    def check_count(self, count: int) -> None:
        """Check the number of operands.

        Raises:
            ShapeError: there are more or fewer than `shapes` takes.
        """
        least, most = self.definition.operands
        if count < least or (most is not None and count > most):
            wanted = f"at least {least}" if most is None else f"{least} to {most}"
            raise ShapeError(
                f"op '{self.name}' takes {least if least == most else wanted} operands, as shapes= "
                f"does, not {count}"
            )

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        definition = self.definition
        text = definition.rule
        if isinstance(text, Part):
            text = text(*inputs, settings=self.attributes)
            check_rule_text(self.name, text)
        if text == ELEMENTWISE:
            return self._elementwise(inputs, outputs)
        self._check_terms(text, len(inputs), len(outputs))
        spelled = _without_ellipses(text, [*inputs, *outputs])
        try:
            rule = Rule.parse(
                spelled,
                inputs,
                outputs,
                reductions=definition.reductions,
                whole=definition.whole,
                linear=definition.linear,
                expandable=definition.expandable,
            )
        except ShapeError as error:
            raise ShapeError(f"op '{self.name}': {str(error).replace(spelled, text)}") from error
        self._check_factors(rule, text)
        absent = {f for f in rule.factors if any(f not in sum(dims, ()) for dims in rule.results)}
        return replace(rule, even=frozenset(absent))

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        part, builder = self.definition.gradient, inputs[0].builder
        if part is None and self.definition.expand is not None:
            return gradient_by_expansion(self, inputs, cotangents)
        if part is None:
            raise builder.locate_error(
                GraphError(
                    f"op '{self.name}' has no gradient; give define_op a gradient=, or stop "
                    f"gradients before it with stop_gradient"
                )
            )
        given = [_or_zeros(c, y) for c, y in zip(cotangents, outputs, strict=True)]
        found = part(inputs, outputs, given, settings=self.attributes)
        problem = _gradient_problem(found, inputs)
        if problem:
            raise builder.locate_error(GraphError(f"op '{self.name}': {problem}"))
        flowing: Cotangents = found
        return flowing

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        plain = super().cost(inputs, outputs)
        if self.definition.flops is None:
            return plain
        flops = self.definition.flops(*inputs, settings=self.attributes)
        if isinstance(flops, bool) or not isinstance(flops, int) or flops < 0:
            raise OptionError(
                f"op '{self.name}': flops= returned {flops!r}; return the number of operations, an "
                f"integer"
            )
        return Cost(flops, plain.bytes)

    def expand(self, inputs: Tensors) -> Tensors | None:
        part = self.definition.expand
        if part is None:
            return None
        found = part(*inputs, settings=self.attributes)
        results = [found] if isinstance(found, Tensor) else found
        wanted = list(self.infer([x.type for x in inputs]))
        if not _is_list_of(results, Tensor) or [x.type for x in results] != wanted:
            raise inputs[0].builder.locate_error(
                ShapeError(
                    f"op '{self.name}': expand= returned {_show(found)}, shapes= promises "
                    f"{_show(wanted)}; make them equal"
                )
            )
        expanded: Tensors = results
        return expanded

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        types = [x.type for x in inputs]
        results = self._results(types)
        if results != list(shard.outputs):
            raise inputs[0].builder.locate_error(
                ShapeError(
                    f"op '{self.name}': shapes= gives {_show(results)} for a part of its operands "
                    f"({_show(types)}), where its rule promises {_show(shard.outputs)}; put the "
                    f"factors that may not be split into whole="
                )
            )
        return shard.apply(self, *inputs)

    @cached_property
    def attributes(self) -> Mapping[str, object]:
        """Attributes by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def _elementwise(self, inputs: Types, outputs: Types) -> Rule:
        shape = broadcast_shape([t.shape for t in inputs], self.name)
        if any(t.shape != shape for t in outputs):
            raise ShapeError(
                f"op '{self.name}' is elementwise, and shapes= gives {_show(outputs)} for "
                f"operands {_show(inputs)}; give results of shape {shape}, or write a rule"
            )
        return elementwise_rule(inputs, outputs[0], self.definition.linear, len(outputs))

    def _check_terms(self, text: str, operands: int, results: int) -> None:
        left, right = (len(side.split(",")) for side in text.split("->"))
        if (left, right) != (operands, results):
            raise ShapeError(
                f"op '{self.name}': rule '{text}' has {left} operands and {right} results, the op "
                f"{operands} and {results}; separate them by commas"
            )

    def _check_factors(self, rule: Rule, text: str) -> None:
        for dims in (*rule.operands, *rule.results):
            twice = [f for f in sum(dims, ()) if sum(dims, ()).count(f) > 1]
            if twice:
                raise ShapeError(
                    f"op '{self.name}': rule '{text}' names '{twice[0]}' twice in one tensor; give "
                    f"each dimension its own name"
                )
        definition = self.definition
        for name in (*definition.whole, *definition.expandable, *definition.reductions):
            if name not in rule.factors:
                raise ShapeError(
                    f"op '{self.name}': rule '{text}' has no factor '{name}'"
                    f"{nearest(name, rule.factors)}; factors: {listing(rule.factors)}"
                )


def check_rule_text(name: str, text: object) -> None:
    """Check what can be known of a rule before any shape is.

    Raises:
        OptionError: it is no rule.
    """
    is_rule = isinstance(text, str) and (text == ELEMENTWISE or text.count("->") == 1)
    if not is_rule:
        raise OptionError(
            f"op '{name}' has rule {text!r}; give 'elementwise', or one such as 'b n, n -> b'"
        )


def _without_ellipses(text: str, types: Types) -> str:
    """Return the rule with `...` replaced by factors for the dimensions that are not named."""
    left, right = text.split("->")
    sides = [side.split(",") for side in (left, right)]
    ranks = iter([t.rank for t in types])
    spelled = [[_spell(term, next(ranks, 0)) for term in side] for side in sides]
    return " -> ".join(", ".join(side) for side in spelled)


def _spell(term: str, rank: int) -> str:
    dims = _TERM.findall(term)
    missing = rank - (len(dims) - dims.count("..."))
    names = [f"...{i}" for i in reversed(range(missing))]
    return " ".join(" ".join(names) if dim == "..." else dim for dim in dims)


def _convert(op: UserOp, name: str, value: object) -> object:
    """Return the value of an attribute as its type; equal values are then equal ops."""
    kind = op.definition.kinds[name]
    if kind is DType:
        return as_dtype(value)
    plain = _plain(value)
    if kind is float and type(plain) is int:
        return float(plain)
    if type(plain) is not kind or not _is_plain(plain):
        wanted = "tuple of numbers and strings" if kind is tuple else kind.__name__
        raise OptionError(
            f"attribute {name}={value!r} of op '{op.name}' is a {type(value).__name__}; give a "
            f"{wanted}"
        )
    return plain


def _plain(value: object) -> object:
    """Return NumPy's scalars as Python's, and lists as tuples."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return str(value) if isinstance(value, str) else value


def _is_plain(value: object) -> bool:
    """Whether a value can be written into a plan and read back."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def _is_list_of(value: object, kind: type) -> bool:
    return isinstance(value, Sequence) and all(isinstance(item, kind) for item in value)


def _or_zeros(cotangent: Tensor | None, output: Tensor) -> Tensor | None:
    """Return the gradient of a result; zeros where nobody used the result."""
    from mithril.ops.shape import broadcast_to

    if cotangent is not None or not output.dtype.is_float:
        return cotangent
    zeros: Tensor = broadcast_to(output.builder.constant(0, output.dtype), output.shape)
    return zeros


def _gradient_problem(found: object, inputs: Tensors) -> str:
    """Return what is wrong with what a gradient returned, or nothing."""
    if not isinstance(found, list | tuple) or len(found) != len(inputs):
        return (
            f"gradient= returned {_show(found)} for {len(inputs)} operands; return a list with "
            f"one gradient for each, None where none flows"
        )
    for number, (x, gradient) in enumerate(zip(inputs, found, strict=True)):
        if gradient is None:
            continue
        if not x.dtype.is_float:
            return (
                f"gradient= returned a gradient of operand {number}, which is {x.type}; return "
                f"None for it"
            )
        if not isinstance(gradient, Tensor) or gradient.type != x.type:
            return (
                f"gradient= returned {_show(gradient)} for operand {number}, which is {x.type}; "
                f"make the types equal"
            )
    return ""


def _show(value: object) -> str:
    """Return what a function returned, for a message."""
    if isinstance(value, Tensor):
        return str(value.type)
    if isinstance(value, list | tuple):
        return ", ".join(map(_show, value)) or "nothing"
    return str(value) if isinstance(value, TensorType) else type(value).__name__


__all__ = ["Definition", "UserOp"]
