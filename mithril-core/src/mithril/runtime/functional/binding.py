"""From a function and the kinds of its arguments to a plan that runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mithril.compiler import Request
from mithril.compiler.recompute_options import name_axes
from mithril.ir import Graph, Tensor
from mithril.ir.graph import free_name
from mithril.ir.running import tracing
from mithril.ir.tensor import Number
from mithril.ops import cast
from mithril.ops.constrain import apply_constraint
from mithril.runtime.array import ArrayBackend, Kind
from mithril.runtime.call import Bound, Interface, bind, says_sharding
from mithril.runtime.capture import Captured
from mithril.runtime.functional.arguments import Form
from mithril.runtime.functional.arriving import Arriving, sharding_of
from mithril.runtime.functional.options import FunctionOptions
from mithril.runtime.functional.tracing import FunctionBuilder, lift
from mithril.runtime.host_indices import IndexUse, check_host_indices, find_index_uses
from mithril.runtime.memory_planning import choose_engine
from mithril.runtime.submesh import placement_by
from mithril.sharding import FREE, UNSAID, Layout
from mithril.trees import Structure, flatten, names, spread
from mithril.types import DType, check_number

Limit = tuple[int, DType, str]
"""The position of a leaf that is a Python number, an integer dtype it is taken in, and its name."""


@dataclass(slots=True, eq=False)
class TracedFunction:
    """A function that was traced for arguments of some form and kinds.

    Args:
        structure: of what it returned.
        captured: arrays that it uses besides its arguments.
        limits: which of its arguments have to fit an integer dtype.
        graph: what was traced; its first inputs are the arguments.
        results: names of its outputs, leaf by leaf.
    """

    structure: Structure
    captured: Captured
    limits: Sequence[Limit]
    graph: Graph
    results: tuple[str, ...]
    _index_uses: tuple[IndexUse, ...] | None = field(default=None, init=False)

    def check_numbers(self, leaves: Sequence[Any]) -> None:
        """Raise unless the numbers among the leaves fit the integers they are taken as.

        Raises:
            ShapeError: one does not.
        """
        for position, dtype, what in self.limits:
            check_number(leaves[position], dtype, what)

    def check_indices(self, leaves: Sequence[Any]) -> None:
        """Raise unless arguments in host memory can be what the function chooses by.

        Raises:
            ShapeError: an id names no row, or a target no class.
        """
        names = [value.name for value in self.graph.inputs]
        if self._index_uses is None:
            self._index_uses = find_index_uses(self.graph)
        check_host_indices(self._index_uses, names, leaves)


def bind_function(
    function: Callable[..., Any],
    name: str,
    backend: ArrayBackend,
    form: Form,
    arriving: Arriving,
    kinds: Sequence[Kind],
    options: FunctionOptions,
    is_fixed: Callable[[object], bool] | None = None,
) -> Bound[TracedFunction]:
    """Trace a function for arguments of some kinds, and plan it.

    Args:
        function: called once, with tensors.
        name: its name.
        backend: where it will run.
        form: of the arguments.
        arriving: names of their leaves, and how they arrive.
        kinds: of their leaves.
        options: of the function.
        is_fixed: tells which leaves of results are values of Python.
    """
    builder = FunctionBuilder(backend, name)
    traced = trace_function(builder, function, form, arriving, kinds, is_fixed)
    return bind_traced(builder, traced, arriving, kinds, options)


def trace_function(
    builder: FunctionBuilder,
    function: Callable[..., Any],
    form: Form,
    arriving: Arriving,
    kinds: Sequence[Kind],
    is_fixed: Callable[[object], bool] | None = None,
) -> TracedFunction:
    """Return a function traced for arguments of some kinds; for the arguments see `bind_function`.

    Args:
        builder: of its graph.
    """
    name = builder.name
    with tracing(builder), builder.at(scope=name):
        inputs = _inputs(builder, arriving, kinds, form.leaf_numbers())
        returned = form.call(function, iter(inputs))
        leaves: list[Any] = []
        structure = flatten(returned, leaves, is_fixed)
        called: dict[str, None] = {}  # two keys of a dict may read alike, such as 1 and "1"
        for leaf_name in names(structure, "result"):
            called[free_name(leaf_name, called)] = None
        whats = [f"'{n}' of function '{name}'" for n in called]
        tensors = [lift(builder, x, what) for x, what in zip(leaves, whats, strict=True)]
    graph = builder.build(dict(zip(called, tensors, strict=True)))
    builder.is_done = True
    limits = [
        (i, dtype, arriving.what(i))
        for i, x in enumerate(inputs)
        if isinstance(x, Number)
        for dtype in sorted(x.met)
        if dtype.is_integer
    ]
    return TracedFunction(
        structure, Captured(builder.captured_arrays), limits, graph, tuple(called)
    )


def bind_traced(
    builder: FunctionBuilder,
    traced: TracedFunction,
    arriving: Arriving,
    kinds: Sequence[Kind],
    options: FunctionOptions,
) -> Bound[TracedFunction]:
    """Return a traced function planned; for the arguments see `trace_function`."""
    backend, graph = builder.backend, traced.graph
    arrive = [*kinds, *(kind.said for kind in traced.captured.kinds)]
    known = tuple(value.name for value in graph.inputs)
    request = _request(builder, graph, arriving, arrive, traced.structure, options)
    interface = Interface(
        f"function '{builder.name}'", backend, traced, known, traced.results, arriving.donated,
        is_placed=_says_sharding(graph, request),
    )  # fmt: skip
    return bind(
        choose_engine(backend.engine, options.memory_planning, ranges=options.partition_hooks),
        graph,
        replace(request, placement=placement_by(backend.mesh, arrive, known)),
        interface,
        replace(
            backend.communication.apply(options.plan),
            pads=(options.uneven or backend.uneven) == "pad",
            recompute=name_axes(options.plan.recompute, backend.mesh),
        ),
    )


def _inputs(
    builder: FunctionBuilder, arriving: Arriving, kinds: Sequence[Kind], numbers: Sequence[bool]
) -> list[Tensor]:
    """Return the tensors that a function is called with, lying as they shall."""
    backend, found = builder.backend, []
    leaves = zip(arriving.names, arriving.specs, kinds, numbers, strict=True)
    for position, (name, spec, kind, is_number) in enumerate(leaves):
        resting = arriving.rest_spec(kind.type, position)
        tensor = builder.input(kind.type, builder.free_name(name))
        lies = arriving.arrival(kind, position)
        builder.lies[tensor.value] = (
            Layout(follows=tensor.value.name) if lies is None else Layout(leaves=lies)
        )
        if kind.is_placed and spec is not None and resting is None and backend.mesh.size > 1:
            wanted = sharding_of(backend, spec, kind.type, arriving.what(position), arriving.uneven)
            if wanted != kind.sharding:
                tensor = builder.assign_name(apply_constraint(tensor, spec), name)
                builder.lies[tensor.value] = Layout(leaves=wanted)
        found.append(_as_number(builder, tensor) if is_number else tensor)
    return found


def _as_number(builder: FunctionBuilder, tensor: Tensor) -> Number:
    """Return an argument that is a number of Python; in float64 only where it meets such arrays."""
    default = builder.default_float
    if tensor.dtype != DType.float64 or default == DType.float64:
        return Number(builder, tensor.value)
    return Number(builder, cast(tensor, default).value, wide=tensor)


def _request(
    builder: FunctionBuilder,
    graph: Graph,
    arriving: Arriving,
    arrive: Sequence[Kind],
    structure: Structure,
    options: FunctionOptions,
) -> Request:
    """Return how the values of a function's graph lie.

    Args:
        builder: that traced it.
        graph: of the function.
        arriving: how its arguments arrive.
        arrive: the kinds of everything that goes in.
        structure: of what comes out.
        options: of the function.
    """
    backend = builder.backend
    arrivals = [
        arriving.arrival(kind, i) if i < len(arriving.names) else kind.sharding
        for i, kind in enumerate(arrive)
    ]
    layouts = {
        value.name: Layout(arrives=FREE if lies is None else lies)
        for value, lies in zip(graph.inputs, arrivals, strict=True)
    }
    for position in range(len(arriving.names)) if backend.mesh.size > 1 else ():
        value, wanted = graph.inputs[position], arriving.specs[position]
        spec = arriving.rest_spec(value.type, position)
        if spec is not None:
            what, lies = arriving.what(position), arrivals[position]
            layouts[value.name] = Layout(
                arrives=lies,
                computed=None
                if wanted is None
                else sharding_of(backend, wanted, value.type, what, options.uneven),
                rests=lies,
                decided_by=f"at_rest {spec!r} of function '{builder.name}'",
            )
    specs = spread(options.out_shardings, structure, "result")
    for (name, value), spec in zip(graph.outputs.items(), specs, strict=True):
        if spec is not None:
            what = f"'{name}' of function '{builder.name}'"
            leaving = Layout(leaves=sharding_of(backend, spec, value.type, what, options.uneven))
        elif value in builder.lies and builder.lies[value].follows != value.name:
            leaving = builder.lies[value]
        else:
            continue
        layouts[name] = replace(
            layouts.get(name, UNSAID), leaves=leaving.leaves, follows=leaving.follows
        )
    return Request(layouts)


def _says_sharding(graph: Graph, request: Request) -> bool:
    """Return whether anybody says how anything of a function lies."""
    said = (sharding for layout in request.layouts.values() for sharding in layout.shardings())
    return any(True for _ in said) or says_sharding(graph)
