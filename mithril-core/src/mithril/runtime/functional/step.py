"""From a function and the kinds of its arguments to a plan that runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from mithril.compiler import PlanOptions, Request, Target, make_plan
from mithril.engine import Executable
from mithril.errors import BackendError, GraphError, kind_of
from mithril.ir import Graph, Tensor
from mithril.ir.running import tracing
from mithril.ir.tensor import Number
from mithril.mesh import PartitionSpec, Sharding
from mithril.ops.constrain import constrained
from mithril.plan import Plan
from mithril.runtime.array import Array, Kind
from mithril.runtime.backend import Backend, as_array, lower
from mithril.runtime.functional.arguments import Form
from mithril.runtime.functional.tracing import FunctionBuilder, Taken, lift
from mithril.runtime.functional.tree import Structure, flatten, names, spread
from mithril.runtime.specification import TensorSpec
from mithril.runtime.submesh import placement_by
from mithril.sharding import FREE, UNSAID, Layout
from mithril.types import DType, TensorType, check_number

Specs = list[PartitionSpec | None]
Limit = tuple[int, DType, str]
"""The position of a leaf that is a Python number, an integer dtype it is taken in, and its name."""


@dataclass(frozen=True, slots=True, eq=False)
class FunctionOptions:
    """What a function was told about its arguments and results.

    Args:
        inputs: `in_shardings`.
        outputs: `out_shardings`.
        donated: names of the arguments that are given up.
    """

    inputs: object = None
    outputs: object = None
    donated: frozenset[str] = frozenset()

    def specs(self, form: Form, static: frozenset[str], function: str) -> Specs:
        """Return how each leaf shall lie, None for as it does.

        Raises:
            GraphError: `in_shardings` does not have the form of the arguments.
        """
        given = [item for item in form.positional if item[0] not in static]
        if self.inputs is None or isinstance(self.inputs, PartitionSpec):
            prefixes = [self.inputs] * len(given)
        elif isinstance(self.inputs, list | tuple) and len(self.inputs) == len(given):
            prefixes = list(self.inputs)
        else:
            raise GraphError(
                f"in_shardings={self.inputs!r} does not fit function '{function}'; give one P(…) "
                f"for all arguments, or a tuple with one entry for each of the {len(given)} by "
                f"position that are not static"
            )
        wanted = dict(zip((name for name, _ in given), prefixes, strict=True))
        return [
            spec
            for name, structure in form.arguments
            for spec in spread(wanted.get(name), structure, f"argument '{name}'")
        ]


@dataclass(frozen=True, slots=True, eq=False)
class Arriving:
    """How the leaves of a form arrive.

    Args:
        names: what they are called.
        specs: how each shall lie.
        donated: positions of those that are given up.
        function: the function's name, for messages.
    """

    names: list[str]
    specs: Specs
    donated: tuple[int, ...]
    function: str

    @staticmethod
    def of(form: Form, options: FunctionOptions, static: frozenset[str], function: str) -> Arriving:
        """Return how the leaves of a form arrive."""
        specs = options.specs(form, static, function)
        of_argument = form.leaf_arguments()
        donated = [i for i, name in enumerate(of_argument) if name in options.donated]
        return Arriving(form.leaf_names(), specs, tuple(donated), function)

    def arrays(self, backend: Backend, leaves: Sequence[Any]) -> list[Array]:
        """Return the leaves as arrays; those of NumPy are put where they shall lie.

        Raises:
            GraphError: a leaf is no array.
            BackendError: an array belongs to another backend.
        """
        return [
            self._array(backend, *item) for item in zip(leaves, self.names, self.specs, strict=True)
        ]

    def kinds(self, backend: Backend, leaves: Sequence[Any]) -> list[Kind]:
        """Return the kinds of leaves, some of which may be `TensorSpec`s."""
        found = []
        for leaf, name, spec in zip(leaves, self.names, self.specs, strict=True):
            if isinstance(leaf, TensorSpec):
                sharding = sharding_of(backend, leaf.sharding, leaf.type, self.what(name))
                found.append(Kind(backend, leaf.type, sharding))
            else:
                found.append(self._array(backend, leaf, name, spec).kind)
        return found

    def _array(self, backend: Backend, leaf: Any, name: str, spec: PartitionSpec | None) -> Array:
        if isinstance(leaf, Array):
            array = backend.own(leaf, self.what(name))
            if not array.is_materialised:
                raise BackendError(
                    f"{self.what(name)} is a parameter without a size; it is made at the first "
                    f"evaluate() of its model; evaluate once, or pass shapes= to compile()"
                )
            return array
        if isinstance(leaf, np.ndarray | np.generic) and spec is not None:
            if backend.mesh.size == 1:
                return backend.array(leaf)
            check_rank(backend, spec, np.ndim(leaf), self.what(name))
            return backend.array(leaf, sharding=spec)
        is_host = isinstance(leaf, bool | int | float | np.ndarray | np.generic)
        if not is_host and backend.adopt(leaf) is None:
            raise GraphError(
                f"{self.what(name)} is {kind_of(leaf)}; give an array of backend "
                f"'{backend.name}', such as backend.array(…), or a number, or name the argument in "
                f"static=… if it is a value of Python"
            )
        return as_array(backend, leaf, self.what(name))

    def what(self, name: str) -> str:
        """Return what a leaf is called in messages."""
        return f"argument '{name}' of function '{self.function}'"


def check_rank(backend: Backend, spec: PartitionSpec, rank: int, what: str) -> None:
    """Raise unless a spec fits a rank and the mesh.

    Raises:
        ShardingError: it is longer than the rank.
        MeshError: the mesh lacks an axis.
    """
    Sharding.of(backend.mesh, spec, rank, what)


def sharding_of(backend: Backend, spec: PartitionSpec, type: TensorType, what: str) -> Sharding:
    """Return the sharding that a spec means for a tensor; on one device it says nothing."""
    if backend.mesh.size == 1:
        return Sharding.replicated(backend.mesh, type.rank)
    sharding = Sharding.of(backend.mesh, spec, type.rank, what)
    if backend.uneven == "error":
        sharding.check_even(type.shape, what)
    return sharding


class Step:
    """A plan of a function, and how arrays go in and come out."""

    def __init__(
        self,
        backend: Backend,
        plan: Plan,
        names: list[str],
        taken: Sequence[Taken],
        structure: Structure,
        outputs: Sequence[str],
        donated: tuple[int, ...],
        limits: Sequence[Limit],
    ) -> None:
        self.plan = plan
        self.names = names
        self.structure = structure
        self.donated = donated
        self._backend = backend
        self._taken = taken
        self._limits = limits
        place = {name: i for i, name in enumerate(names)}
        self._order = [place[port.name] for port in plan.inputs]
        made = {port.name: i for i, port in enumerate(plan.outputs)}
        self._results = [made[name] for name in outputs]
        self._kinds = [Kind(backend, p.type, p.sharding) for p in plan.outputs]

    @cached_property
    def run(self) -> Executable:
        """The lowered program, told which inputs are given up."""
        given_up = [i for i, place in enumerate(self._order) if place in self.donated]
        return lower(self._backend.engine, self.plan, given_up)

    @cached_property
    def captured(self) -> list[Array]:
        """The arrays that the function uses besides its arguments, as the plan takes them."""
        ports = {port.name: port for port in self.plan.inputs}
        return [
            self._backend.reshard(t.array, ports[t.tensor.value.name].sharding)
            if t.is_free
            else t.array
            for t in self._taken
        ]

    def check_numbers(self, leaves: Sequence[Any]) -> None:
        """Raise unless the numbers among the leaves fit the integers they are taken as.

        Raises:
            ShapeError: one does not.
        """
        for position, dtype, what in self._limits:
            check_number(leaves[position], dtype, what)

    def run_on(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the results for arrays of the kinds that were planned for."""
        handles = [x.shards for x in arrays]
        if self._taken:
            handles += [x.shards for x in self.captured]
        found = self.run([handles[i] for i in self._order])
        made = list(map(Array.of_kind, self._kinds, found))
        return [made[i] for i in self._results]


