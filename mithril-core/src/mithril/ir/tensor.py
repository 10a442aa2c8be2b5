"""Tensor and Builder: writing a graph by computing with tensors.

A `Builder` collects nodes; a `Tensor` is a value of the graph it builds. Every node is stamped with
the builder's current scope, source and phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NoReturn, Self

import numpy as np

from mithril.errors import GraphError, MithrilError
from mithril.ir.graph import Cause, Graph, Node, Phase, Value, free_name
from mithril.ir.op import Op
from mithril.ir.operand import Operand
from mithril.ir.source import Source
from mithril.types import DType, Scalar, TensorType

MOST_AROUND = 32
"""Bodies in each other; passes call themselves for each, and frameworks do a dozen times."""


class Tensor(Operand):
    """A value of a graph being built, with Python's operators."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: Builder, value: Value) -> None:
        self.builder = builder
        self.value = value

    @property
    def type(self) -> TensorType:
        """Shape and dtype."""
        return self.value.type

    def _apply(self, op: Op, operands: Sequence[Operand]) -> tuple[Tensor, ...]:
        builders = [self.builder, *(x.builder for x in operands if isinstance(x, Tensor))]
        builder = max(
            builders, key=lambda builder: builder.depth
        )  # that of the innermost loop body
        results = builder.apply(op, *map(builder.own, operands))
        if all(x.is_number for x in operands):
            return tuple(Number(builder, result.value) for result in results)
        return results

    def _constant(self, value: Scalar, dtype: DType) -> Tensor:
        return self.builder.constant(value, dtype)

    @property
    def _constant_value(self) -> Scalar | None:
        return self.builder.constant_values.get(self.value)

    def _adopt(self, other: object, dtype: DType | None = None) -> Operand | None:
        return self.builder.adopt(other, dtype)

    @property
    def _default_float(self) -> DType:
        return self.builder.default_float

    def _call(self, function: str, *arguments: object, **options: object) -> Self:
        """Apply a function of the ops; arrays of values, if the trace takes any, become tensors."""
        given = map(self._name_is_taken, arguments)
        made: Self = self.builder.attempt(super()._call, function, *given, **options)
        return made

    def __getitem__(self, index: Any) -> Self:
        if isinstance(index, tuple):
            return super().__getitem__(tuple(map(self._name_is_taken, index)))
        return super().__getitem__(self._name_is_taken(index))

    def _name_is_taken(self, x: object) -> object:
        adopted = None if isinstance(x, Tensor) or not getattr(x, "shape", ()) else self._adopt(x)
        return x if adopted is None else adopted

    def __bool__(self) -> bool:
        raise GraphError(
            f"traced tensor {self.type} has no truth value; a Python branch cannot depend on it; "
            f"use where(condition, x, y){self.builder.place()}"
        )

    def item(self) -> Scalar:
        """Raise: there is no number before the graph runs.

        Raises:
            GraphError: always.
        """
        raise GraphError(
            f"traced tensor {self.type} is no Python number; its value is not known before the "
            f"graph runs; compute with it as it is, or return it{self.builder.place()}"
        )

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def numpy(self) -> NoReturn:
        """Raise: there are no values before the graph runs.

        Raises:
            GraphError: always.
        """
        raise GraphError(
            f"traced tensor {self.type} has no values for NumPy; use the functions of "
            f"mithril.numpy, or return it and read the result{self.builder.place()}"
        )

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        self.numpy()

    def __array_function__(
        self, function: object, types: object, arguments: Sequence[Any], options: Mapping[str, Any]
    ) -> Any:
        if function in _OF_SHAPE:
            return _OF_SHAPE[function](*arguments, **options)
        return self.numpy()  # or NumPy would call methods of ours with options of its own

    def __iter__(self) -> Iterator[Self]:
        raise GraphError(
            f"traced tensor {self.type} is not iterated over; the loop would be unrolled; use "
            f"unstack(x) for its rows, or ml.scan for a loop{self.builder.place()}"
        )

    def __repr__(self) -> str:
        return f"Tensor({self.value.name or '?'}: {self.type})"


_OF_SHAPE: Mapping[object, Callable[..., Any]] = {
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.ndim,
    np.size: lambda a, axis=None: (
        a.size if axis is None else np.size(np.broadcast_to(0, a.shape), axis)
    ),
}
"""Functions of NumPy that need no values."""


