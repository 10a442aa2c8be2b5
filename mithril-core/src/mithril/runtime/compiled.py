"""CompiledModel: a snapshot of a model on a backend, planned once per input signature.

What an evaluation needs (types and shardings of inputs, parameters and output gradients) is its
signature. The first evaluation of a signature plans and lowers; later ones only run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from mithril.compiler import Request, make_plan
from mithril.compiler.options import COMPILE_LATER, refuse_later, refuse_unknown
from mithril.engine import Executable, Observer
from mithril.errors import GraphError, OptionError, PlanError, ShapeError, listing, nearest
from mithril.ir import Plan, Port
from mithril.mesh import PartitionSpec, Sharding
from mithril.models import Layer, Model
from mithril.models.annotations import resolve
from mithril.models.composition import Composition
from mithril.models.trace import (
    Traced,
    check_patterns,
    input_names,
    output_names,
    parameter_names,
    trace,
)
from mithril.partition import explain, summarise
from mithril.runtime.array import Array
from mithril.runtime.backend import Backend, as_array
from mithril.runtime.parameters import InitialArray, Parameters, initial_array
from mithril.runtime.specification import as_spec
from mithril.transform import gradient_of, seed_of
from mithril.types import TensorType

OutShardings = PartitionSpec | Mapping[str, PartitionSpec] | None
Placed = tuple[TensorType | None, Sharding | None]  # None: as the plan needs it
ANYWHERE: Placed = (None, None)
SEED = "seed"


def compile(
    model: Model | Layer,
    backend: Backend,
    *,
    shapes: Mapping[str, object] | None = None,
    inference: bool = False,
    out_shardings: OutShardings = None,
    **options: object,
) -> CompiledModel:
    """Compile a model for a backend.

    The compiled model is a snapshot: later changes of the model do not reach it.

    Args:
        model: a Model, or a single layer.
        backend: where it runs.
        shapes: for each input a shape, an array, or a `TensorSpec`; then the plan (of outputs and
            gradients, or of outputs alone with `inference`) is made at once.
        inference: turns dropout off.
        out_shardings: how outputs must leave: one PartitionSpec for all, or one per output name.
        options: none yet; others of the guides are refused by name.

    Raises:
        OptionError: an option is unknown or not available yet.
        MeshError: an annotation does not fit the backend's mesh.
        GraphError: the model is incomplete, or a name does not exist.
    """
    known = ("shapes", "inference", "out_shardings")
    refuse_later("compile()", options, COMPILE_LATER)
    refuse_unknown("compile()", options, known)
    compiled = CompiledModel(_snapshot(model), backend, inference, out_shardings)
    if shapes is not None:
        compiled.plan_for(shapes, gradients=not inference)
    return compiled


def _snapshot(model: object) -> Composition | Layer:
    if isinstance(model, Model):
        return model.freeze()
    if isinstance(model, Layer):
        return model
    raise GraphError(f"compile() takes a Model or a layer, not {type(model).__name__}")


@dataclass(frozen=True)
class _Signature:
    """What a plan depends on; hashable."""

    inputs: tuple[tuple[str, Placed], ...]
    parameters: tuple[tuple[str, Placed], ...]
    gradients: tuple[tuple[str, Placed], ...] | None


class _Step:
    """A plan, how the model's parameters start, and, once it is needed, the executable."""

    def __init__(self, plan: Plan, traced: Traced, backend: Backend) -> None:
        self.plan = plan
        self.initializers = traced.initializers
        self._backend = backend
        self.program = plan.stages[0].program
        self.ports = {port.name: port for port in self.program.inputs}

    @cached_property
    def run(self) -> Executable:
        return self._backend.engine.lower(self.program)


