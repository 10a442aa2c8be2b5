"""Control: repeating a piece of a program, and keeping values apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mithril.errors import GraphError
from mithril.ir.graph import Graph
from mithril.ir.op import Cost, Cotangents, Op, Tensors, Types, register
from mithril.ir.operand import apply, apply_one
from mithril.ir.repeat import Repeat, check_count
from mithril.ir.rule import FactorDims, Rule
from mithril.ir.running import trace_of_call, tracing
from mithril.ir.tensor import Builder, Tensor


@register
@dataclass(frozen=True)
class After(Op):
    """The first operand, not before the second one exists; no compiler may look through it.

    Rematerialisation and unrolled loops are built on it: it keeps values from being fused with, or
    shared across, what comes before.
    """

    name: ClassVar[str] = "after"

    def infer(self, inputs: Types) -> Types:
        return [inputs[0]]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [cotangents[0], None]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        sizes = {f"d{i}": size for i, size in enumerate(inputs[0].shape)}
        dims: FactorDims = tuple((name,) if size > 1 else () for name, size in sizes.items())
        unseen: FactorDims = ((),) * inputs[1].rank
        return Rule(sizes, (dims, unseen), (dims,), linear=((0,),), ignored=frozenset([1]))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(0, outputs[0].nbytes)


def after(x: Any, dependency: Any) -> Any:
    """Return x, made no earlier than `dependency`; see `After`.

    Args:
        x: any tensor.
        dependency: any tensor; its values are not used.

    Returns:
        The elements, shape and dtype of x.

    >>> after(backend.array([1, 2]), backend.ones(3)).numpy()
    array([1, 2], dtype=int32)
    """
    return apply_one(After(), x, dependency)


def repeat(
    function: Callable[..., Any],
    carry: Any,
    *,
    stacked: Sequence[Any] = (),
    count: int | None = None,
    reverse: bool = False,
) -> Any:
    """Run a function again and again on what it returned the time before, as one loop of the plan.

    Planning, compiling and printing see the function once, however often it runs. The gradient is a
    loop in the other direction.

    Args:
        function: called once, with traced tensors: the carries, then one slice of each stacked
            tensor. It returns the next carries, then any values to stack, in one tuple (or a lone
            tensor). Tensors from outside that it uses are the same in every iteration.
        carry: the tensor, or sequence of tensors, the first iteration starts from.
        stacked: tensors with a leading dimension of one slice an iteration.
        count: number of iterations; by default the leading size of the stacked tensors.
        reverse: take the slices from the last to the first.

    Returns:
        The last carries, then the stacked values, in a tuple; the lone tensor when there is one.

    Raises:
        GraphError: the number of iterations is not known, or the function returns too few tensors.
        ShapeError: a carry changes its shape or dtype, or leading sizes differ.

    >>> x = backend.ones(3)
    >>> repeat(lambda x: x * 2.0, x, count=4).numpy().tolist()
    [16.0, 16.0, 16.0]
    """
    carries = tuple(carry) if isinstance(carry, list | tuple) else (carry,)
    if not carries:
        raise GraphError("repeat has no carry; give the tensor the first iteration starts from")
    outer = trace_of_call((*carries, *stacked))
    if outer is not None and not outer.records:
        return function(*carries, *(x[0] for x in stacked))
    times = check_count(count, [x.type for x in stacked])
    body, captured = trace_body(function, carries, stacked, outer)
    op = Repeat(body, times, len(carries), len(stacked), reverse)
    results = apply(op, *carries, *captured, *stacked)
    return results[0] if len(results) == 1 else results


def trace_body(
    function: Callable[..., Any],
    carries: Sequence[Any],
    stacked: Sequence[Any],
    outer: Builder | None,
) -> tuple[Graph, tuple[Tensor, ...]]:
    """Return the graph of one call of a function, and the outer tensors it uses.

    Args:
        function: as that of `repeat`.
        carries: the tensors that the first iteration starts from; only their types count.
        stacked: tensors with a leading dimension of one slice an iteration.
        outer: the trace around the loop, None for none.

    Returns:
        The graph, its inputs in the order carries, outer tensors, slices; and these outer tensors.

    Raises:
        GraphError: the function does not return a tensor for every carry.

    >>> graph, captured = trace_body(lambda x: x * 2.0, [backend.ones(3)], [], None)
    >>> print(graph)
    graph(
      carry_0: float32[3],
    )
      %1: float32[] = constant[value=2.0, dtype='float32']()
      %2: float32[3] = multiply(carry_0, %1)
      return carry_0=%2
    """
    builder = Builder(inside=outer)
    inner = [builder.input(x.type, f"carry_{i}") for i, x in enumerate(carries)]
    slices = [
        builder.input(x.type.with_shape(x.shape[1:]), builder.free_name(_name(x) or f"slice_{i}"))
        for i, x in enumerate(stacked)
    ]
    with tracing(builder):
        returned = function(*inner, *slices)
    results = tuple(returned) if isinstance(returned, list | tuple) else (returned,)
    if len(results) < len(carries) or not all(isinstance(x, Tensor) for x in results):
        raise GraphError(
            f"repeat has {len(carries)} carries and its function returns {len(results)} values; "
            f"return the next value of every carry, as tensors"
        )
    names = [f"carry_{i}" if i < len(carries) else f"made_{i}" for i in range(len(results))]
    graph = builder.build(dict(zip(names, map(builder.own, results), strict=True)))
    first, behind = len(carries), len(carries) + len(stacked)
    inputs = (*graph.inputs[:first], *graph.inputs[behind:], *graph.inputs[first:behind])
    return Graph(inputs, graph.nodes, graph.outputs), builder.captured


def _name(x: Any) -> str:
    return x.value.name if isinstance(x, Tensor) else ""


__all__ = ["After", "after", "repeat", "trace_body"]
