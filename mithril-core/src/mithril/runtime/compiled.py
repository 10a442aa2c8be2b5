"""CompiledModel: a snapshot of a model on a backend, planned once per input signature.

What is said of an evaluation (types of inputs, parameters and output gradients, and the shardings
of those that somebody placed) is its signature. The first evaluation of a signature plans and
lowers; later ones only run.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, overload

from mithril.compiler import KEEP_ALL
from mithril.engine import Engine, Observer
from mithril.errors import OptionError, PlanError
from mithril.keywords import checked_keywords, list_argument_names, refuse_unknown
from mithril.mesh import Sharding
from mithril.models import Layer
from mithril.models.composition import Composition
from mithril.models.trace import input_names, output_names, parameter_names
from mithril.plan import Plan
from mithril.plugins.published import suggest_attribute
from mithril.runtime.array import Array, Kind
from mithril.runtime.asked import Asked, Evaluation
from mithril.runtime.axis_order import Laid, lay_axes
from mithril.runtime.backend import Backend
from mithril.runtime.bound_model import BoundModel
from mithril.runtime.call import Bound
from mithril.runtime.evaluation import Evaluator
from mithril.runtime.input_kinds import lie_as, read_kinds
from mithril.runtime.input_shardings import InputShardings
from mithril.runtime.memory_planning import choose_engine
from mithril.runtime.parameter_shardings import ParameterShardings
from mithril.runtime.parameters import Parameters
from mithril.runtime.placing_parameters import place_parameters
from mithril.runtime.plan_reports import PlanReports
from mithril.runtime.planner import Planner
from mithril.runtime.pure_programs import Placed, PurePrograms
from mithril.runtime.sampling import read_seed
from mithril.runtime.settings import Choice, Settings
from mithril.runtime.sharing import Shared
from mithril.runtime.tracer import Tracer
from mithril.runtime.unplaced import PendingArray
from mithril.runtime.zero import Zero


class CompiledModel(PlanReports, Shared):
    """A model ready to run on a backend; made by `compile`.

    Args:
        model: the snapshot of a model, or a layer.
        backend: where it runs.
        settings: how it is planned.
        tracer: of the model, on the backend; None for one of its own.
    """

    def __init__(
        self,
        model: Composition | Layer,
        backend: Backend,
        settings: Settings,
        tracer: Tracer | None = None,
    ) -> None:
        self.backend = backend
        self.settings = settings
        self.inputs: tuple[str, ...] = tuple(input_names(model))
        self.outputs: tuple[str, ...] = tuple(output_names(model))
        self.parameters: tuple[str, ...] = tuple(parameter_names(model))
        self._model = model
        self.engine: Engine = choose_engine(
            backend.engine, settings.memory_planning, ranges=settings.partition_hooks
        )
        self._shardings: ParameterShardings[Evaluation] = ParameterShardings(self.parameters)
        self._planner = Planner(
            model, backend, self.engine, settings, self._shardings,
            tracer or Tracer(model, backend),
        )  # fmt: skip
        names = (self.inputs, self.outputs, self.parameters)
        self._pure_programs = PurePrograms(model, settings, self._planner)
        self._evaluator = Evaluator(backend, self._planner, settings, *names)
        self._is_seed_settled = False

    # ------------------------------------------------------------------ running

    @overload
    def evaluate(
        self,
        params: Mapping[str, Array],
        inputs: Mapping[str, object],
        output_gradients: None = None,
        *,
        seed: int | None = None,
        observe: Observer | None = None,
        donate: Choice = (),
    ) -> dict[str, Array]: ...

    @overload
    def evaluate(
        self,
        params: Mapping[str, Array],
        inputs: Mapping[str, object],
        output_gradients: Mapping[str, object],
        *,
        seed: int | None = None,
        observe: Observer | None = None,
        donate: Choice = (),
    ) -> tuple[dict[str, Array], Parameters]: ...

    def evaluate(
        self,
        params: Mapping[str, Array],
        inputs: Mapping[str, object],
        output_gradients: Mapping[str, object] | None = None,
        *,
        seed: int | None = None,
        observe: Observer | None = None,
        donate: Choice = (),
        **unknown: object,  # refused here: a decorator would be felt in small steps
    ) -> dict[str, Array] | tuple[dict[str, Array], Parameters]:
        """Return the outputs, and the gradients of the parameters when output gradients are given.

        Semantics are those of one device, whatever the mesh.

        Args:
            params: one array per parameter name; those of `randomize_params` get their size here.
            inputs: one array per input name; those of NumPy go where the plan wants them.
            output_gradients: the gradient of some outputs; the others count as zero.
            seed: decides the dropout masks; a forward and a backward with one seed agree. Give
                another one at every step, `seed=step`; left out, it is 0, and a model that draws
                random numbers warns once.
            observe: told every collective that is carried out: its `kind`, `axes`, `bytes`,
                `scope`, `source`, `phase` and `cause`.
            donate: what this call gives up besides what `compile(donate=…)` says: names or patterns
                of inputs and parameters, or whole arguments, `"params"`, `"inputs"`. These arrays
                cannot be used afterwards; an output of the same type may take their memory.
            unknown: none; any other option is refused.

        Returns:
            The outputs by name, or `(outputs, gradients)`.

        Raises:
            GraphError: a name is missing or unknown.
            ShapeError: shapes or dtypes do not fit the model.
            BackendError: an array belongs to another backend, or was donated, or is donated and
                needed otherwise.
            OptionError: the seed is no integer, `observe` no function, `donate` names nothing, or
                an option is unknown.
        """
        if unknown:
            refuse_unknown("evaluate()", unknown, list_argument_names(type(self).evaluate))
        number = 0 if seed is None else read_seed(seed)
        written = self._evaluator.written[output_gradients is None]
        if written is not None and observe is None and not donate:
            made = written(self._evaluator, params, inputs, output_gradients)
            if made is not None:
                return made
        if observe is not None and not callable(observe):
            raise OptionError(
                f"observe={observe!r} cannot be called; give a function of what is issued"
            )
        if self.settings.lays_axes:
            self._plan_arrays(params, inputs, output_gradients)
        outputs, gradients = self._evaluator.evaluate(
            params, inputs, output_gradients, number, observe, donate
        )
        if seed is None and not self._is_seed_settled:
            self._warn_of_repeated_masks()
        return outputs if output_gradients is None else (outputs, gradients)

    def _warn_of_repeated_masks(self) -> None:
        """Warn once if the model draws random numbers, which are the same without a seed."""
        self._is_seed_settled = True
        latest = self._evaluator.latest
        if latest is None or not latest.interface.source.traced.uses_seed:
            return
        warnings.warn(
            "evaluate() is called without seed= and the model draws random numbers, such as "
            "dropout masks: every call draws the same; pass seed=step, or compile with "
            "inference=True",
            stacklevel=3,
        )

    @checked_keywords()
    def randomize_params(self, seed: int = 0) -> Parameters:
        """Return initial parameters, a new mapping by full name.

        Names are known at once. A parameter whose size depends on an input gets its values at the
        first `evaluate`, in place. Values depend on the seed alone, not on the mesh; they lie as
        `shardings` says, whatever was evaluated before.

        Args:
            seed: an integer in [0, 2**32).
        """
        seed = read_seed(seed)
        waiting: dict[str, Array] = {
            name: PendingArray(self.backend, name, seed) for name in self.parameters
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
    def trainable(self) -> tuple[str, ...]:
        """Full names of the parameters that are not frozen: gradients are given of those."""
        return self._planner.trainable

    @property
    def differentiable(self) -> tuple[str, ...]:
        """The inputs whose gradients are given besides those of the parameters."""
        return self.settings.differentiable

    @property
    def recompiles(self) -> int:
        """How many plans were made so far: one per signature."""
        return self._planner.bindings.made

    @property
    def captured(self) -> Mapping[str, Array]:
        """Arrays that layers use from around them, by the names of the last plan's inputs.

        Raises:
            PlanError: no shapes are known yet.
        """
        _ = self.plan
        return {} if self._evaluator.latest is None else BoundModel(self._evaluator.latest).captured

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
        >>> layer = ml.Linear(4, bias=False, sharding={"weight": ml.P("tensor", None)})
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
                "pass shapes= to compile(); those of a train step are those of step.init()"
            )
        ports = (bound.ports[name] for name in self.parameters)
        return {port.name: (port.type, port.sharding) for port in ports}

    def plan_for(self, shapes: Mapping[str, object], *, gradients: bool = True) -> Plan:
        """Return the plan for inputs of given shapes, without running anything.

        Args:
            shapes: for each input a shape, an array, or a `TensorSpec`.
            gradients: plan the backward computation too, from the scalar float outputs that are
                named, or the first of their layer, such as a loss; from all float outputs where
                there is none.
        """
        kinds = self.read_kinds(shapes)
        seeded = self._planner.list_losses(kinds) if gradients else None
        plan = self._evaluator.bind(seeded, self._leave_open(kinds, seeded or ())).plan
        if not self.settings.lays_axes:
            return plan
        self._settle_axes(plan)
        return self.plan_for(shapes, gradients=gradients)

    def decide_shardings(self, inputs: Sequence[Kind], seeded: tuple[str, ...]) -> None:
        """Decide how parameters lie, as the plan with gradients of some outputs has it."""
        self._planner.decide(seeded, self._leave_open(inputs, seeded))

    def _plan_arrays(
        self,
        params: Mapping[str, object],
        inputs: Mapping[str, object],
        output_gradients: Mapping[str, object] | None,
    ) -> Bound[Evaluation]:
        """Return what evaluates arrays; nothing runs."""
        bound = self._evaluator.plan_for(params, inputs, output_gradients)
        if not self.settings.lays_axes:
            return bound
        self._settle_axes(bound.plan)
        return self._evaluator.plan_for(params, inputs, output_gradients)

    def _settle_axes(self, plan: Plan) -> None:
        """Have the axes of the mesh from now on in the order in which the first plan sends least.

        Args:
            plan: that one, in the order as given.
        """
        vars(self).update(vars(self.with_axes(*self.choose_axes(plan))))

    def with_axes(self, order: Sequence[str], *notes: str) -> CompiledModel:
        """Return the same model with the axes of the mesh in an order that stays.

        Args:
            order: all axis names, the slowest first.
            notes: what readers of its plans are told.
        """
        settings = replace(self.settings, lays_axes=False, notes=(*self.settings.notes, *notes))
        return CompiledModel(self._model, self.backend.reorder(order), settings)

    def choose_axes(self, plan: Plan) -> Laid:
        """Return the order of axes in which a plan of this model sends least, and a note of why.

        Args:
            plan: in the order of the model's backend.
        """
        return lay_axes(self._model, plan, self.backend)

    def read_kinds(self, shapes: Mapping[str, object]) -> list[Kind]:
        """Return the kinds of the inputs, from shapes, arrays and specs, in order.

        Running statistics need none where the layer that keeps them knows their shape.

        Raises:
            GraphError: an input is missing or unknown.
        """
        return read_kinds(self._model, shapes, self._planner)

    @property
    def input_shardings(self) -> InputShardings:
        """How inputs lie that nobody has placed, as far as that is said."""
        return self._planner.input_shardings

    def resting(self, zero: Zero, inputs: Sequence[Kind]) -> CompiledModel:
        """Return the same model with parameters at rest that are split further than computed.

        Args:
            zero: over which axes; below its last stage only what has an optimiser's state is.
            inputs: kinds of the inputs, in order, for which there is a plan.
        """
        traced = self.ask((), inputs).traced
        names = self.parameters if zero.stage == 3 else self.trainable
        types = ((name, traced.graph.input(name).type) for name in names)
        decided = {n: at.sharding for n, type in types if (at := self._shardings.of(n, type))}
        return self.with_settings(self.settings.resting(zero.rest(traced, decided)))

    def keeping_all(self) -> CompiledModel:
        """Return the same model without a memory budget, or anything computed again."""
        plan = replace(self.settings.plan, recompute=KEEP_ALL)
        return self.with_settings(replace(self.settings, plan=plan))

    def with_settings(self, settings: Settings) -> CompiledModel:
        """Return the same model with other settings."""
        return CompiledModel(self._model, self.backend, settings, self._planner.tracer)

    def ask(self, seeded: tuple[str, ...], inputs: Sequence[Kind]) -> Asked:
        """Return what would be planned for inputs of some kinds, parameters lying as said.

        Args:
            seeded: the outputs whose gradients are given.
            inputs: in the order of `inputs`.
        """
        return self._planner.ask(seeded, self._leave_open(inputs, seeded))

    def _leave_open(self, inputs: Sequence[Kind], seeded: Sequence[str]) -> list[Kind]:
        """Return kinds of which those of parameters and output gradients are not said."""
        return [*inputs, *[Kind.open(self.backend)] * (len(self.parameters) + len(seeded))]

    def convert_inputs(self, given: Mapping[str, object], names: Sequence[str]) -> list[Array]:
        """Return some inputs as arrays of the backend, in order; values of the host wait there."""
        return self._evaluator.convert_inputs(given, names)

    def convert_parameters(self, given: Mapping[str, object]) -> list[Array]:
        """Return parameters as arrays of the backend, in order."""
        return self._evaluator.convert_parameters(given)

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
        if self.settings.lays_axes:
            self.plan_for(shapes, gradients=gradients)
        ports = {} if self._evaluator.latest is None else self._evaluator.latest.ports
        kinds = dict(zip(self.inputs, self.read_kinds(shapes), strict=True))
        for name, kind in kinds.items():
            if not isinstance(shapes.get(name), Array | Kind):
                kinds[name] = lie_as(ports.get(name), kind)
        return self._pure_programs.bind(
            kinds, gradients, differentiable, inference, parameters or {}, cotangents or {}
        )

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
            f"CompiledModel(inputs={list(self.inputs)}, outputs={list(self.outputs)}, "
            f"parameters={len(self.parameters)}, {self.backend!r})"
        )


def _public(model: CompiledModel) -> list[str]:
    return [name for name in dir(type(model)) if not name.startswith("_")]