class CompiledModel:
    """A model ready to run on a backend; made by `compile`."""

    def __init__(
        self,
        model: Composition | Layer,
        backend: Backend,
        inference: bool,
        out_shardings: OutShardings,
    ) -> None:
        self.backend = backend
        self.input_names: tuple[str, ...] = tuple(input_names(model))
        self.output_names: tuple[str, ...] = tuple(output_names(model))
        self.parameter_names: tuple[str, ...] = tuple(parameter_names(model))
        check_patterns(model)
        self.recompiles = 0
        self._model = model
        self._inference = inference
        self._out_specs = _read_out_shardings(out_shardings, self.output_names)
        self._traces: dict[tuple[tuple[str, TensorType], ...], Traced] = {}
        self._steps: dict[_Signature, _Step] = {}
        self._latest: _Step | None = None
        self._decisions: dict[tuple[str, Sharding], str] = {}

    # ------------------------------------------------------------------ running

    @overload
    def evaluate(
        self,
        params: Mapping[str, Array],
        inputs: Mapping[str, object],
        output_gradients: None = None,
        *,
        seed: int = 0,
        observe: Observer | None = None,
    ) -> dict[str, Array]: ...

    @overload
    def evaluate(
        self,
        params: Mapping[str, Array],
        inputs: Mapping[str, object],
        output_gradients: Mapping[str, object],
        *,
        seed: int = 0,
        observe: Observer | None = None,
    ) -> tuple[dict[str, Array], dict[str, Array]]: ...

    def evaluate(
        self,
        params: Mapping[str, Array],
        inputs: Mapping[str, object],
        output_gradients: Mapping[str, object] | None = None,
        *,
        seed: int = 0,
        observe: Observer | None = None,
    ) -> dict[str, Array] | tuple[dict[str, Array], dict[str, Array]]:
        """Return the outputs, and the gradients of the parameters when output gradients are given.

        Semantics are those of one device, whatever the mesh.

        Args:
            params: one array per parameter name; those of `randomize_params` get their size here.
            inputs: one array per input name; NumPy arrays are replicated.
            output_gradients: the gradient of some outputs; the others count as zero.
            seed: decides the dropout masks; a forward and a backward with one seed agree.
            observe: told kind, mesh axes and bytes of every collective that is carried out.

        Returns:
            The outputs by name, or `(outputs, gradients)`.

        Raises:
            GraphError: a name is missing or unknown.
            ShapeError: shapes or dtypes do not fit the model.
            BackendError: an array belongs to another backend.
        """
        given = self._arrays(inputs, self.input_names, "input")
        parameters = self._parameters(params)
        gradients = self._gradients(output_gradients)
        signature = _Signature(
            _placed(given), _placed(parameters), None if gradients is None else _placed(gradients)
        )
        step = self._step(signature)
        self._materialise(parameters, step)
        handles = {name: x.shards for name, x in {**given, **parameters}.items()}
        for name, x in (gradients or {}).items():
            handles[seed_of(name)] = x.shards
        if SEED in step.ports:
            handles[SEED] = self._seed_array(seed, step.ports[SEED]).shards
        results = step.run([handles[port.name] for port in step.program.inputs], observe)
        arrays = {
            port.name: Array(self.backend, port.type, port.sharding, shards)
            for port, shards in zip(step.program.outputs, results, strict=True)
        }
        outputs = {name: arrays[name] for name in self.output_names}
        if gradients is None:
            return outputs
        wanted = (name for name in parameters if gradient_of(name) in arrays)
        return outputs, {name: arrays[gradient_of(name)] for name in wanted}

    def randomize_params(self, seed: int = 0) -> Parameters:
        """Return initial parameters, a new mapping by full name.

        Names are known at once. A parameter whose size depends on an input gets its values at the
        first `evaluate`, in place. Values depend on the seed alone, not on the mesh.

        Args:
            seed: any integer.
        """
        waiting: dict[str, Array] = {
            name: InitialArray(self.backend, name, seed) for name in self.parameter_names
        }
        if self._latest is not None:
            self._materialise(waiting, self._latest)
        return Parameters(seed, waiting)

    def get_parameters(self, seed: int = 0) -> Parameters:
        """Return initial parameters; the same as `randomize_params`."""
        return self.randomize_params(seed)

    # ------------------------------------------------------------------ reading the plan

    @property
    def plan(self) -> Plan:
        """The plan that was made last.

        Raises:
            PlanError: no shapes are known yet.
        """
        if self._latest is None:
            raise PlanError(
                "plan is not known before the shapes; evaluate once, or pass shapes= to compile()"
            )
        return self._latest.plan

    def plan_for(self, shapes: Mapping[str, object], *, gradients: bool = True) -> Plan:
        """Return the plan for inputs of given shapes, without running anything.

        Args:
            shapes: for each input a shape, an array, or a `TensorSpec`.
            gradients: plan the backward computation too, from all float outputs.
        """
        self._check_names(shapes, self.input_names, "input")
        mesh = self.backend.mesh
        placed = []
        for name in self.input_names:
            spec = as_spec(shapes[name], f"input '{name}'")
            sharding = Sharding.of(mesh, spec.sharding, len(spec.shape), f"input '{name}'")
            sharding.check(spec.type.shape, f"input '{name}'")
            placed.append((name, (spec.type, sharding)))
        traced = self._trace(tuple((name, type) for name, (type, _) in placed))
        parameters = tuple((name, ANYWHERE) for name in self.parameter_names)
        types = {name: traced.graph.outputs[name].type for name in self.output_names}
        seeds = tuple((name, ANYWHERE) for name, type in types.items() if type.dtype.is_float)
        return self._step(_Signature(tuple(placed), parameters, seeds if gradients else None)).plan

    def plan_summary(self) -> str:
        """Return collectives and bytes of the last plan per mesh axis, and what they are for."""
        return summarise(self.plan)

    def explain(self, tensor: str | None = None) -> str:
        """Return why the last plan has its collectives, or why one tensor lies as it does.

        Args:
            tensor: name of a parameter, input, output or layer output.
        """
        return explain(self.plan, tensor)

    def __repr__(self) -> str:
        return (
            f"CompiledModel(inputs={list(self.input_names)}, outputs={list(self.output_names)}, "
            f"parameters={len(self.parameter_names)}, {self.backend!r})"
        )

    # ------------------------------------------------------------------ planning

    def _step(self, signature: _Signature) -> _Step:
        step = self._steps.get(signature)
        if step is None:
            step = self._make_step(signature)
            self.recompiles += 1
            self._steps[signature] = step
            self._steps.setdefault(self._settled(signature, step), step)
        self._latest = step
        return step

    def _make_step(self, signature: _Signature) -> _Step:
        types = tuple((name, type) for name, (type, _) in signature.inputs if type is not None)
        traced = self._trace(types)
        self._check_types(traced, signature)
        request = self._request(traced, signature)
        kernels = self.backend.engine.kernels
        plan = make_plan(traced.graph, self.backend.mesh, request, kernels)
        return _Step(plan, traced, self.backend)

    def _trace(self, types: tuple[tuple[str, TensorType], ...]) -> Traced:
        if types not in self._traces:
            self._traces[types] = trace(self._model, dict(types), inference=self._inference)
        return self._traces[types]

    def _request(self, traced: Traced, signature: _Signature) -> Request:
        mesh = self.backend.mesh
        arriving: dict[str, Sharding] = {
            name: sharding for name, (_, sharding) in signature.inputs if sharding is not None
        }
        decided = dict.fromkeys(arriving, "the array that was passed in")
        free = set()
        for name, (_, sharding) in signature.parameters:
            if sharding is not None:
                who = self._decisions.get((name, sharding), "the array that was passed in")
            else:
                sharding, who = self._annotated(traced, name, traced.graph.input(name).type)
            if sharding is None:
                free.add(name)
            else:
                arriving[name], decided[name] = sharding, who
        gradients = None
        if signature.gradients is not None:
            gradients = {name: sharding for name, (_, sharding) in signature.gradients}
            free.update(seed_of(name) for name, sharding in gradients.items() if sharding is None)
        types = {name: value.type for name, value in traced.graph.outputs.items()}
        return Request(
            inputs=arriving,
            outputs={
                name: self._out_sharding(name, spec, types[name])
                for name, spec in self._out_specs.items()
            },
            compute=frozenset(self.parameter_names) & set(arriving),
            decided_by=decided,
            output_gradients=None if gradients is None else {
                name: sharding or Sharding.replicated(mesh, types[name].rank)
                for name, sharding in gradients.items()
            },
            differentiated=tuple(
                name for name in self.parameter_names
                if traced.graph.input(name).type.dtype.is_float
            ),
            homes=self._homes(traced),
            free=frozenset(free),
            notes=self._notes(traced),
        )  # fmt: skip

    def _annotated(
        self, traced: Traced, name: str, type: TensorType
    ) -> tuple[Sharding | None, str]:
        annotation = traced.annotations.get(name)
        mesh = self.backend.mesh
        if annotation is None or mesh.size == 1:
            return None, ""
        spec = resolve(annotation, mesh, type, name)
        sharding = Sharding.of(mesh, spec, type.rank, f"parameter '{name}'")
        sharding.check(type.shape, f"parameter '{name}'")
        return sharding, f"the annotation {annotation}{annotation.place}"

    def _homes(self, traced: Traced) -> dict[str, Sharding]:
        """Return where the user wants inputs and intermediate values to lie, by name."""
        mesh = self.backend.mesh
        if mesh.size == 1:
            return {}
        homes = {}
        for value, annotation in traced.value_annotations.items():
            what = f"value '{value.name}'"
            spec = resolve(annotation, mesh, value.type, value.name)
            homes[value.name] = Sharding.of(mesh, spec, value.type.rank, what)
            homes[value.name].check(value.type.shape, what)
        return homes

    def _out_sharding(self, name: str, spec: PartitionSpec, type: TensorType) -> Sharding:
        sharding = Sharding.of(self.backend.mesh, spec, type.rank, f"output '{name}'")
        sharding.check(type.shape, f"output '{name}'")
        return sharding

    def _notes(self, traced: Traced) -> tuple[str, ...]:
        if self.backend.mesh.size > 1 or not traced.annotations:
            return ()
        return (
            f"annotations ignored, because the backend has one device: {len(traced.annotations)}",
        )

    def _settled(self, signature: _Signature, step: _Step) -> _Signature:
        """Return the signature with every free sharding replaced by the one that was chosen."""

        def settle(
            items: tuple[tuple[str, Placed], ...], rename: bool = False
        ) -> tuple[tuple[str, Placed], ...]:
            return tuple(
                (name, (port.type, port.sharding))
                for name, _ in items
                for port in [step.ports[seed_of(name) if rename else name]]
            )

        gradients = signature.gradients
        return _Signature(
            signature.inputs,
            settle(signature.parameters),
            None if gradients is None else settle(gradients, rename=True),
        )

    def _materialise(self, parameters: Mapping[str, Array], step: _Step) -> None:
        """Give waiting parameters their values, in the sharding the plan takes them in."""
        for name, x in parameters.items():
            if isinstance(x, InitialArray) and not x.is_materialised:
                port = step.ports[name]
                decision = step.plan.specs[name].decided_by
                self._decisions[name, port.sharding] = decision
                initializer = step.initializers[name]
                x.materialise(
                    initial_array(self.backend, name, port.type, initializer, port.sharding, x.seed)
                )

    def _seed_array(self, seed: int, port: Port) -> Array:
        if not isinstance(seed, int) or not 0 <= seed < 2**32:
            raise OptionError(f"seed={seed!r} is not an integer in [0, 2**32); give another")
        value = np.asarray(seed, np.uint32)
        return self.backend.place(port.type, port.sharding, lambda box: value)

    # ------------------------------------------------------------------ checking what is passed in

    def _arrays(
        self, given: Mapping[str, object], names: Sequence[str], what: str
    ) -> dict[str, Array]:
        self._check_names(given, names, what)
        return {name: as_array(self.backend, given[name], f"{what} '{name}'") for name in names}

    def _parameters(self, params: Mapping[str, Array]) -> dict[str, Array]:
        self._check_names(params, self.parameter_names, "parameter")
        return {
            name: as_array(self.backend, params[name], f"parameter '{name}'")
            for name in self.parameter_names
        }

    def _gradients(self, given: Mapping[str, object] | None) -> dict[str, Array] | None:
        if given is None:
            return None
        if not isinstance(given, Mapping):
            raise GraphError(
                f"output_gradients is a {type(given).__name__}; give a mapping of output names to "
                f"arrays, such as {{'{self.output_names[0]}': …}}"
            )
        for name in given:
            if name not in self.output_names:
                raise GraphError(
                    f"output_gradients names '{name}', which is no output"
                    f"{nearest(name, self.output_names)}; outputs: {listing(self.output_names)}"
                )
        return {
            name: as_array(self.backend, x, f"gradient of output '{name}'")
            for name, x in given.items()
        }

    def _check_names(self, given: Mapping[str, object], names: Sequence[str], what: str) -> None:
        if not isinstance(given, Mapping):
            raise GraphError(
                f"{what}s are given as a {type(given).__name__}; give a mapping of names to arrays"
            )
        unknown = [name for name in given if name not in names]
        missing = [name for name in names if name not in given]
        if unknown:
            raise GraphError(
                f"model has no {what} '{unknown[0]}'{nearest(unknown[0], missing or names)}; "
                f"{what}s: {listing(names)}"
            )
        if missing:
            raise GraphError(f"{what} {listing(missing)} is missing; {what}s: {listing(names)}")

    def _check_types(self, traced: Traced, signature: _Signature) -> None:
        for name, (type, _) in signature.parameters:
            expected = traced.graph.input(name).type
            if type is not None and type != expected:
                raise ShapeError(
                    f"parameter '{name}' is {type}; with these inputs the model needs {expected}; "
                    f"make parameters with randomize_params()"
                )
        for name, (type, _) in signature.gradients or ():
            expected = traced.graph.outputs[name].type
            if type is not None and type != expected:
                raise ShapeError(f"gradient of output '{name}' is {type}; the output is {expected}")


def _placed(arrays: Mapping[str, Array]) -> tuple[tuple[str, Placed], ...]:
    return tuple(
        (name, (x.type, x.sharding) if x.is_materialised else ANYWHERE)
        for name, x in arrays.items()
    )


def _read_out_shardings(given: OutShardings, names: Sequence[str]) -> dict[str, PartitionSpec]:
    if given is None:
        return {}
    if isinstance(given, PartitionSpec):
        return dict.fromkeys(names, given)
    for name in given:
        if name not in names:
            raise GraphError(
                f"out_shardings names '{name}', which is no output{nearest(name, names)}; outputs: "
                f"{listing(names)}"
            )
    return dict(given)