def make_step(
    function: Callable[..., Any],
    name: str,
    backend: Backend,
    form: Form,
    arriving: Arriving,
    kinds: Sequence[Kind],
    options: FunctionOptions,
    is_fixed: Callable[[object], bool] | None = None,
) -> Step:
    """Trace a function for arguments of some kinds, and plan it.

    Args:
        function: called once, with tensors.
        name: its name.
        backend: where it will run.
        form: of the arguments.
        arriving: names and options of their leaves.
        kinds: of their leaves.
        options: how results must leave.
        is_fixed: tells which leaves of results are values of Python.
    """
    builder = FunctionBuilder(backend, name)
    with tracing(builder), builder.at(scope=name):
        inputs = _inputs(builder, arriving, kinds, form.leaf_numbers())
        returned = form.call(function, iter(inputs))
        leaves: list[Any] = []
        structure = flatten(returned, leaves, is_fixed)
        called = list(names(structure, "result"))
        whats = [f"'{n}' of function '{name}'" for n in called]
        tensors = [lift(builder, x, what) for x, what in zip(leaves, whats, strict=True)]
    graph = builder.build(dict(zip(called, tensors, strict=True)))
    builder.is_done = True
    specs = list(spread(options.outputs, structure, "result"))
    arrive = [*kinds, *(taken.array.kind for taken in builder.taken)]
    placement = placement_by(backend.mesh, arrive, [value.name for value in graph.inputs])
    request = replace(_request(builder, graph, kinds, specs), placement=placement)
    planning = PlanOptions(pads=backend.uneven == "pad")
    plan = make_plan(graph, request, Target.of(backend.engine), planning)
    known = [value.name for value in graph.inputs]
    limits = [
        (i, dtype, arriving.what(arriving.names[i]))
        for i, x in enumerate(inputs)
        if isinstance(x, Number)
        for dtype in sorted(x.met)
        if dtype.is_integer
    ]
    return Step(backend, plan, known, builder.taken, structure, called, arriving.donated, limits)


