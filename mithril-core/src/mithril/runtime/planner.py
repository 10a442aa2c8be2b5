"""From a model and the types and shardings of its arrays to plans, each made once.

A plan depends on the kinds of all arguments. Where one leaves a sharding open, the annotation
decides, or the plan itself: the array then lies where it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mithril.compiler import COMPUTED_WITH, Batch, Request, placement_of
from mithril.engine import Engine
from mithril.errors import GraphError, ShapeError, listing, nearest
from mithril.mesh import PartitionSpec, Sharding, coarsen
from mithril.models import Layer
from mithril.models.annotations import Annotation, resolve
from mithril.models.composition import Composition
from mithril.models.parameter_rules import frozen_of
from mithril.models.placement import placement_spec_of
from mithril.models.prefixes import component_of
from mithril.models.slips import explain_missing
from mithril.models.trace import (
    Traced,
    check_patterns,
    input_names,
    parameter_names,
    trace,
)
from mithril.models.trace_context import SEED
from mithril.partition.pipeline import Placement
from mithril.runtime.array import Kind
from mithril.runtime.backend import Backend
from mithril.runtime.call import Bindings, Bound, Interface, bind
from mithril.runtime.capture import Captured, convert_on, layout_of
from mithril.runtime.host_indices import IndexUse, find_index_uses
from mithril.runtime.lru import LRUCache
from mithril.runtime.settings import Settings
from mithril.sharding import FREE, UNSAID, Layout
from mithril.transform import cotangent_name, gradient_of, output_types
from mithril.types import TensorType

Placed = tuple[TensorType | None, Sharding | None]  # None: as the plan needs it
Arguments = tuple[tuple[str, Placed], ...]
Seeded = tuple[str, ...] | None
NOTHING: frozenset[str] = frozenset()
"""Names of what a call gives up besides what every call does."""
KEPT = 256
"""How many traces and plans a compiled model keeps."""
PASSED_IN = "the array that was passed in"
AT_REST = "at_rest"


@dataclass(frozen=True)
class ArgumentKinds:
    """What a plan depends on: type and sharding of every argument, by name.

    Args:
        inputs: the model's inputs.
        parameters: the model's parameters; not yet made ones may lie anywhere.
        gradients: the output gradients; None for a forward plan.
    """

    inputs: Arguments
    parameters: Arguments
    gradients: Arguments | None


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """What is evaluated: a traced model, and which gradients go in and come out.

    Args:
        traced: the model.
        seeded: outputs whose gradients are given.
        differentiated: parameters and inputs whose gradients come out.
        captured: arrays that its layers use from around them.
        index_uses: where the model chooses by integers that come from inputs.
    """

    traced: Traced
    seeded: tuple[str, ...]
    differentiated: tuple[str, ...]
    captured: Captured
    index_uses: tuple[IndexUse, ...]


class Planner:
    """Traces and plans one model on one backend, once for arrays of the same kinds.

    Args:
        model: the snapshot of a model, or a layer.
        backend: where it runs.
        engine: of the backend, as the settings want it.
        settings: how it is planned.

    Raises:
        ShardingError: a pattern of `model.shard` matches nothing.
    """

    def __init__(
        self, model: Composition | Layer, backend: Backend, engine: Engine, settings: Settings
    ) -> None:
        check_patterns(model)
        self._placement_spec = placement_spec_of(component_of(model))
        self.bindings: Bindings[tuple[Seeded, frozenset[str]], Evaluation] = Bindings(2 * KEPT)
        self._input_names, self._parameter_names = input_names(model), parameter_names(model)
        self._frozen = frozen_of(component_of(model))
        self._model = model
        self._backend = backend
        self._engine = engine
        self._settings = settings
        self._traces: LRUCache[tuple[tuple[str, TensorType], ...], Traced] = LRUCache(KEPT)
        self._decisions: dict[tuple[str, Sharding], str] = {}

    @property
    def trainable(self) -> tuple[str, ...]:
        """Names of the parameters that are not frozen."""
        return tuple(name for name in self._parameter_names if name not in self._frozen)

    @property
    def is_placed(self) -> bool:
        """Whether layers run on parts of the mesh."""
        return self._placement_spec.is_placed and self._backend.mesh.size > 1

    def explain_input(self, name: str) -> str:
        """Return who reads an input, and the output that was probably meant."""
        return explain_missing(component_of(self._model), name)

    def trace(self, types: tuple[tuple[str, TensorType], ...]) -> Traced:
        """Return the graph for inputs of some types, traced at its first use."""
        traced = self._traces.get(types)
        if traced is None:
            settings = self._settings
            traced = trace(
                self._model,
                dict(types),
                inference=settings.inference,
                precision=settings.plan.precision,
                convert=convert_on(self._backend, "a layer", settings.plan.precision.default),
            )
            traced = replace(traced, at_rest={**traced.at_rest, **settings.at_rest})
            self._traces.put(types, traced)
        return traced

    def output_types(self, types: tuple[tuple[str, TensorType], ...]) -> dict[str, TensorType]:
        """Return the types of the outputs for inputs of some types, as the precision has them."""
        return output_types(self.trace(types).graph, self._settings.plan.precision)

    def bind(
        self, seeded: Seeded, kinds: Sequence[Kind], donated: frozenset[str] = NOTHING
    ) -> Bound[Evaluation]:
        """Return the plan for arrays of some kinds, made when they are met first.

        Args:
            seeded: the outputs whose gradients are given; None for a forward plan.
            kinds: of inputs, parameters and these gradients, in that order.
            donated: names of the arguments that are given up, besides those of the settings.
        """
        bound = self.bindings.find((seeded, donated), kinds)
        if bound is None and donated:
            bound = self._bind_donating(seeded, kinds, donated)
            self.bindings.keep((seeded, donated), kinds, bound, is_planned=False)
        elif bound is None:
            bound = self._bind(self._argument_kinds(seeded, kinds))
            self.bindings.keep((seeded, donated), kinds, bound)
        return bound

    def _bind_donating(
        self, seeded: Seeded, kinds: Sequence[Kind], donated: frozenset[str]
    ) -> Bound[Evaluation]:
        """Return the plan of a call that gives up more: the same one, lowered anew."""
        same = self.bind(seeded, kinds)
        names = donated | self._settings.donated
        return replace(same, interface=same.interface.donating(names))

    def _argument_kinds(self, seeded: Seeded, kinds: Sequence[Kind]) -> ArgumentKinds:
        names = (*self._input_names, *self._parameter_names, *(seeded or ()))
        found = tuple(zip(names, ((x.type, x.sharding) for x in kinds), strict=True))
        first, last = len(self._input_names), len(self._input_names) + len(self._parameter_names)
        gradients = None if seeded is None else found[last:]
        return ArgumentKinds(found[:first], found[first:last], gradients)

    def _bind(self, arguments: ArgumentKinds) -> Bound[Evaluation]:
        types = tuple((name, type) for name, (type, _) in arguments.inputs if type is not None)
        traced = self.trace(types)
        _check_types(traced, arguments, self.output_types(types))
        return bind(
            self._engine,
            traced.graph,
            self._request(traced, arguments),
            self._interface(traced, arguments),
            self._settings.plan,
        )

    def remember(self, name: str, bound: Bound[Evaluation]) -> Sharding:
        """Return the sharding a plan takes a parameter in, and remember who decided it."""
        sharding = bound.ports[name].sharding
        self._decisions[name, sharding] = bound.plan.specs[name].decided_by
        return sharding

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
        made = Interface("evaluate()", self._backend, evaluation, tuple(passed), results)
        return made.donating(self._settings.donated)

    def _placement(self, traced: Traced, arguments: ArgumentKinds) -> Placement | None:
        """Return where layers run, if the model says so and there are several devices."""
        mesh = self._backend.mesh
        if not self.is_placed:
            return None
        wanted = self._settings.pipeline.batch
        if wanted is not None and wanted not in traced.input_names:
            raise GraphError(
                f"PipelineOptions(batch={wanted!r}) names no input of the model"
                f"{nearest(wanted, traced.input_names)}; inputs: {listing(traced.input_names)}"
            )
        named = wanted or self._placement_spec.batch
        value = traced.value_names.get(named) or traced.graph.inputs[0]
        name = value.name or traced.graph.inputs[0].name
        shape = value.type.shape
        sharding = _arriving(name, shape[:1], arguments)
        if self._placement_spec.pipeline is not None and not shape:
            raise ShapeError(
                f"pipeline cuts '{name}' into micro-batches, and it is a scalar; give the model a "
                f"first input with a leading dimension of samples"
            )
        batch = Batch(
            name, shape[0] if shape else 1, sharding.dims[0] if sharding and shape else ()
        )
        return placement_of(
            self._placement_spec,
            mesh,
            self._settings.pipeline,
            batch,
            gradients=arguments.gradients is not None,
            pads=self._settings.plan.pads,
        )

    def _request(self, traced: Traced, arguments: ArgumentKinds) -> Request:
        layouts = self._layouts(traced, arguments)
        for name, spec in self._settings.out_shardings.items():
            type = traced.graph.outputs[name].type
            leaves = self._sharding(spec, type, f"output '{name}'")
            layouts[name] = replace(layouts.get(name, UNSAID), leaves=leaves)
        for name, home in self._homes(traced).items():
            layouts[name] = replace(layouts.get(name, UNSAID), home=home)
        seeds = arguments.gradients
        for name, (_, sharding) in seeds or ():
            layouts[cotangent_name(name)] = Layout(arrives=FREE if sharding is None else sharding)
        return Request(
            layouts,
            cotangents=None if seeds is None else tuple(name for name, _ in seeds),
            differentiated=self._differentiate(traced, arguments),
            parameters=tuple(traced.parameter_names),
            placement=self._placement(traced, arguments),
            notes=self._notes(traced),
        )

    def _layouts(self, traced: Traced, arguments: ArgumentKinds) -> dict[str, Layout]:
        """Return the layouts of what goes in, and who decided them."""
        layouts = {
            name: Layout(
                arrives=self._check(sharding, type, f"input '{name}'"), decided_by=PASSED_IN
            )
            for name, (type, sharding) in arguments.inputs
            if type is not None and sharding is not None
        }
        for name, (_, sharding) in arguments.parameters:
            layouts[name] = self._parameter(name, sharding, traced)
        # Micro-batches cut what is said to arrive whole, as any input.
        whole = self._backend.mesh if self.is_placed else None
        return layouts | {item.name: layout_of(item, whole) for item in traced.captured}

    def _parameter(self, name: str, sharding: Sharding | None, traced: Traced) -> Layout:
        """Return the layout of a parameter: an array keeps its sharding, else annotations count."""
        if self._backend.mesh.size > 1 and (resting := self._resting(name, sharding, traced)):
            return resting
        if sharding is not None:
            type = traced.graph.input(name).type
            arrives = self._check(sharding, type, f"parameter '{name}'")
            who = self._decisions.get((name, sharding), PASSED_IN)
            # A sharding that an earlier plan chose is one candidate, another one a wish.
            computed = None if who == COMPUTED_WITH else arrives
            return Layout(arrives, computed, decided_by=who)
        computed = self._find_compute_sharding(name, traced)
        if computed is None:
            return Layout(FREE)
        annotation = traced.annotations[name]
        return Layout(
            computed=computed, decided_by=f"the annotation {annotation}{annotation.place}"
        )

    def _resting(self, name: str, sharding: Sharding | None, traced: Traced) -> Layout | None:
        """Return the layout of a parameter kept at rest; an array that lies otherwise stays so."""
        annotation = traced.at_rest.get(name)
        if annotation is None:
            return None
        resting = self._resolve_annotation(
            annotation, traced.graph.input(name).type, name, "parameter"
        )
        before = "" if sharding is None else self._decisions.get((name, sharding), "")
        if sharding not in (None, resting) and not before.startswith(AT_REST):
            return None
        return Layout(
            sharding,
            self._find_compute_sharding(name, traced),
            rests=sharding or resting,
            decided_by=f"{AT_REST} {annotation}{annotation.place}",
        )

    def _find_compute_sharding(self, name: str, traced: Traced) -> Sharding | None:
        """Return what an annotation says a parameter is computed with; one device says nothing."""
        annotation = traced.annotations.get(name)
        if annotation is None or self._backend.mesh.size == 1:
            return None
        return self._resolve_annotation(
            annotation, traced.graph.input(name).type, name, "parameter"
        )

    def _differentiate(self, traced: Traced, arguments: ArgumentKinds) -> tuple[str, ...]:
        """Return what gradients are wanted of: float parameters, and the inputs that were named.

        Parameters that are frozen are not among them.
        """
        names = [name for name, _ in arguments.parameters if name not in self._frozen]
        floats = (n for n in names if traced.graph.input(n).type.dtype.is_float)
        return (*floats, *self._settings.differentiable)

    def _homes(self, traced: Traced) -> dict[str, Sharding]:
        """Return where the user wants inputs and intermediate values to lie, by name."""
        if self._backend.mesh.size == 1:
            return {}
        return {
            value.name: self._resolve_annotation(annotation, value.type, value.name, "value")
            for value, annotation in traced.value_annotations.items()
        }

    def _resolve_annotation(
        self, annotation: Annotation, type: TensorType, name: str, kind: str
    ) -> Sharding:
        sharding = resolve(annotation, self._backend.mesh, type, name)
        return self._check(coarsen(sharding, type.shape), type, f"{kind} '{name}'")

    def _sharding(self, spec: PartitionSpec, type: TensorType, what: str) -> Sharding:
        sharding = Sharding.of(self._backend.mesh, spec, type.rank, what)
        sharding.check(type.shape, what)
        return self._check(sharding, type, what)

    def _check(self, sharding: Sharding, type: TensorType, what: str) -> Sharding:
        if not self._settings.plan.pads:
            sharding.check_even(type.shape, what)
        return sharding

    def _notes(self, traced: Traced) -> tuple[str, ...]:
        ignored = len(traced.annotations) + len(traced.value_annotations) + len(traced.at_rest)
        ignored += len(self._placement_spec.devices) + len(self._placement_spec.stages)
        if self._backend.mesh.size > 1 or not ignored:
            return ()
        return (f"annotations ignored, because the backend has one device: {ignored}",)


def _arriving(name: str, batch: tuple[int, ...], arguments: ArgumentKinds) -> Sharding | None:
    """Return how a batch arrives: as the input of that name, or else the first one of its size."""
    found = dict(arguments.inputs)
    if name in found:
        return found[name][1]
    sizes = ((type, s) for type, s in found.values() if type is not None and type.shape)
    return next((s for type, s in sizes if type.shape[:1] == batch), None)


def _check_types(
    traced: Traced, arguments: ArgumentKinds, outputs: Mapping[str, TensorType]
) -> None:
    for name, (type, _) in arguments.parameters:
        expected = traced.graph.input(name).type
        if type is not None and type != expected:
            raise ShapeError(
                f"parameter '{name}' is {type}; with these inputs the model needs {expected}; "
                f"pass inputs of the size the parameters were made for, or make new parameters "
                f"with randomize_params()"
            )
    for name, (type, _) in arguments.gradients or ():
        expected = outputs[name]
        if type is not None and type != expected:
            raise ShapeError(
                f"gradient of output '{name}' is {type}; the output is {expected}; give one of its "
                f"shape and dtype"
            )
