"""grad and value_and_grad: the derivative of a function, as a function.

On concrete arrays it runs as one plan, traced at each call. Inside a function that is traced,
forward and backward computation become a part of that trace, and can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import wraps
from typing import Any

from mithril.errors import GraphError, OptionError, kind_of
from mithril.ir import Builder, Tensor
from mithril.ir.rewrite import inline
from mithril.ir.running import trace_around, trace_of_call
from mithril.keywords import checked_keywords
from mithril.option_checks import check_flag
from mithril.runtime.functional.arguments import Signature, name_of
from mithril.runtime.functional.function import is_value
from mithril.runtime.functional.retraced import RetracedFunction
from mithril.runtime.functional.tracing import (
    FunctionBuilder,
    Output,
    as_given,
    innermost,
    lift,
    trace_inside,
)
from mithril.transform import differentiate, gradient_of
from mithril.trees import Structure, flatten, names, rebuild, together
from mithril.types import to_python

VALUE = Output("result.0")


@checked_keywords()
def grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return the function that gives the gradient of a scalar function.

    Args:
        function: returns a float scalar; with `has_aux` a pair of that and anything else.
        argnums: positions of the arguments it is differentiated by, which may be trees.
        has_aux: whether the function returns more than the scalar.

    Returns:
        A function of the same arguments. It returns the gradient in the form of the argument and
        lying as it does; a tuple of gradients for several `argnums`; with `has_aux` a pair of the
        gradient and what else was returned. On arrays at once it calls the function each time, and
        finds the plan again by what it computes; put it into `ml.jit` where it runs often.

    Raises:
        OptionError: `argnums` are no positions.

    >>> import mithril as ml
    >>> x = ml.NumpyBackend().array([1.0, 2.0])
    >>> grad(lambda x: (x * x).sum())(x).numpy()
    array([2., 4.], dtype=float32)
    """
    both = value_and_grad(function, argnums, has_aux)

    @wraps(function)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


