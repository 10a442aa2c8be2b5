"""scan: a function run again and again on what it carries, as one loop of the plan.

Inside a function or layer that is traced the loop becomes a part of that trace. On concrete arrays
it is traced by itself and runs at once; a loop that was met before is not planned again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

from mithril.errors import GraphError, ShapeError
from mithril.ir import Builder, Repeat, Tensor, Value
from mithril.ir.running import trace_of_call
from mithril.ir.tensor import Number
from mithril.keywords import checked_keywords
from mithril.models.trace_context import mark_parts
from mithril.ops import broadcast_to, cast
from mithril.option_checks import check_flag
from mithril.runtime.functional.arguments import name_of
from mithril.runtime.functional.retraced import RetracedFunction
from mithril.runtime.functional.tracing import (
    Inner,
    as_given,
    innermost,
    lift,
    trace_inside,
)
from mithril.trees import Structure, flatten, names, rebuild
from mithril.types import DType, TensorType, to_python


@checked_keywords()
def scan(
    function: Callable[..., Any],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Run a function along the first dimension of arrays, carrying a state; as `jax.lax.scan`.

    However long the loop, the function is called and planned once. It works on arrays at once, in
    `ml.jit`, in a layer, and inside another `scan`; it has gradients. What the function uses from
    around it, parameters of a layer too, is the same in every iteration.

    Args:
        function: called as `function(carry, x)`; returns the next carry, of the same form, shapes
            and dtypes, and what is stacked, any tree (None for nothing), as a pair.
        init: the carry that the first iteration gets: a tree of arrays and numbers; None for none.
        xs: a tree of arrays; iteration i gets their rows i, `x`. None for none: `x` is None then.
        length: number of iterations, where `xs` has no arrays to tell it.
        reverse: go from the last row to the first; what is stacked stands in the order of the rows.

    Returns:
        The last carry, and what was stacked, one row an iteration.

    Raises:
        GraphError: the number of iterations is not known, or the function returns no such pair.
        ShapeError: arrays of `xs` differ in their first size, or a carry changes shape or dtype.
        BackendError: there is no array of a backend among arrays that are to run at once.

    >>> import mithril as ml
    >>> x = ml.NumpyBackend().array([1.0, 2.0, 3.0])
    >>> total, sums = scan(lambda total, x: (total + x, total + x), 0.0, x)
    >>> total.item(), sums.numpy().tolist()
    (6.0, [1.0, 3.0, 6.0])
    """
    if not callable(function):
        raise GraphError(f"scan() takes a function, not {function!r}; write scan(function, init)")
    loop = _Loop.read(function, init, xs, length, check_flag("reverse", to_python(reverse)))
    outer = trace_of_call((*loop.carries, *loop.stacked))
    return loop.run() if outer is None else loop.trace(outer)