class Number(Tensor):
    """A traced scalar that was a Python number: it takes the dtype of the array it meets.

    `known` is its value where the trace knows it; `met` are the dtypes it was taken in, also where
    it stands for one of a trace around; `wide` is the same in float64, for arrays of that.
    """

    __slots__ = ("known", "met", "wide")
    is_number = True

    def __init__(
        self,
        builder: Builder,
        value: Value,
        known: Scalar | None = None,
        met: set[DType] | None = None,
        wide: Tensor | None = None,
    ) -> None:
        super().__init__(builder, value)
        self.known = known
        self.met: set[DType] = set() if met is None else met
        self.wide = wide

    def _constant(self, value: Scalar, dtype: DType) -> Number:
        return Number(self.builder, self.builder.constant(value, dtype).value)


class Builder:
    """Collects inputs and nodes, and closes them into a Graph.

    Args:
        inside: for the body of a loop, the builder of what is around it; the body may use its
            tensors, which become inputs of the body (`captured`).

    Raises:
        GraphError: there are too many around it.
    """

    kind = "layer"
    """What a scope of the nodes stands for, for messages."""
    default_float = DType.float32
    """The float dtype of what is made of Python numbers alone."""
    records = True
    """Whether a graph comes out of it; if not, bodies of loops are just called."""
    depth = 0
    """How many traces there are around it."""

    def __init__(self, inside: Builder | None = None) -> None:
        self.inside = inside
        if inside is not None:
            self.depth = inside.depth + 1
            if self.depth > MOST_AROUND:
                raise GraphError(
                    f"loops, gradients and checkpoints are nested {self.depth} deep"
                    f"{inside.place()}, and {MOST_AROUND} is the most; make one of several"
                )
            self.kind = inside.kind
            self.default_float = inside.default_float
        self._captured: dict[Value, tuple[Tensor, Tensor]] = {}
        self._inputs: list[Value] = []
        self._nodes: list[Node] = []
        self._constants: dict[tuple[str, DType, Phase], Tensor] = {}
        self.constant_values: dict[Value, Scalar] = {}
        self._stamp: _Stamp = _Stamp() if inside is None else inside._stamp

    @staticmethod
    def extending(graph: Graph) -> Builder:
        """Return a builder that already holds a graph's inputs and nodes."""
        from mithril.ir.constant import Constant

        builder = Builder()
        builder._inputs = list(graph.inputs)
        builder._nodes = list(graph.nodes)
        builder.constant_values = {
            node.outputs[0]: node.op.value for node in graph.nodes if isinstance(node.op, Constant)
        }
        return builder

    def at(
        self,
        *,
        scope: str | None = None,
        source: Source | None = None,
        phase: Phase | None = None,
        cause: Cause | None = None,
    ) -> AbstractContextManager[None]:
        """Stamp the nodes made inside with a scope, source, phase or cause."""
        before = self._stamp
        stamp = _Stamp(
            before.scope if scope is None else scope,
            before.source if source is None else source,
            before.phase if phase is None else phase,
            cause,
        )
        return _Stamped(self, stamp)

    def like(self, node: Node) -> AbstractContextManager[None]:
        """Stamp the nodes made inside as another node is stamped, whatever the current stamp is."""
        return _Stamped(self, _Stamp(node.scope, node.source, node.phase, node.cause))

    def within(self, name: str, *, is_wrapper: bool = False) -> AbstractContextManager[None]:
        """Stamp the nodes made inside with a scope inside the current one.

        Args:
            name: of the scope.
            is_wrapper: whether what is called bears the name of a function that it wraps; the
                current scope is then not repeated, which may be that of the call itself.
        """
        outer = self._stamp.scope
        is_here = outer == name or outer.endswith(f".{name}")
        inner = f"{outer}.{name}" if outer else name
        return self.at(scope=outer if is_wrapper and is_here else inner)

    def input(self, type: TensorType, name: str) -> Tensor:
        """Add a graph input."""
        value = Value(type, name)
        self._inputs.append(value)
        return Tensor(self, value)

    @property
    def captured(self) -> tuple[Tensor, ...]:
        """The tensors of the builders around this one that are used here, in order of first use."""
        return tuple(outer for outer, _ in self._captured.values())

    def own(self, operand: Operand) -> Tensor:
        """Return the operand as a tensor of this builder; one from around it becomes an input.

        Raises:
            GraphError: it belongs to another trace.
        """
        if isinstance(operand, Tensor) and operand.builder is self:
            return operand
        if not isinstance(operand, Tensor) or self.inside is None:
            raise GraphError(
                f"a tensor of another trace is used here; pass it in as an input of the {self.kind}"
            )
        outer = self.inside.own(operand)
        if outer.value not in self._captured:
            name = outer.value.name or f"outer_{len(self._captured)}"
            inner = self.input(outer.type, self.free_name(name))
            self._captured[outer.value] = (outer, inner)
        return self._captured[outer.value][1]

    def adopt(self, x: object, dtype: DType | None = None) -> Tensor | None:
        """Return an array of values as a tensor of this trace, None if the trace takes none.

        Args:
            x: the array.
            dtype: what values of NumPy become, if it is said.
        """
        return None if self.inside is None else self.inside.adopt(x, dtype)

    def here(self) -> Source | None:
        """Return where the user's code is that makes a node now; by default it is not known."""
        return None if self.inside is None else self.inside.here()

    def free_name(self, name: str) -> str:
        """Return a name, lengthened until no input has it."""
        return free_name(name, {value.name for value in self._inputs})

    def constant(self, value: Scalar, dtype: DType) -> Tensor:
        """Return a scalar constant; equal constants of a phase are one node."""
        from mithril.ir.constant import Constant

        key = (repr(value), dtype, self._stamp.phase)
        if key not in self._constants:
            (self._constants[key],) = self.apply(Constant(value, dtype))
            self.constant_values[self._constants[key].value] = value
        return self._constants[key]

    def apply(self, op: Op, *operands: Tensor) -> tuple[Tensor, ...]:
        """Append a node and return its results.

        Raises:
            ShapeError: the operands do not fit the op; the message names layer and line.
        """
        inputs = tuple(operand.value for operand in operands)
        stamp = self._stamp
        try:
            types = op.infer([value.type for value in inputs])
        except MithrilError as error:
            raise self.locate_error(error) from error.__cause__
        outputs = tuple(Value(type) for type in types)
        source = stamp.source or self.here()
        self._nodes.append(Node(op, inputs, outputs, stamp.scope, source, stamp.phase, stamp.cause))
        return tuple(Tensor(self, value) for value in outputs)

    def copy(self, node: Node, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Append a node like another one on new operands, keeping its stamp."""
        types = node.op.infer([tensor.type for tensor in inputs])
        outputs = tuple(Value(t, old.name) for t, old in zip(types, node.outputs, strict=True))
        self._nodes.append(replace(node, inputs=tuple(t.value for t in inputs), outputs=outputs))
        return tuple(Tensor(self, value) for value in outputs)

    def assign_name(self, tensor: Tensor, name: str) -> Tensor:
        """Return the tensor under a name for people; a value that has one keeps it."""
        if not tensor.value.name:
            object.__setattr__(tensor.value, "name", name)  # write-once, and for people only
        return tensor

    @property
    def scope(self) -> str:
        """The path that nodes are stamped with now."""
        return self._stamp.scope

    def locate_error(self, error: MithrilError) -> MithrilError:
        """Return an error that names the layer and the line nodes are being made for."""
        place = self.place()
        return type(error)(f"{error}{place}") if place else error

    def attempt(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return what a function returns; its errors name the line of the user's being traced."""
        try:
            return function(*arguments, **options)
        except MithrilError as error:
            is_known = self.here() is None or self.place() in str(error)
            raise (error if is_known else self.locate_error(error)) from error.__cause__

    def place(self) -> str:
        """Return ` (in layer 'path', file:line)` for a message, as far as it is known."""
        scope, source = self._stamp.scope, self._stamp.source or self.here()
        place = [f"{self.kind} '{scope}'"] if scope else []
        place += [f"{source.file}:{source.line}"] if source else []
        return f" (in {', '.join(place)})" if place else ""

    def build(self, outputs: Mapping[str, Tensor]) -> Graph:
        """Close the graph with these outputs."""
        values = {name: tensor.value for name, tensor in outputs.items()}
        return Graph(tuple(self._inputs), tuple(self._nodes), values)


class _Stamped:
    """A context in which a builder has another stamp; no generator, as passes enter one a node."""

    __slots__ = ("_builder", "_other")

    def __init__(self, builder: Builder, stamp: _Stamp) -> None:
        self._builder, self._other = builder, stamp

    def __enter__(self) -> None:
        builder = self._builder
        builder._stamp, self._other = self._other, builder._stamp

    def __exit__(self, *_: object) -> None:
        self._builder._stamp = self._other


class _Stamp:
    __slots__ = ("cause", "phase", "scope", "source")

    def __init__(
        self,
        scope: str = "",
        source: Source | None = None,
        phase: Phase = Phase.forward,
        cause: Cause | None = None,
    ) -> None:
        self.scope = scope
        self.source = source
        self.phase = phase
        self.cause = cause
