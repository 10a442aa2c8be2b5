"""From a model and the types and shardings of its arrays to plans, each made once.

A signature is what a plan depends on. Where it leaves a sharding open, the annotation decides, or
the plan itself: the array then lies where it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from mithril.compiler import (
    COMPUTED_WITH,
    Batch,
    PlanOptions,
    Request,
    Target,
    make_plan,
    placement_of,
)
from mithril.engine import Engine, Executable
from mithril.errors import GraphError, ShapeError, listing, nearest
from mithril.mesh import PartitionSpec, Sharding, coarsen
from mithril.models import Layer
from mithril.models.annotations import Annotation, resolve
from mithril.models.composition import Composition
from mithril.models.placement import placement_spec_of
from mithril.models.trace import Traced, check_patterns, component_of, trace
from mithril.partition.pipeline import Placement
from mithril.plan import Plan
from mithril.runtime.array import Array
from mithril.runtime.backend import Backend, lower
from mithril.runtime.lru import LRUCache
from mithril.runtime.settings import Settings, engine_with
from mithril.sharding import FREE, UNSAID, Layout
from mithril.transform import cotangent_name, output_types
from mithril.types import TensorType

Placed = tuple[TensorType | None, Sharding | None]  # None: as the plan needs it
Arguments = tuple[tuple[str, Placed], ...]
ANYWHERE: Placed = (None, None)
KEPT = 256
"""How many traces and plans a compiled model keeps."""
PASSED_IN = "the array that was passed in"
AT_REST = "at_rest"


@dataclass(frozen=True)
class Signature:
    """What a plan depends on: type and sharding of every argument, by name.

    Args:
        inputs: the model's inputs.
        parameters: the model's parameters; not yet made ones may lie anywhere.
        gradients: the output gradients; None for a forward plan.
    """

    inputs: Arguments
    parameters: Arguments
    gradients: Arguments | None


def arguments_of(arrays: Mapping[str, Array]) -> Arguments:
    """Return type and sharding of each array, open where it has no values yet."""
    return tuple(
        (name, (x.type, x.sharding) if x.is_materialised else ANYWHERE)
        for name, x in arrays.items()
    )


class Step:
    """A plan, how the model's parameters start, and, once it is needed, the executable."""

    def __init__(self, plan: Plan, traced: Traced, engine: Engine) -> None:
        self.plan = plan
        self.initializers = traced.initializers
        self.uses_seed = traced.uses_seed
        self.ports = {port.name: port for port in plan.inputs}
        self._engine = engine

    @cached_property
    def run(self) -> Executable:
        """The lowered program."""
        return lower(self._engine, self.plan)


