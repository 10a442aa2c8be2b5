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
from mithril.keywords import checked_keywords, list_argument_names, refuse_unknown
from mithril.mesh import Sharding
from mithril.models import Layer
from mithril.models.composition import Composition
from mithril.models.summary import summarize
from mithril.models.trace import input_names, main_output_names, output_names, parameter_names
from mithril.plan import Plan
from mithril.plugins.published import suggest_attribute
from mithril.report import explain, partition_map, print_collectives, print_shapes
from mithril.runtime.array import Array, Kind
from mithril.runtime.backend import Backend
from mithril.runtime.bound_model import BoundModel
from mithril.runtime.evaluation import Evaluator, check_names
from mithril.runtime.parameter_shardings import ParameterShardings
from mithril.runtime.parameters import Parameters
from mithril.runtime.placing_parameters import place_parameters
from mithril.runtime.planner import Evaluation, Planner
from mithril.runtime.sampling import check_seed
from mithril.runtime.settings import Settings
from mithril.runtime.specification import read_kind
from mithril.runtime.unplaced import PendingArray
from mithril.types import TensorType

Placed = tuple[TensorType, Sharding]


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
        self.engine: Engine = (
            backend.engine.with_ranges() if settings.partition_hooks else backend.engine
        )
        self._shardings: ParameterShardings[Evaluation] = ParameterShardings(self.parameter_names)
        self._planner = Planner(model, backend, self.engine, settings, self._shardings)
        names = (self.input_names, self.output_names, self.parameter_names)
        self._pure_planners: dict[tuple[tuple[str, ...], bool], Planner] = {}
        if not settings.donated:
            self._pure_planners[settings.differentiable, settings.inference] = self._planner
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
            refuse_unknown("evaluate()", unknown, list_argument_names(type(self).evaluate))
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
        first `evaluate`, in place. Values depend on the seed alone, not on the mesh; they lie as
        `shardings` says, whatever was evaluated before.

        Args:
            seed: an integer in [0, 2**32).
        """
        check_seed(seed)
        waiting: dict[str, Array] = {
            name: PendingArray(self.backend, name, seed) for name in self.parameter_names
        }
        bound = self._shardings.decide()
        if bound is not None:
            self._evaluator.materialise(waiting, bound)
        return Parameters(waiting)

    def get_parameters(self, seed: int = 0) -> Parameters:
        """Return initial parameters; the same as `randomize_params`."""
        return self.randomize_params(seed)

    # ------------------------------------------------------------------ reading the plan

    @property
    def differentiable(self) -> tuple[str, ...]:
        """The inputs whose gradients are given besides those of the parameters."""
        return self.settings.differentiable

    @property
    def recompiles(self) -> int:
        """How many plans were made so far: one per signature."""
        return self._planner.bindings.made

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

    @property
    def shardings(self) -> Mapping[str, Sharding]:
        """How each parameter lies, by full name: as annotations say, and otherwise as is chosen.

        That is decided for the inputs that were known first. It holds for parameters that nobody
        placed otherwise: `randomize_params`, NumPy arrays, a loaded dict.

        Raises:
            PlanError: no shapes are known yet.
        """
        return {name: sharding for name, (_, sharding) in self._find_parameters().items()}

    @checked_keywords()
    def place(self, params: Mapping[str, object]) -> Parameters:
        """Return parameters that exist elsewhere, each laid out as `shardings` says.

        Each device gets just its own part, in the dtype that the model has the parameter in.

        Args:
            params: by full name: arrays of NumPy (a memory map, say), of any backend or framework.

        Raises:
            PlanError: no shapes are known yet.
            GraphError: names are unknown or missing, or shapes do not fit; all of them are listed.

        >>> import mithril as ml, numpy as np
        >>> backend = ml.NumpyBackend(ml.Mesh(tensor=2))
        >>> layer = ml.Linear(4, bias=False, sharding=ml.P("tensor", None))
        >>> compiled = ml.compile(layer, backend, shapes={"input": (8, 3)})
        >>> compiled.place({"weight": np.ones((4, 3))})["weight"].addressable_shards[1].data.shape
        (2, 3)
        """
        return place_parameters(self.backend, params, self._find_parameters())

    def _find_parameters(self) -> dict[str, Placed]:
        """Return what each parameter is, and how it lies if nobody placed it otherwise."""
        bound = self._shardings.decide()
        if bound is None:
            raise PlanError(
                "shardings of the parameters are not known before the shapes; evaluate once, or "
                "pass shapes= to compile()"
            )
        ports = (bound.ports[name] for name in self.parameter_names)
        return {port.name: (port.type, port.sharding) for port in ports}

    def plan_for(self, shapes: Mapping[str, object], *, gradients: bool = True) -> Plan:
        """Return the plan for inputs of given shapes, without running anything.

        Args:
            shapes: for each input a shape, an array, or a `TensorSpec`.
            gradients: plan the backward computation too, from the scalar float outputs that are
                named, or the first of their layer, such as a loss; from all float outputs where
                there is none.
        """
        kinds = self._kinds(shapes)
        seeded = self._losses(kinds) if gradients else None
        open_ = [Kind.open(self.backend)] * (len(self.parameter_names) + len(seeded or ()))
        return self._evaluator.bind(seeded, [*kinds, *open_]).plan

    def _kinds(self, shapes: Mapping[str, object]) -> list[Kind]:
        """Return the kinds of the inputs, from shapes, arrays and specs."""
        if not isinstance(shapes, Mapping):
            raise GraphError(
                f"shapes is {kind_of(shapes)}; give a mapping of input names to shapes, such as "
                f"{{'{self.input_names[0]}': (8, 4)}}"
            )
        check_names(shapes, self.input_names, "input")
        wanted = self.settings.in_shardings
        return [
            read_kind(_kind(shapes[name]), wanted.get(name), self.backend, f"input '{name}'")
            for name in self.input_names
        ]

    def _as_before(self, name: str, kind: Kind) -> Kind:
        """Return how an input lies in the latest plan, if that is for the same type."""
        latest = self._evaluator.latest
        port = None if latest is None else latest.ports[name]
        fits = port is not None and port.type == kind.type
        is_placed = self.backend.mesh.size > 1
        return Kind(self.backend, port.type, port.sharding, is_placed) if port and fits else kind

    def _losses(self, inputs: Sequence[Kind]) -> tuple[str, ...]:
        """Return the outputs whose gradients the first evaluation is expected to give."""
        outputs = self._planner.output_types(self._types(inputs))
        floats = self._float_outputs(self._planner, inputs)
        main = main_output_names(self._model)
        return tuple(name for name in floats if name in main and not outputs[name].shape) or floats

    def _types(self, inputs: Sequence[Kind]) -> tuple[tuple[str, TensorType], ...]:
        return tuple((n, kind.type) for n, kind in zip(self.input_names, inputs, strict=True))

    def _float_outputs(self, planner: Planner, inputs: Sequence[Kind]) -> tuple[str, ...]:
        outputs = planner.trace(self._types(inputs)).graph.outputs
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
    ) -> BoundModel:
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
        kinds = {
            name: kind if isinstance(_kind(shapes[name]), Kind) else self._as_before(name, kind)
            for name, kind in zip(self.input_names, self._kinds(shapes), strict=True)
        }
        if differentiable is None:
            differentiable = [name for name, kind in kinds.items() if kind.type.dtype.is_float]
        planner = self._pure_planner(tuple(differentiable), inference)
        inputs = list(kinds.values())
        seeded = self._float_outputs(planner, inputs) if gradients else None
        lying = [self._find_kind(parameters, name) for name in self.parameter_names]
        arriving = [self._find_kind(cotangents, name) for name in seeded or ()]
        bound = planner.bind(seeded, [*inputs, *lying, *arriving])
        return BoundModel(bound)

    def _find_kind(self, given: Mapping[str, Placed] | None, name: str) -> Kind:
        if given is None or name not in given:
            return Kind.open(self.backend)
        return Kind(self.backend, *given[name], self.backend.mesh.size > 1)

    def _pure_planner(self, differentiable: tuple[str, ...], inference: bool) -> Planner:
        settings = replace(
            self.settings,
            differentiable=differentiable,
            inference=self.settings.inference or inference,
            donated=frozenset(),  # what the framework holds is not ours to give up
        )
        key = settings.differentiable, settings.inference
        if key not in self._pure_planners:
            self._pure_planners[key] = Planner(
                self._model, self.backend, self.engine, settings, self._shardings
            )
        return self._pure_planners[key]

    def get_partition_map(self) -> dict[str, Any]:
        """Return which device runs which layers and holds which parameters, by the last plan.

        The result is plain data: `mesh`, `stages`, `layers`, `parameters` and `devices`; see
        `mithril.report.partition_map`.

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