def _inputs(
    builder: FunctionBuilder, arriving: Arriving, kinds: Sequence[Kind], numbers: Sequence[bool]
) -> list[Tensor]:
    """Return the tensors that a function is called with, lying as they shall."""
    backend, found = builder.backend, []
    leaves = zip(arriving.names, arriving.specs, kinds, numbers, strict=True)
    for name, spec, kind, is_number in leaves:
        tensor = builder.input(kind.type, builder.free_name(name))
        builder.lies[tensor.value] = kind.sharding
        if spec is not None and backend.mesh.size > 1:
            what = f"argument '{name}' of function '{builder.name}'"
            wanted = sharding_of(backend, spec, kind.type, what)
            if wanted != kind.sharding:
                tensor = builder.named(constrained(tensor, spec), name)
                builder.lies[tensor.value] = wanted
        found.append(Number(builder, tensor.value) if is_number else tensor)
    return found


def _request(
    builder: FunctionBuilder, graph: Graph, kinds: Sequence[Kind], specs: Specs
) -> Request:
    arrive = [*kinds, *(taken.array.kind for taken in builder.taken)]
    free = frozenset(t.tensor.value.name for t in builder.taken if t.is_free)
    layouts = {
        value.name: Layout(arrives=FREE if value.name in free else kind.sharding)
        for value, kind in zip(graph.inputs, arrive, strict=True)
    }
    for (name, value), spec in zip(graph.outputs.items(), specs, strict=True):
        if spec is not None:
            what = f"'{name}' of function '{builder.name}'"
            leaves = sharding_of(builder.backend, spec, value.type, what)
        elif value in builder.lies:
            leaves = builder.lies[value]
        else:
            continue
        layouts[name] = replace(layouts.get(name, UNSAID), leaves=leaves)
    return Request(layouts)