class Planner:
    """Traces and plans one model on one backend, once per signature.

    Args:
        model: the snapshot of a model, or a layer.
        backend: where it runs.
        settings: how it is planned.

    Raises:
        ShardingError: a pattern of `model.shard` matches nothing.
        OptionError: the backend cannot do what a setting asks for.
    """

    def __init__(self, model: Composition | Layer, backend: Backend, settings: Settings) -> None:
        check_patterns(model)
        self._placement_spec = placement_spec_of(component_of(model))
        self.made = 0
        self.engine = engine_with(settings, backend.engine)
        self._model = model
        self._backend = backend
        self._settings = settings
        self._traces: LRUCache[tuple[tuple[str, TensorType], ...], Traced] = LRUCache(KEPT)
        self._steps: LRUCache[Signature, Step] = LRUCache(2 * KEPT)
        self._last: tuple[Signature, Step] | None = None
        self._decisions: dict[tuple[str, Sharding], str] = {}

    @property
    def is_placed(self) -> bool:
        """Whether layers run on parts of the mesh."""
        return self._placement_spec.is_placed and self._backend.mesh.size > 1

    def step(self, signature: Signature) -> Step:
        """Return the plan of a signature, made at its first use."""
        if self._last is not None and self._last[0] == signature:  # without hashing it
            return self._last[1]
        step = self._steps.get(signature)
        if step is None:
            step = self._make(signature)
            self.made += 1
            self._steps.put(signature, step)
            settled = _settle(signature, step)
            if self._steps.get(settled) is None:
                self._steps.put(settled, step)
        self._last = (signature, step)
        return step

    def trace(self, types: tuple[tuple[str, TensorType], ...]) -> Traced:
        """Return the graph for inputs of some types, traced at its first use."""
        traced = self._traces.get(types)
        if traced is None:
            settings = self._settings
            traced = trace(
                self._model,
                dict(types),
                inference=settings.inference,
                precision=settings.precision,
            )
            self._traces.put(types, traced)
        return traced

    def output_types(self, types: tuple[tuple[str, TensorType], ...]) -> dict[str, TensorType]:
        """Return the types of the outputs for inputs of some types, as the precision has them."""
        return output_types(self.trace(types).graph, self._settings.precision)

    def remember(self, name: str, step: Step) -> Sharding:
        """Return the sharding a plan takes a parameter in, and remember who decided it."""
        sharding = step.ports[name].sharding
        self._decisions[name, sharding] = step.plan.specs[name].decided_by
        return sharding

    def _make(self, signature: Signature) -> Step:
        types = tuple((name, type) for name, (type, _) in signature.inputs if type is not None)
        traced = self.trace(types)
        _check_types(traced, signature, self.output_types(types))
        settings = self._settings
        options = PlanOptions(
            settings.precision, settings.uneven == "pad", settings.max_reshard_bytes
        )
        request = self._request(traced, signature)
        plan = make_plan(traced.graph, request, Target.of(self._backend.engine), options)
        return Step(plan, traced, self.engine)

    def _placement(self, traced: Traced, signature: Signature) -> Placement | None:
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
        sharding = _arriving(name, shape[:1], signature)
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
            gradients=signature.gradients is not None,
            pads=self._settings.uneven == "pad",
        )

    def _request(self, traced: Traced, signature: Signature) -> Request:
        layouts = self._layouts(traced, signature)
        for name, spec in self._settings.out_shardings.items():
            type = traced.graph.outputs[name].type
            leaves = self._sharding(spec, type, f"output '{name}'")
            layouts[name] = replace(layouts.get(name, UNSAID), leaves=leaves)
        for name, home in self._homes(traced).items():
            layouts[name] = replace(layouts.get(name, UNSAID), home=home)
        seeds = signature.gradients
        for name, (_, sharding) in seeds or ():
            layouts[cotangent_name(name)] = Layout(arrives=FREE if sharding is None else sharding)
        return Request(
            layouts,
            cotangents=None if seeds is None else tuple(name for name, _ in seeds),
            differentiated=self._differentiate(traced, signature),
            parameters=tuple(traced.parameter_names),
            placement=self._placement(traced, signature),
            notes=self._notes(traced),
        )

    def _layouts(self, traced: Traced, signature: Signature) -> dict[str, Layout]:
        """Return the layouts of inputs and parameters, and who decided them."""
        layouts = {
            name: Layout(
                arrives=self._check(sharding, type, f"input '{name}'"), decided_by=PASSED_IN
            )
            for name, (type, sharding) in signature.inputs
            if type is not None and sharding is not None
        }
        for name, (_, sharding) in signature.parameters:
            layouts[name] = self._parameter(name, sharding, traced)
        return layouts

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
        computed = self._computed(name, traced)
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
        resting = self._annotated(annotation, traced.graph.input(name).type, name, "parameter")
        before = "" if sharding is None else self._decisions.get((name, sharding), "")
        if sharding not in (None, resting) and not before.startswith(AT_REST):
            return None
        return Layout(
            sharding,
            self._computed(name, traced),
            rests=sharding or resting,
            decided_by=f"{AT_REST} {annotation}{annotation.place}",
        )

    def _computed(self, name: str, traced: Traced) -> Sharding | None:
        """Return what an annotation says a parameter is computed with; one device says nothing."""
        annotation = traced.annotations.get(name)
        if annotation is None or self._backend.mesh.size == 1:
            return None
        return self._annotated(annotation, traced.graph.input(name).type, name, "parameter")

    def _differentiate(self, traced: Traced, signature: Signature) -> tuple[str, ...]:
        """Return what gradients are wanted of: float parameters, and the inputs that were named."""
        names = [name for name, _ in signature.parameters]
        floats = (n for n in names if traced.graph.input(n).type.dtype.is_float)
        return (*floats, *self._settings.differentiable)

    def _homes(self, traced: Traced) -> dict[str, Sharding]:
        """Return where the user wants inputs and intermediate values to lie, by name."""
        if self._backend.mesh.size == 1:
            return {}
        return {
            value.name: self._annotated(annotation, value.type, value.name, "value")
            for value, annotation in traced.value_annotations.items()
        }

    def _annotated(
        self, annotation: Annotation, type: TensorType, name: str, kind: str
    ) -> Sharding:
        sharding = resolve(annotation, self._backend.mesh, type, name)
        return self._check(coarsen(sharding, type.shape), type, f"{kind} '{name}'")

    def _sharding(self, spec: PartitionSpec, type: TensorType, what: str) -> Sharding:
        sharding = Sharding.of(self._backend.mesh, spec, type.rank, what)
        sharding.check(type.shape, what)
        return self._check(sharding, type, what)

    def _check(self, sharding: Sharding, type: TensorType, what: str) -> Sharding:
        if self._settings.uneven == "error":
            sharding.check_even(type.shape, what)
        return sharding

    def _notes(self, traced: Traced) -> tuple[str, ...]:
        ignored = len(traced.annotations) + len(traced.value_annotations) + len(traced.at_rest)
        ignored += len(self._placement_spec.devices) + len(self._placement_spec.stages)
        if self._backend.mesh.size > 1 or not ignored:
            return ()
        return (f"annotations ignored, because the backend has one device: {ignored}",)


def _arriving(name: str, batch: tuple[int, ...], signature: Signature) -> Sharding | None:
    """Return how a batch arrives: as the input of that name, or else the first one of its size."""
    found = dict(signature.inputs)
    if name in found:
        return found[name][1]
    sizes = ((type, s) for type, s in found.values() if type is not None and type.shape)
    return next((s for type, s in sizes if type.shape[:1] == batch), None)


def _settle(signature: Signature, step: Step) -> Signature:
    """Return the signature with everything open replaced by what the plan decided."""

    def settle(arguments: Arguments, port_of: Mapping[str, str]) -> Arguments:
        ports = {name: step.ports[port_of.get(name, name)] for name, _ in arguments}
        return tuple((name, (port.type, port.sharding)) for name, port in ports.items())

    gradients = signature.gradients
    return Signature(
        signature.inputs,
        settle(signature.parameters, {}),
        None
        if gradients is None
        else settle(gradients, {n: cotangent_name(n) for n, _ in gradients}),
    )


def _check_types(traced: Traced, signature: Signature, outputs: Mapping[str, TensorType]) -> None:
    for name, (type, _) in signature.parameters:
        expected = traced.graph.input(name).type
        if type is not None and type != expected:
            raise ShapeError(
                f"parameter '{name}' is {type}; with these inputs the model needs {expected}; "
                f"pass inputs of the size the parameters were made for, or make new parameters "
                f"with randomize_params()"
            )
    for name, (type, _) in signature.gradients or ():
        expected = outputs[name]
        if type is not None and type != expected:
            raise ShapeError(
                f"gradient of output '{name}' is {type}; the output is {expected}; give one of its "
                f"shape and dtype"
            )
