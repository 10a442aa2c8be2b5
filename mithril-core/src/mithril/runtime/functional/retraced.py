"""Functions that are traced at each call: what they use from around them is that of the call.

Plans are kept by the backend, and found again by what they compute.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

from mithril.ir import Graph
from mithril.ir.identity import identify_graph
from mithril.ir.rewrite import all_nodes
from mithril.ops.own_kernel import choose_op
from mithril.runtime.call import Bound
from mithril.runtime.capture import Captured
from mithril.runtime.functional.arguments import Arguments, Signature, name_of
from mithril.runtime.functional.arriving import Arriving
from mithril.runtime.functional.binding import TracedFunction, bind_traced, trace_function
from mithril.runtime.functional.function import find_backend
from mithril.runtime.functional.options import FunctionOptions
from mithril.runtime.functional.tracing import FunctionBuilder
from mithril.runtime.lru import LRUCache
from mithril.trees import rebuild

_OPTIONS = FunctionOptions()


class RetracedFunction:
    """A function that runs as one plan, which is found by a trace of each call.

    Args:
        function: called with traced tensors.
        is_fixed: tells which leaves of arguments and results are values of Python.
    """

    def __init__(
        self, function: Callable[..., Any], is_fixed: Callable[[object], bool] | None = None
    ) -> None:
        self._function, self._name = function, name_of(function)
        self._is_fixed = is_fixed
        self._signature = Signature(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Trace the function, and run the plan of what it computes."""
        leaves: list[Any] = []
        form = self._signature.read(args, kwargs, Arguments(), leaves, self._is_fixed)
        backend = find_backend(self._name, leaves)
        arriving = Arriving.of(form, _OPTIONS, self._name)
        arrays = arriving.arrays(backend, leaves)
        kinds = arriving.say([x.kind for x in arrays])
        builder = FunctionBuilder(backend, self._name)
        traced = trace_function(builder, self._function, form, arriving, kinds, self._is_fixed)
        traced.check_numbers(leaves)
        traced.check_indices(leaves)
        said = tuple(kind.said for kind in traced.captured.kinds)
        key = _identify_program(traced.graph, backend.name), tuple(kinds), said
        known: LRUCache[object, Bound[TracedFunction]] = backend.retraced
        bound = known.get(key)
        if bound is None:
            bare = replace(traced, captured=Captured(()))  # arrays are not kept with plans
            bound = bind_traced(builder, traced, arriving, kinds, _OPTIONS).of(bare)
            known.put(key, bound)
        given = bound.settle([*arrays, *traced.captured.held])
        return rebuild(traced.structure, bound.run(given))


def _identify_program(graph: Graph, backend: str) -> Hashable:
    """Return a key of a graph with the kernels of users that a backend runs it by now."""
    return identify_graph(graph), tuple(type(choose_op(n.op, backend)) for n in all_nodes(graph))


__all__ = ["RetracedFunction"]