@dataclass(frozen=True, slots=True, eq=False)
class _Loop:
    """A call of `scan`: its function, its operands leaf by leaf, and their trees."""

    function: Callable[..., Any]
    carries: Sequence[Any]
    stacked: Sequence[Any]
    carried: Structure
    rows: Structure
    length: int | None
    reverse: bool

    @staticmethod
    def read(
        function: Callable[..., Any], init: Any, xs: Any, length: int | None, reverse: bool
    ) -> _Loop:
        carries: list[Any] = []
        stacked: list[Any] = []
        carried, rows = flatten(init, carries), flatten(xs, stacked)
        return _Loop(function, carries, stacked, carried, rows, length, reverse)

    @property
    def names(self) -> tuple[str, ...]:
        """What the carries are called."""
        return tuple(names(self.carried, "carry"))

    def trace(self, outer: Builder) -> tuple[Any, Any]:
        """Return the results as parts of another trace."""
        if not outer.records:
            return self._call_once(outer)
        with outer.within(name_of(self.function), is_wrapper=True):
            ready = self._prepare(outer)
            if ready.op is None:
                return self._results(ready, [*ready.carries, *ready.body.no_rows(outer)])
            return self._results(ready, outer.apply(ready.op, *ready.operands))

    def run(self) -> tuple[Any, Any]:
        """Return the results for arrays, at once.

        Raises:
            BackendError: there is no array among them.
        """

        @wraps(self.function)
        def trace(carries: list[Any], stacked: list[Any]) -> tuple[Any, Any]:
            return replace(self, carries=carries, stacked=stacked).trace(innermost())

        made: tuple[Any, Any] = RetracedFunction(trace)(self.carries, self.stacked)
        return made

    def _call_once(self, outer: Builder) -> tuple[Any, Any]:
        """Return the results of one iteration, of which nothing is known."""
        what = f"of scan() of function '{name_of(self.function)}'"
        carries = [lift(outer, x, f"the carry {what}") for x in self.carries]
        rows = [lift(outer, x, f"xs {what}")[0] for x in self.stacked]
        returned = self.function(rebuild(self.carried, carries), rebuild(self.rows, rows))
        after, made = self._pair(returned, outer)
        return rebuild(self.carried, after), made

    def _prepare(self, outer: Builder) -> _Ready:
        """Return the loop and its operands, as tensors of a trace."""
        what = f"of scan() of function '{name_of(self.function)}'"
        carries = [lift(outer, x, f"the carry {what}") for x in self.carries]
        stacked = [lift(outer, x, f"xs {what}") for x in self.stacked]
        count = self._count([x.type for x in stacked])
        body, carries = self._body(outer, carries, stacked)
        return _Ready(body, carries, stacked, body.loop(count, self.reverse) if count else None)

    # ------------------------------------------------------------------ the body

    def _body(
        self, outer: Builder, carries: list[Tensor], stacked: Sequence[Tensor]
    ) -> tuple[_Body, list[Tensor]]:
        """Return one iteration, and the carries it starts from in the dtypes that it needs.

        A number of Python has the dtype of the array that it meets, which the function tells.
        """
        forget_parts = mark_parts()
        body = self._trace_body(outer, carries, stacked)
        changed = [
            _in_dtype(x, after.type.dtype)
            if x.is_number and x.shape == after.type.shape and x.dtype != after.type.dtype
            else x
            for x, after in zip(carries, body.after, strict=True)
        ]
        if any(x is not y for x, y in zip(carries, changed, strict=True)):
            carries = changed
            forget_parts()  # layers that the first trace called are called again
            body = self._trace_body(outer, carries, stacked)
        for name, x, after in zip(self.names, carries, body.after, strict=True):
            if x.type != after.type:
                raise ShapeError(
                    f"scan() carries '{name}' into an iteration of function "
                    f"'{name_of(self.function)}' as {x.type} and out of it as {after.type}; a "
                    f"carry keeps its shape and dtype{outer.place()}"
                )
        return body, carries

    def _trace_body(
        self, outer: Builder, carries: Sequence[Tensor], stacked: Sequence[Tensor]
    ) -> _Body:
        made: list[Structure] = []

        def run(tensors: list[Tensor]) -> object:
            builder = innermost()
            state = list(map(as_given, tensors, carries))
            rows = rebuild(self.rows, tensors[len(carries) :])
            returned = self.function(rebuild(self.carried, state), rows)
            after, rows = self._pair(returned, builder)
            leaves: list[Any] = []
            made.append(flatten(rows, leaves))
            what = f"result of function '{name_of(self.function)}'"
            return [[lift(builder, x, what) for x in group] for group in (after, leaves)]

        types = [(name, x.type) for name, x in zip(self.names, carries, strict=True)]
        types += [
            (name, x.type.with_shape(x.shape[1:]))
            for name, x in zip(names(self.rows, "x"), stacked, strict=True)
        ]
        inner = trace_inside(outer, run, types)
        return _Body(inner, len(carries), len(stacked), made[0])

    def _pair(self, returned: object, builder: Builder) -> tuple[list[Any], Any]:
        """Return the leaves of the next carry, and what is stacked."""
        called = name_of(self.function)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise GraphError(
                f"function '{called}' of scan() returns no pair; return (next carry, what is "
                f"stacked), with None for nothing{builder.place()}"
            )
        after: list[Any] = []
        structure = flatten(returned[0], after)
        if list(names(structure, "carry")) != list(self.names):
            raise GraphError(
                f"function '{called}' of scan() gets the carry {list(self.names)} and returns "
                f"{list(names(structure, 'carry'))}; return the next carry in the form of the one "
                f"before{builder.place()}"
            )
        return after, returned[1]

    def _count(self, stacked: Sequence[TensorType]) -> int:
        """Return the number of iterations."""
        count, told = to_python(self.length), "length="
        called = name_of(self.function)
        for name, type in zip(names(self.rows, "xs"), stacked, strict=True):
            size = type.shape[0] if type.rank else None
            if size is None:
                raise ShapeError(
                    f"scan() of function '{called}' goes along the first dimension of '{name}', "
                    f"and that is a scalar; give [length, ...], or carry it"
                )
            if count is None:
                count, told = size, f"'{name}'"
            if size != count:
                raise ShapeError(
                    f"scan() of function '{called}' has {count} iterations by {told} and {size} by "
                    f"'{name}'; give arrays of the same first size"
                )
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise GraphError(
                f"scan() of function '{called}' runs {count!r} times; give xs, or an integer "
                f"length= of 0 or more"
            )
        return count

    def _results(self, ready: _Ready, results: Sequence[Any]) -> tuple[Any, Any]:
        first = len(self.carries)
        rows = rebuild(ready.body.structure, results[first:])
        return rebuild(self.carried, results[:first]), rows


