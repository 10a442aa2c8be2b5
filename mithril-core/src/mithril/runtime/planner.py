"""From a model, and the types and said shardings of its arrays, to plans, each made once.

A plan depends on what is said of all arguments. Where nobody has placed an array, the annotation
decides, or the plan itself: the array then goes where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from mithril.compiler import Request, lay_out, make_plan
from mithril.engine import Engine
from mithril.errors import ShapeError
from mithril.mesh import Sharding
from mithril.models import Layer
from mithril.models.composition import Composition
from mithril.models.parameter_rules import frozen_of
from mithril.models.placement import placement_spec_of
from mithril.models.prefixes import component_of
from mithril.models.slips import explain_missing
from mithril.models.trace import (
    Traced,
    check_patterns,
    input_names,
    main_output_names,
    parameter_names,
)
from mithril.models.trace_context import SEED
from mithril.partition.pipeline import Placement
from mithril.plan import Plan
from mithril.runtime.array import Kind
from mithril.runtime.asked import ArgumentKinds, Asked, Evaluation
from mithril.runtime.backend import Backend
from mithril.runtime.bindings import Bindings
from mithril.runtime.call import Bound, Interface, bind, says_sharding
from mithril.runtime.capture import Captured, layout_of
from mithril.runtime.host_indices import find_index_uses
from mithril.runtime.input_shardings import InputShardings
from mithril.runtime.layer_placement import place_layers
from mithril.runtime.lru import LRUCache
from mithril.runtime.model_layouts import ModelLayouts
from mithril.runtime.parameter_shardings import ParameterShardings
from mithril.runtime.searching import join_annotations
from mithril.runtime.settings import Settings
from mithril.runtime.tracer import Tracer, Types
from mithril.transform import cotangent_name, gradient_of, output_types
from mithril.types import Shape, TensorType

Seeded = tuple[str, ...] | None
NOTHING: frozenset[str] = frozenset()
"""Names of what a call gives up besides what every call does."""
KEPT = 256
"""How many plans a compiled model keeps."""


class Planner:
    """Traces and plans one model on one backend, once for arrays of the same kinds.

    Args:
        model: the snapshot of a model, or a layer.
        backend: where it runs.
        engine: of the backend, as the settings want it.
        settings: how it is planned.
        shardings: where the parameters lie that nobody has placed otherwise.
        tracer: of the model, on the backend.

    Raises:
        ShardingError: a pattern of `model.shard` matches nothing.
    """

    def __init__(
        self,
        model: Composition | Layer,
        backend: Backend,
        engine: Engine,
        settings: Settings,
        shardings: ParameterShardings[Evaluation],
        tracer: Tracer,
    ) -> None:
        check_patterns(model)
        self._placement_spec = placement_spec_of(component_of(model))
        self.bindings: Bindings[tuple[Seeded, frozenset[str]], Evaluation] = Bindings(2 * KEPT)
        self._input_names, self._parameter_names = input_names(model), parameter_names(model)
        self._frozen = frozen_of(component_of(model))
        self._by_default = backend.parallelism.annotate(component_of(model))
        self._model = model
        self.backend = backend
        self._engine = engine
        self._settings = settings
        specs = {**settings.shape_shardings, **settings.in_shardings}
        self.input_shardings = InputShardings(backend.mesh, specs)
        self._traces: LRUCache[Types, Traced] = LRUCache(KEPT)
        self.tracer = tracer
        self.shardings = shardings

    @property
    def parameters(self) -> Sequence[str]:
        """Names of all parameters."""
        return self._parameter_names

    @property
    def trainable(self) -> tuple[str, ...]:
        """Names of the parameters that are not frozen."""
        return tuple(name for name in self._parameter_names if name not in self._frozen)

    @property
    def is_placed(self) -> bool:
        """Whether layers run on parts of the mesh, or on parts of the batch."""
        is_cut = self._settings.accumulate > 1
        return is_cut or (self._placement_spec.is_placed and self.backend.mesh.size > 1)

    def explain_input(self, name: str) -> str:
        """Return who reads an input, and the output that was probably meant."""
        return explain_missing(component_of(self._model), name)

    def trace(self, types: Types) -> Traced:
        """Return the graph for inputs of some types, with all that is said of its parameters."""
        traced = self._traces.get(types)
        if traced is None:
            settings, traced = self._settings, self.tracer.trace(types, self._settings)
            at_rest = {**traced.at_rest, **settings.at_rest}
            ranks = {name: traced.graph.input(name).type.rank for name in at_rest}
            traced = replace(
                traced,
                at_rest={n: a for n, a in at_rest.items() if ranks[n] >= a.least_rank},
                annotations=join_annotations(
                    {**self._by_default, **traced.annotations}, settings.annotations
                ),
            )
            if settings.strategy is not None:
                settings.strategy.check_shapes(parameter_shapes(traced))
            self._traces.put(types, traced)
        return traced

    def output_types(self, types: Types) -> dict[str, TensorType]:
        """Return the types of the outputs for inputs of some types, as the precision has them."""
        return output_types(self.trace(types).graph, self._settings.plan.precision)

    def float_outputs(self, inputs: Sequence[TensorType]) -> dict[str, TensorType]:
        """Return the types of the outputs that are floats, for inputs of some types in order."""
        outputs = self.output_types(tuple(zip(self._input_names, inputs, strict=True)))
        return {name: type for name, type in outputs.items() if type.dtype.is_float}

    def list_losses(self, inputs: Sequence[Kind]) -> tuple[str, ...]:
        """Return the outputs whose gradients the first evaluation is expected to give."""
        floats = self.float_outputs([kind.type for kind in inputs])
        main = main_output_names(self._model)
        return tuple(n for n, type in floats.items() if n in main and not type.shape) or (*floats,)

    def planning_as(self, settings: Settings) -> Planner:
        """Return a planner of the same model, whose parameters lie as is decided for this one."""
        return Planner(
            self._model, self.backend, self._engine, settings, self.shardings, self.tracer
        )

    def bind(
        self, seeded: Seeded, kinds: Sequence[Kind], donated: frozenset[str] = NOTHING
    ) -> Bound[Evaluation]:
        """Return the plan for arrays of some kinds, made when they are met first.

        Args:
            seeded: the outputs whose gradients are given; None for a forward plan.
            kinds: of inputs, parameters and these gradients, in that order.
            donated: names of the arguments that are given up, besides those of the settings.
        """
        said = self._say(seeded, kinds)
        bound = self.bindings.find((seeded, donated), said)
        if bound is None and donated:
            bound = self._bind_donating(seeded, said, donated)
            self.bindings.keep((seeded, donated), said, bound, is_planned=False)
        elif bound is None:
            nowhere = self._unplace_parameters(said)
            if self._has_undecided(said):
                self.shardings.decide()
            if self._has_undecided(said):
                self.shardings.add(self._decide(seeded, nowhere))
            bound = self._make(seeded, said)
            self.shardings.ask(partial(self._decide, seeded, nowhere))
        return bound

    def decide(self, seeded: Seeded, kinds: Sequence[Kind]) -> None:
        """Decide how parameters lie, as `bind` does; without a search no plan is made for that."""
        if self._settings.plan.search is not None:
            self.bind(seeded, kinds)
            return
        said = self._say(seeded, kinds)
        if self._has_undecided(said):
            arguments = self._argument_kinds(seeded, nowhere := self._unplace_parameters(said))
            self.shardings.add(self._bind(arguments, nowhere, plan_graph=lay_out))

    def _bind_donating(
        self, seeded: Seeded, said: Sequence[Kind], donated: frozenset[str]
    ) -> Bound[Evaluation]:
        """Return the plan of a call that gives up more: the same one, lowered anew."""
        same = self.bind(seeded, said)
        names = donated | self._settings.donated
        return replace(same, interface=same.interface.donating(names))

    def _make(self, seeded: Seeded, said: Sequence[Kind]) -> Bound[Evaluation]:
        bound = self.bindings.find((seeded, NOTHING), said)
        if bound is None:
            bound = self._bind(self._argument_kinds(seeded, said), said)
            self.bindings.keep((seeded, NOTHING), said, bound)
        return bound

    def _decide(self, seeded: Seeded, nowhere: Sequence[Kind]) -> Bound[Evaluation]:
        """Return the plan that decides how parameters lie: of a search, that of its objective.

        Args:
            seeded: the outputs whose gradients are given in what is evaluated.
            nowhere: kinds of what is passed for that, with all parameters unplaced.
        """
        wants_gradients = self._settings.decides_with_gradients
        if wants_gradients is None or wants_gradients is (seeded is not None):
            return self._make(seeded, nowhere)
        first = nowhere[: len(self._input_names) + len(self._parameter_names)]
        if not wants_gradients:
            return self._make(None, first)
        floats = self.float_outputs([kind.type for kind in first[: len(self._input_names)]])
        kinds = [Kind.of_type(first[0].backend, type) for type in floats.values()]
        return self._make(tuple(floats), [*first, *kinds])

    def _parameters_of(self, kinds: Sequence[Kind]) -> Sequence[Kind]:
        first = len(self._input_names)
        return kinds[first : first + len(self._parameter_names)]

    def _say(self, seeded: Seeded, kinds: Sequence[Kind]) -> list[Kind]:
        """Return what is said of arguments; what lies where all others would lie is unplaced."""
        said = [kind.said for kind in kinds]
        first = len(self._input_names)
        said[:first] = self.input_shardings.unplace_defaults(self._input_names, said[:first])
        if any(kind.is_open for kind in said):
            types = tuple(zip(self._input_names, (k.type for k in said[:first]), strict=True))
            graph, outputs = self.trace(types).graph, self.output_types(types)
            known = [graph.input(name).type for name in self._parameter_names]
            known += [outputs[name] for name in seeded or ()]
            said[first:] = [
                Kind.of_type(kind.backend, type) if kind.is_open else kind
                for kind, type in zip(said[first:], known, strict=True)
            ]
        for position, name in enumerate(self._parameter_names, first):
            kind = said[position]
            decision = self.shardings.of(name, kind.type) if kind.is_placed else None
            if decision is not None and decision.sharding == kind.sharding:
                said[position] = Kind.of_type(kind.backend, kind.type)
        return said

    def _unplace_parameters(self, said: Sequence[Kind]) -> list[Kind]:
        """Return kinds with all parameters unplaced."""
        first, found = len(self._input_names), list(said)
        for position, kind in enumerate(self._parameters_of(said), first):
            found[position] = Kind.of_type(kind.backend, kind.type)
        return found

    def _has_undecided(self, said: Sequence[Kind]) -> bool:
        """Return whether of an unplaced parameter it is not known where it lies."""
        parameters = zip(self._parameter_names, self._parameters_of(said), strict=True)
        return any(
            not kind.is_placed and self.shardings.of(name, kind.type) is None
            for name, kind in parameters
        )

    def _argument_kinds(self, seeded: Seeded, said: Sequence[Kind]) -> ArgumentKinds:
        names = (*self._input_names, *self._parameter_names, *(seeded or ()))
        found = tuple(zip(names, ((x.type, x.sharding) for x in said), strict=True))
        first, last = len(self._input_names), len(self._input_names) + len(self._parameter_names)
        gradients = None if seeded is None else found[last:]
        inputs = tuple((n, (type, self._arrive(n, type, s))) for n, (type, s) in found[:first])
        parameters = tuple(
            (n, (type, self._rest(n, type, s))) for n, (type, s) in found[first:last]
        )
        return ArgumentKinds(inputs, parameters, gradients)

    def _arrive(self, name: str, type: TensorType, said: Sharding | None) -> Sharding | None:
        """Return how an input arrives: as it is placed, or as unplaced ones shall lie."""
        return self.input_shardings.of(name, type) if said is None else said

    def _rest(self, name: str, type: TensorType, said: Sharding | None) -> Sharding | None:
        """Return how a parameter arrives: as it is placed, or as it was decided, if it was."""
        decision = self.shardings.of(name, type)
        return decision.sharding if said is None and decision is not None else said

    def _bind(
        self,
        arguments: ArgumentKinds,
        said: Sequence[Kind],
        plan_graph: Callable[..., Plan] = make_plan,
    ) -> Bound[Evaluation]:
        asked, options = self._ask(arguments, said), self._settings.plan
        graph = asked.traced.graph
        return bind(self._engine, graph, asked.request, asked.interface, options, plan_graph)

    def ask(self, seeded: Seeded, kinds: Sequence[Kind]) -> Asked:
        """Return what would be planned for arrays of some kinds; see `bind`."""
        said = self._say(seeded, kinds)
        return self._ask(self._argument_kinds(seeded, said), said)

    def _ask(self, arguments: ArgumentKinds, said: Sequence[Kind]) -> Asked:
        types = tuple((name, type) for name, (type, _) in arguments.inputs)
        traced = self.trace(types)
        _check_types(traced, arguments, self.output_types(types))
        interface = self._interface(traced, arguments)
        is_placed = any(kind.is_placed for kind in said) or self._says_sharding(traced)
        request = self._request(traced, arguments)
        return Asked(traced, request, replace(interface, is_placed=is_placed))

    def _says_sharding(self, traced: Traced) -> bool:
        """Return whether the model, or what it is compiled with, says how anything lies."""
        settings = self._settings
        said = (traced.annotations, traced.value_annotations, traced.at_rest)
        asked = (self.input_shardings.specs, settings.out_shardings)
        captured = (not item.is_free for item in traced.captured)
        return any((*said, *asked, *captured, self.is_placed, says_sharding(traced.graph)))

    def _interface(self, traced: Traced, arguments: ArgumentKinds) -> Interface[Evaluation]:
        """Return what is passed, inputs and parameters first, and what comes out, outputs first."""
        passed = [*self._input_names, *self._parameter_names]
        seeded = tuple(name for name, _ in arguments.gradients or ())
        passed += map(cotangent_name, seeded)
        passed += (item.name for item in traced.captured)
        if traced.uses_seed:
            passed.append(SEED)
        given = arguments.gradients is not None
        differentiated = self._differentiate(traced, arguments) if given else ()
        uses, captured = find_index_uses(traced.graph), Captured(traced.captured)
        evaluation = Evaluation(traced, seeded, differentiated, captured, uses)
        results = (*traced.graph.outputs, *map(gradient_of, differentiated))
        made = Interface("evaluate()", self.backend, evaluation, tuple(passed), results)
        return made.donating(self._settings.donated)

    def _place_layers(self, traced: Traced, arguments: ArgumentKinds) -> Placement | None:
        """Return where layers run, if the model says so and there are several devices."""
        if not self.is_placed:
            return None
        return place_layers(
            self._placement_spec, self._settings, self.backend.mesh, traced, arguments
        )

    def _request(self, traced: Traced, arguments: ArgumentKinds) -> Request:
        layouts = ModelLayouts(self.backend.mesh, self._settings, self.shardings, traced)
        seeds = arguments.gradients
        # Micro-batches cut what is said to arrive whole, as any input.
        whole = self.backend.mesh if self.is_placed else None
        captured = {item.name: layout_of(item, whole) for item in traced.captured}
        differentiated = self._differentiate(traced, arguments)
        said = layouts.of(arguments.inputs, arguments.parameters, seeds or ()) | captured
        leave = {} if seeds is None else layouts.of_gradients(said, differentiated)
        notes = (*self._settings.notes, *self._notes(traced))
        return Request(
            said | leave,
            cotangents=None if seeds is None else tuple(name for name, _ in seeds),
            differentiated=differentiated,
            parameters=tuple(traced.parameter_names),
            placement=self._place_layers(traced, arguments),
            notes=(*notes, *layouts.overrides(arguments.parameters)),
            searched=self._settings.searched,
            donated=self._settings.donated,
            stacked=traced.stacked,
            batches=tuple(self._input_names),
        )

    def _differentiate(self, traced: Traced, arguments: ArgumentKinds) -> tuple[str, ...]:
        """Return what gradients are wanted of: float parameters, and the inputs that were named.

        Parameters that are frozen are not among them.
        """
        names = [name for name, _ in arguments.parameters if name not in self._frozen]
        floats = (n for n in names if traced.graph.input(n).type.dtype.is_float)
        return (*floats, *self._settings.differentiable)

    def _notes(self, traced: Traced) -> tuple[str, ...]:
        ignored = len(traced.annotations) + len(traced.value_annotations) + len(traced.at_rest)
        ignored += len(self._placement_spec.devices) + len(self._placement_spec.stages)
        if self.backend.mesh.size > 1 or not ignored:
            return ()
        return (f"annotations ignored, because the backend has one device: {ignored}",)


def parameter_shapes(traced: Traced) -> dict[str, Shape]:
    """Return the shape of each parameter of a traced model."""
    return {name: traced.graph.input(name).type.shape for name in traced.parameter_names}


def _check_types(
    traced: Traced, arguments: ArgumentKinds, outputs: Mapping[str, TensorType]
) -> None:
    for name, (type, _) in arguments.parameters:
        expected = traced.graph.input(name).type
        if type.shape == expected.shape and type.dtype != expected.dtype:
            raise ShapeError(
                f"parameter '{name}' is {type.dtype}; the model has it in {expected.dtype}; cast "
                f"it, or all of them with compiled.place(params)"
            )
        if type != expected:
            raise ShapeError(
                f"parameter '{name}' is {type}; with these inputs the model needs {expected}; "
                f"pass inputs of the size the parameters were made for, or make new parameters "
                f"with randomize_params()"
            )
    for name, (type, _) in arguments.gradients or ():
        expected = outputs[name]
        if type != expected:
            raise ShapeError(
                f"gradient of output '{name}' is {type}; the output is {expected}; give one of its "
                f"shape and dtype"
            )
