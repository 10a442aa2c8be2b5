"""checkpoint: what a function computes is computed again for its gradient, rather than kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numpy as np

from mithril.errors import GraphError
from mithril.ir import Checkpoint, Operand, Tensor
from mithril.ir.running import trace_of_call
from mithril.runtime.functional.arguments import name_of
from mithril.runtime.functional.tracing import Output, as_given, lift, trace_inside
from mithril.trees import flatten, rebuild


def checkpoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose intermediate values are not kept for the backward computation.

    Its gradient runs it again, on its arguments. Less memory, more work, the same numbers. On
    concrete arrays it is the function itself.

    Args:
        function: takes and returns arrays, and trees of them; its other arguments stay as they are.

    Raises:
        GraphError: it is no function.

    >>> import mithril as ml
    >>> x = ml.NumpyBackend().array([0.0, 1.0])
    >>> grad = ml.grad(lambda x: checkpoint(ml.numpy.exp)(x).sum())
    >>> [f"{slope:.3f}" for slope in grad(x)]
    ['1.000', '2.718']
    """
    if not callable(function):
        raise GraphError(
            f"checkpoint() takes a function, not {function!r}; write checkpoint(function)"
        )
    called, stay = name_of(function), partial(as_given, is_same=True)

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        leaves: list[Any] = []
        structure = flatten((args, kwargs), leaves, _stays)
        outer = trace_of_call(leaves)
        if outer is None or not outer.records:
            return function(*args, **kwargs)
        tensors = [lift(outer, x, f"argument of function '{called}'") for x in leaves]

        def run(inside: list[Tensor]) -> object:
            given, named = rebuild(structure, list(map(stay, inside, tensors)))
            return function(*given, **named)

        types = [(f"argument.{i}", x.type) for i, x in enumerate(tensors)]
        with outer.within(called, is_wrapper=True):
            inner = trace_inside(outer, run, types)
        results = outer.apply(Checkpoint(inner.graph), *tensors, *inner.around)
        made = dict(zip(inner.graph.outputs, results, strict=True))
        found = [made[leaf] if isinstance(leaf, Output) else leaf for leaf in inner.leaves]
        return rebuild(inner.structure, found)

    return wrapper


def _stays(x: object) -> bool:
    return not isinstance(x, Operand | np.ndarray)