@checked_keywords()
def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return the function that gives the value of a scalar function and its gradient.

    Args:
        function: see `grad`.
        argnums: see `grad`.
        has_aux: see `grad`; the value is then the pair that the function returns.

    Raises:
        OptionError: `argnums` are no positions.

    >>> import mithril as ml
    >>> x = ml.NumpyBackend().array([1.0, 2.0])
    >>> value, gradient = value_and_grad(lambda x: (x * x).sum())(x)
    >>> print(value.item(), gradient.numpy())
    5.0 [2. 4.]
    """
    derivative = _Derivative(function, argnums, has_aux)

    @wraps(function)
    def trace_derivative(*args: Any, **kwargs: Any) -> Any:
        return derivative.trace(args, kwargs)

    run = RetracedFunction(trace_derivative, is_value)

    @wraps(function)
    def both(*args: Any, **kwargs: Any) -> Any:
        leaves: list[Any] = []
        flatten((args, kwargs), leaves)
        if trace_of_call(leaves) is not None:
            return derivative.trace(args, kwargs, name_of(function))
        return run(*args, **kwargs)

    return both


class _Derivative:
    """A function to differentiate, and by what."""

    def __init__(
        self, function: Callable[..., Any], argnums: int | Sequence[int], has_aux: bool
    ) -> None:
        if not callable(function):
            raise GraphError(f"grad() takes a function, not {function!r}; write grad(function)")
        argnums = to_python(argnums)
        several = [argnums] if isinstance(argnums, int) else argnums
        if (
            not isinstance(several, Sequence)
            or not several
            or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in several)
        ):
            raise OptionError(
                f"argnums={argnums!r} are no positions of arguments; give an integer of 0 or more, "
                f"or a tuple of them"
            )
        if len(set(several)) < len(several):
            raise OptionError(
                f"argnums={argnums!r} names a position twice; give each once, and use its gradient "
                f"as often as you need it"
            )
        self._function = function
        self._name = name_of(function)
        self._positions = tuple(several)
        self._is_one = isinstance(argnums, int)
        self._has_aux = check_flag("has_aux", to_python(has_aux))
        self._signature = Signature(function)

    def trace(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], scope: str = "") -> Any:
        """Return the value and the gradient as parts of the trace the arguments belong to.

        Args:
            args: by position.
            kwargs: by name.
            scope: what the nodes are inside of.
        """
        args, kwargs = self._signature.canonical(args, kwargs)
        every: list[Any] = []
        flatten((args, kwargs), every)
        outer = trace_around(every) or innermost()
        if not outer.records:
            return self._call_once(args, kwargs)
        structure, called, leaves = self._select_differentiated(args, outer)

        def run(tensors: list[Tensor]) -> object:
            given = list(args)
            trees = rebuild(structure, list(map(as_given, tensors, leaves)))
            for position, tree in zip(self._positions, trees, strict=True):
                given[position] = tree
            return self._scalar(innermost(), self._function(*given, **kwargs))

        types = [(name, x.type) for name, x in zip(called, leaves, strict=True)]
        with outer.within(scope, is_wrapper=True) if scope else nullcontext():
            inner = trace_inside(outer, run, types)
        wanted = [value.name for value in inner.graph.inputs[: len(leaves)]]
        joint = differentiate(inner.graph, [VALUE], wanted)
        seed = outer.constant(1.0, inner.graph.outputs[VALUE].type.dtype)
        made = inline(joint, outer, [*leaves, *inner.around, seed])
        gradients = [made[gradient_of(name)] for name in wanted]
        _lie_alike(outer, leaves, gradients)
        found = [made[leaf] if isinstance(leaf, Output) else leaf for leaf in inner.leaves]
        value, aux = rebuild(inner.structure, found)
        trees = rebuild(structure, gradients)
        return (value, aux) if self._has_aux else value, trees[0] if self._is_one else trees

    def _call_once(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the value, and arguments for gradients, where nothing is known of either."""
        value = self._function(*args, **kwargs)
        trees = tuple(args[position] for position in self._positions)
        return value, trees[0] if self._is_one else trees

    def _select_differentiated(
        self, args: tuple[Any, ...], outer: Builder
    ) -> tuple[Structure, list[str], list[Tensor]]:
        """Return what is differentiated by: the form of its trees, its names, its tensors."""
        last = max(self._positions)
        if last >= len(args):
            raise GraphError(
                f"argument {last} of function '{self._name}' is to be differentiated by, and "
                f"{len(args)} arguments are given by position; pass it, or choose other argnums"
            )
        places = self._signature.places(len(args))
        leaves: list[Any] = []
        called: list[str] = []
        structures = []
        for position in self._positions:
            structures.append(flatten(args[position], leaves))
            called += names(structures[-1], places[position])
        tensors = []
        for name, leaf in zip(called, leaves, strict=True):
            tensor = lift(outer, leaf, f"argument '{name}' of function '{self._name}'")
            if not tensor.dtype.is_float:
                raise GraphError(
                    f"argument '{name}' of function '{self._name}' is {tensor.type}; only floats "
                    f"have gradients; choose other argnums, or cast it{outer.place()}"
                )
            tensors.append(tensor)
        return together(structures), called, tensors

    def _scalar(self, builder: Builder, returned: object) -> tuple[Tensor, Any]:
        """Return the scalar that a function returned, and what else it did."""
        value, aux = returned, None
        if self._has_aux:
            if not isinstance(returned, tuple) or len(returned) != 2:
                raise GraphError(
                    f"function '{self._name}' has has_aux=True and returns no pair; return "
                    f"(scalar, anything else)"
                )
            value, aux = returned
        what = f"result of function '{self._name}'"
        if isinstance(value, dict | list | tuple) or value is None:
            raise GraphError(
                f"{what} is {kind_of(value)}, not one scalar to differentiate; return the "
                f"scalar, or (scalar, anything else) with has_aux=True"
            )
        tensor = lift(builder, value, what)
        if tensor.shape or not tensor.dtype.is_float:
            raise GraphError(
                f"{what} is {tensor.type}; a gradient needs a float scalar; return one, such as "
                f"the sum or mean{builder.place()}"
            )
        return tensor, aux


def _lie_alike(outer: Builder, leaves: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """Note that gradients which leave the function lie as the arguments they belong to."""
    if isinstance(outer, FunctionBuilder):
        for x, gradient in zip(leaves, gradients, strict=True):
            if x.value in outer.lies:
                outer.lies[gradient.value] = outer.lies[x.value]
