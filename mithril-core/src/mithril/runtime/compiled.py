"""CompiledModel: a snapshot of a model on a backend, planned once per input signature.

What an evaluation needs (types and shardings of inputs, parameters and output gradients) is its
signature. The first evaluation of a signature plans and lowers; later ones only run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, overload

from mithril.engine import Engine, Observer
from mithril.errors import GraphError, OptionError, PlanError, kind_of
from mithril.keywords import checked_keywords, named, refuse_unknown
from mithril.mesh import Sharding
from mithril.models import Layer
from mithril.models.composition import Composition
from mithril.models.summary import summarize
from mithril.models.trace import input_names, output_names, parameter_names
from mithril.partition import explain
from mithril.partition.map import partition_map
from mithril.plan import Plan
from mithril.plan.printer import print_collectives, print_shapes
from mithril.plugins.published import suggest_attribute
from mithril.runtime.array import Array, Kind, PendingArray
from mithril.runtime.backend import Backend
from mithril.runtime.evaluation import Evaluator, check_names
from mithril.runtime.parameters import Parameters
from mithril.runtime.planner import ANYWHERE, Arguments, Placed, Planner, Signature
from mithril.runtime.sampling import check_seed
from mithril.runtime.settings import Settings
from mithril.runtime.specification import as_spec
from mithril.runtime.wiring import Wiring
from mithril.transform import cotangent_name, gradient_of
from mithril.types import TensorType

Types = tuple[tuple[str, TensorType], ...]


def _kind(given: object) -> object:
    return given.kind if isinstance(given, Array) else given


class CompiledModel:
    """A model ready to run on a backend; made by `compile`."""

    def __init__(self, model: Composition | Layer, backend: Backend, settings: Settings) -> None:
        self.backend = backend
        self.settings = settings
        self.input_names: tuple[str, ...] = tuple(input_names(model))
        self.output_names: tuple[str, ...] = tuple(output_names(model))
        self.parameter_names: tuple[str, ...] = tuple(parameter_names(model))
        self._model = model
        self._planner = Planner(model, backend, settings)
        names = (self.input_names, self.output_names, self.parameter_names)
        self._pure_planners = {(settings.differentiable, settings.inference): self._planner}
        self._evaluator = Evaluator(backend, self._planner, settings, *names)

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
    ) -> tuple[dict[str, Array], Parameters]: ...

    def evaluate(
        self,
        params: Mapping[str, Array],
        inputs: Mapping[str, object],
        output_gradients: Mapping[str, object] | None = None,
        *,
        seed: int = 0,
        observe: Observer | None = None,
        **unknown: object,  # refused here: a decorator would be felt in small steps
    ) -> dict[str, Array] | tuple[dict[str, Array], Parameters]:
        """Return the outputs, and the gradients of the parameters when output gradients are given.

        Semantics are those of one device, whatever the mesh.

        Args:
            params: one array per parameter name; those of `randomize_params` get their size here.
            inputs: one array per input name; NumPy arrays are replicated.
            output_gradients: the gradient of some outputs; the others count as zero.
            seed: decides the dropout masks; a forward and a backward with one seed agree.
            observe: told kind, mesh axes and bytes of every collective that is carried out.
            unknown: none; any other option is refused.

        Returns:
            The outputs by name, or `(outputs, gradients)`.

        Raises:
            GraphError: a name is missing or unknown.
            ShapeError: shapes or dtypes do not fit the model.
            BackendError: an array belongs to another backend.
            OptionError: the seed is no integer, `observe` no function, or an option unknown.
        """
        if unknown:
            refuse_unknown("evaluate()", unknown, named(type(self).evaluate))
        if observe is not None and not callable(observe):
            raise OptionError(
                f"observe={observe!r} cannot be called; give a function of kind, axes and bytes"
            )
        outputs, gradients = self._evaluator.evaluate(
            params, inputs, output_gradients, seed, observe
        )
        return outputs if output_gradients is None else (outputs, gradients)

    @checked_keywords()
    def randomize_params(self, seed: int = 0) -> Parameters:
        """Return initial parameters, a new mapping by full name.

        Names are known at once. A parameter whose size depends on an input gets its values at the
        first `evaluate`, in place. Values depend on the seed alone, not on the mesh.

        Args:
            seed: an integer in [0, 2**32).
        """
        check_seed(seed)
        waiting: dict[str, Array] = {
            name: PendingArray(self.backend, name, seed) for name in self.parameter_names
        }
        if self._evaluator.latest is not None:
            self._evaluator.materialise(waiting, self._evaluator.latest)
        return Parameters(waiting)

    def get_parameters(self, seed: int = 0) -> Parameters:
        """Return initial parameters; the same as `randomize_params`."""
        return self.randomize_params(seed)

    # ------------------------------------------------------------------ reading the plan

    @property
    def engine(self) -> Engine:
        """What runs the plans: the backend's engine, with ranges for a profiler if asked for."""
        return self._planner.engine

    @property
    def differentiable(self) -> tuple[str, ...]:
        """The inputs whose gradients are given besides those of the parameters."""
        return self.settings.differentiable

    @property
    def recompiles(self) -> int:
        """How many plans were made so far: one per signature."""
        return self._planner.made

    @property
    def plan(self) -> Plan:
        """The plan that was made last.

        Raises:
            PlanError: no shapes are known yet.
        """
        if self._evaluator.latest is None:
            raise PlanError(
                "plan is not known before the shapes; evaluate once, or pass shapes= to compile()"
            )
        return self._evaluator.latest.plan

    def plan_for(self, shapes: Mapping[str, object], *, gradients: bool = True) -> Plan:
        """Return the plan for inputs of given shapes, without running anything.

        Args:
            shapes: for each input a shape, an array, or a `TensorSpec`.
            gradients: plan the backward computation too, from all float outputs.
        """
        types, placed = self._placed(shapes)
        parameters = tuple((name, ANYWHERE) for name in self.parameter_names)
        outputs = self._float_outputs(self._planner, types)
        seeds = tuple((name, ANYWHERE) for name in outputs) if gradients else None
        return self._evaluator.step(Signature(placed, parameters, seeds)).plan

    def _placed(self, shapes: Mapping[str, object]) -> tuple[Types, Arguments]:
        """Return types of inputs, and types with shardings, from shapes, arrays and specs."""
        if not isinstance(shapes, Mapping):
            raise GraphError(
                f"shapes is {kind_of(shapes)}; give a mapping of input names to shapes, such as "
                f"{{'{self.input_names[0]}': (8, 4)}}"
            )
        check_names(shapes, self.input_names, "input")
        found: list[tuple[str, TensorType, Sharding]] = []
        for name in self.input_names:
            given = _kind(shapes[name])
            if isinstance(given, Kind):
                found.append((name, given.type, given.sharding))
                continue
            spec = as_spec(given, f"input '{name}'", self.backend.precision.default)
            sharding = Sharding.of(
                self.backend.mesh, spec.sharding, len(spec.shape), f"input '{name}'"
            )
            found.append((name, spec.type, sharding))
        types = tuple((name, type) for name, type, _ in found)
        return types, tuple((name, (type, sharding)) for name, type, sharding in found)

    def _as_before(self, name: str, placed: Placed) -> Placed:
        """Return how an input lies in the latest plan, if that is for the same type."""
        step = self._evaluator.latest
        port = None if step is None else step.ports[name]
        return (port.type, port.sharding) if port and port.type == placed[0] else placed

    def _float_outputs(self, planner: Planner, types: Types) -> tuple[str, ...]:
        outputs = planner.trace(types).graph.outputs
        return tuple(name for name in self.output_names if outputs[name].type.dtype.is_float)

    def program_for(
        self,
        shapes: Mapping[str, object],
        *,
        gradients: bool,
        differentiable: Sequence[str] | None = None,
        inference: bool = False,
        parameters: Mapping[str, Placed] | None = None,
        cotangents: Mapping[str, Placed] | None = None,
    ) -> Wiring:
        """Return the program for inputs of given shapes, for a plugin that runs it by itself.

        An input that is no array lies as in the plan that was made last, if there is one.

        Args:
            shapes: for each input a shape, an array or its kind, or a `TensorSpec`.
            gradients: whether output gradients go in and gradients come out.
            differentiable: the inputs that gradients come out of; by default all of floats.
            inference: whether dropout and its like do nothing even if the model was compiled to
                train.
            parameters: type and sharding of the parameters whose sharding is settled.
            cotangents: the same of gradients of outputs, by output.
        """
        types, placed = self._placed(shapes)
        placed = tuple(
            (name, known if isinstance(_kind(shapes[name]), Kind) else self._as_before(name, known))
            for name, known in placed
        )
        if differentiable is None:
            differentiable = [name for name, type in types if type.dtype.is_float]
        planner = self._pure_planner(tuple(differentiable), inference)
        outputs = self._float_outputs(planner, types) if gradients else ()
        arriving = tuple((name, (cotangents or {}).get(name, ANYWHERE)) for name in outputs)
        lying = tuple(
            (name, (parameters or {}).get(name, ANYWHERE)) for name in self.parameter_names
        )
        step = planner.step(Signature(placed, lying, arriving if gradients else None))
        made = {port.name for port in step.plan.outputs}
        wanted = {name: gradient_of(name) for name in (*self.parameter_names, *differentiable)}
        return Wiring(
            self.engine,
            step.plan,
            {name: cotangent_name(name) for name in outputs},
            {name: port for name, port in wanted.items() if port in made},
            step.uses_seed,
        )

    def _pure_planner(self, differentiable: tuple[str, ...], inference: bool) -> Planner:
        settings = replace(
            self.settings,
            differentiable=differentiable,
            inference=self.settings.inference or inference,
        )
        key = settings.differentiable, settings.inference
        if key not in self._pure_planners:
            self._pure_planners[key] = Planner(self._model, self.backend, settings)
        return self._pure_planners[key]

    def get_partition_map(self) -> dict[str, Any]:
        """Return which device runs which layers and holds which parameters, by the last plan.

        The result is plain data: `mesh`, `stages`, `layers`, `parameters` and `devices`; see
        `mithril.partition.map`.

        Raises:
            PlanError: no shapes are known yet.
        """
        return partition_map(self.plan, self.parameter_names)

    def summary(self) -> str:
        """Return the model as a table, and what the last plan makes of it, if there is one."""
        described = (
            summarize(self._model)
            if isinstance(self._model, Composition)
            else f"{self._model!r}: parameters {', '.join(self.parameter_names) or 'none'}"
        )
        if self._evaluator.latest is None:
            return f"{described}\non {self.backend!r}; no shapes are known yet"
        return f"{described}\n{print_shapes(self.plan, self.parameter_names)}"

    def plan_summary(self) -> str:
        """Return the last plan's collectives, each with its reason, and the bytes per mesh axis."""
        return print_collectives(self.plan)

    def explain(self, tensor: str | None = None) -> str:
        """Return why the last plan has its collectives, or why one tensor lies as it does.

        Args:
            tensor: name of a parameter, input, output or layer output.

        Raises:
            OptionError: it is no name.
            PlanError: the plan knows no tensor of that name, or no shapes are known yet.
        """
        if tensor is not None and not isinstance(tensor, str):
            raise OptionError(
                f"explain() takes the name of a tensor, not {tensor!r}; give one, such as "
                f"'{self.output_names[0]}', or none"
            )
        return explain(self.plan, tensor)

    def __getattr__(self, name: str) -> Any:
        """Return a method that the backend's framework adds, such as `as_jax`."""
        if name.startswith("_") or name == "backend":
            raise AttributeError(name)
        methods = self.backend.interop.model_methods
        if name not in methods:
            raise AttributeError(
                f"compiled model on backend '{self.backend.name}' has no attribute '{name}'"
                f"{suggest_attribute(name, [*methods, *_public(self)])}"
            )
        return partial(methods[name], self)

    def __repr__(self) -> str:
        return (
            f"CompiledModel(inputs={list(self.input_names)}, outputs={list(self.output_names)}, "
            f"parameters={len(self.parameter_names)}, {self.backend!r})"
        )


def _public(model: CompiledModel) -> list[str]:
    return [name for name in dir(type(model)) if not name.startswith("_")]
