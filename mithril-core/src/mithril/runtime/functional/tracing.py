"""Tracing: a function called once, with tensors that record what it computes.

Arrays and NumPy arrays that the function uses without having got them as arguments are taken in as
hidden inputs, as they are at that time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mithril.errors import GraphError, kind_of
from mithril.ir import Builder, Graph, Source, Tensor, Value
from mithril.ir.capture import CapturingBuilder
from mithril.ir.op import Op
from mithril.ir.running import running_trace, tracing
from mithril.ir.source import user_source
from mithril.ir.tensor import Number
from mithril.mesh import PartitionSpec, check_spec_mesh
from mithril.runtime.array import ArrayBackend
from mithril.runtime.capture import convert_on
from mithril.sharding import Layout
from mithril.trees import Structure, flatten
from mithril.types import DType, Scalar, TensorType, as_dtype


class FunctionBuilder(CapturingBuilder):
    """Collects what a function computes; every node knows the user's line.

    `lies` says how arguments leave, and the gradients that shall lie as they do.

    Args:
        backend: where the function will run.
        name: what the function is called.
    """

    kind = "function"

    def __init__(self, backend: ArrayBackend, name: str) -> None:
        super().__init__(convert_on(backend, f"function '{name}'"), backend.precision.default)
        self.backend = backend
        self.name = name
        self.lies: dict[Value, Layout] = {}
        self.is_done = False

    def here(self) -> Source | None:
        """Return the user's line that is being run."""
        return user_source()

    def apply(self, op: Op, *operands: Tensor) -> tuple[Tensor, ...]:
        """Append a node and return its results.

        Raises:
            GraphError: the trace is over.
        """
        if self.is_done:
            raise GraphError(
                f"a traced tensor of function '{self.name}' is used after the function returned; "
                f"return it from the function, and use what comes out"
            )
        return super().apply(op, *operands)


def innermost() -> Builder:
    """Return the builder of the function that is being traced; there is one."""
    builder = running_trace()
    assert builder is not None, "nothing is being traced"
    return builder


def check_traced_spec(builder: Builder, spec: PartitionSpec, what: str) -> None:
    """Raise if a spec was read from a sharding of another mesh than a function is traced for.

    What is inside a layer is not checked: its graph is made for no mesh.

    Args:
        builder: the trace, perhaps of a loop or a gradient inside the function.
        spec: of a value in it.
        what: what the value is, for messages.

    Raises:
        MeshError: it was.
    """
    around: Builder | None = builder
    while around is not None and not isinstance(around, FunctionBuilder):
        around = around.inside
    if around is not None:
        check_spec_mesh(spec, around.backend.mesh, what)


def lift(builder: Builder, x: object, what: str) -> Tensor:
    """Return a leaf as a tensor of a trace.

    Args:
        builder: the trace.
        x: a tensor, an array, or a number.
        what: what it is, for messages.

    Raises:
        GraphError: it is none of these.
    """
    if isinstance(x, Tensor):
        return builder.own(x)
    if isinstance(x, bool | int | float | np.generic):
        number = x.item() if isinstance(x, np.generic) else x
        dtype = _dtype_of(x, builder.default_float)
        return Number(builder, builder.constant(number, dtype).value, known=number)
    adopted = builder.adopt(x)
    if adopted is None:
        raise GraphError(
            f"{what} is {kind_of(x)}, which is no array; give arrays, numbers, and dicts, "
            f"lists and tuples of them{builder.place()}"
        )
    return builder.own(adopted)


def as_given(inside: Tensor, given: Tensor, *, is_same: bool = False) -> Tensor:
    """Return the argument of a trace inside of another; what is a number of Python stays one.

    Args:
        inside: the argument.
        given: what it stands for in the trace around.
        is_same: whether it has that value, and nothing is differentiated by it.
    """
    if not isinstance(given, Number):
        return inside
    return Number(inside.builder, inside.value, met=given.met, wide=given.wide if is_same else None)


def _dtype_of(x: Scalar | np.generic, default_float: DType) -> DType:
    """Return the dtype a number has where it meets no array."""
    if isinstance(x, float):  # float64 of NumPy, too
        return default_float
    if isinstance(x, np.generic) and not isinstance(x, np.int64):
        return as_dtype(x.dtype)
    if isinstance(x, bool):
        return DType.bool_
    return DType.int32 if -(2**31) <= x < 2**31 else DType.int64


@dataclass(frozen=True, slots=True, eq=False)
class Inner:
    """A function traced as a part of another trace.

    Args:
        graph: its inputs are the arguments' leaves, then what was taken from around it.
        around: the tensors from around it, in the order of these inputs.
        structure: of what it returned.
        leaves: what it returned, leaf by leaf: the name of an output, or something concrete.
    """

    graph: Graph
    around: tuple[Tensor, ...]
    structure: Structure
    leaves: tuple[Any, ...]


class Output(str):
    """The name of an output of a graph, in the place of a leaf."""

    __slots__ = ()


def trace_inside(
    outer: Builder,
    function: Callable[[list[Tensor]], object],
    types: Sequence[tuple[str, TensorType]],
) -> Inner:
    """Return the graph of one call of a function inside another trace.

    Args:
        outer: that trace.
        function: called once, with a tensor for each type.
        types: names and types of these tensors.
    """
    builder = Builder(inside=outer)
    inputs = [builder.input(type, builder.free_name(name)) for name, type in types]
    with tracing(builder):
        returned = function(inputs)
    leaves: list[Any] = []
    structure = flatten(returned, leaves)
    outputs: dict[str, Tensor] = {}
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            leaves[position] = Output(f"result.{position}")
            outputs[leaves[position]] = builder.own(leaf)
    around = builder.captured
    return Inner(builder.build(outputs), around, structure, tuple(leaves))