@dataclass(frozen=True, slots=True, eq=False)
class _Body:
    """One iteration, traced.

    Args:
        inner: its graph: first carries, rows, and what it uses from around it.
        carried: number of carries.
        stacked: number of rows.
        structure: of the tree that is stacked.
    """

    inner: Inner
    carried: int
    stacked: int
    structure: Structure

    @property
    def around(self) -> tuple[Tensor, ...]:
        """The tensors from around that every iteration uses."""
        return self.inner.around

    @property
    def after(self) -> list[Value]:
        """The next carries."""
        return list(self.inner.graph.outputs.values())[: self.carried]

    @property
    def made(self) -> list[Value]:
        """What is stacked."""
        return list(self.inner.graph.outputs.values())[self.carried :]

    def no_rows(self, outer: Builder) -> list[Tensor]:
        """Return what is stacked where there is no iteration."""
        zeros = ((outer.constant(0, v.type.dtype), v.type.shape) for v in self.made)
        return [broadcast_to(zero, (0, *shape)) for zero, shape in zeros]

    def loop(self, count: int, reverse: bool) -> Repeat:
        """Return the loop."""
        graph, first, last = self.inner.graph, self.carried, self.carried + self.stacked
        inputs = (*graph.inputs[:first], *graph.inputs[last:], *graph.inputs[first:last])
        return Repeat(replace(graph, inputs=inputs), count, self.carried, self.stacked, reverse)


@dataclass(frozen=True, slots=True, eq=False)
class _Ready:
    """A loop and its operands.

    Args:
        body: one iteration.
        carries: what the first one starts from.
        stacked: what each takes a row of.
        op: the loop; None where there is no iteration.
    """

    body: _Body
    carries: Sequence[Tensor]
    stacked: Sequence[Tensor]
    op: Repeat | None

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """The operands of the loop."""
        return (*self.carries, *self.body.around, *self.stacked)


def _in_dtype(x: Tensor, dtype: DType) -> Tensor:
    """Return a number in another dtype; one that is known, without a cast."""
    if isinstance(x, Number) and x.known is not None:
        return Number(x.builder, x.builder.constant(x.known, dtype).value, known=x.known)
    converted: Tensor = cast(x, dtype)
    return converted


__all__ = ["scan"]
