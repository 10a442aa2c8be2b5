"""CompiledModel: a snapshot of a model on a backend, planned once per input signature.

What an evaluation needs (types and shardings of inputs, parameters and output gradients) is its
signature. The first evaluation of a signature plans and lowers; later ones only run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

import numpy as np

from mithril.compiler.options import (
    COMPILE_LATER,
    check_uneven,
    refuse_later,
    refuse_unknown,
)
from mithril.engine import Observer
from mithril.errors import BackendError, GraphError, OptionError, PlanError, listing, nearest
from mithril.ir import Plan, Port
from mithril.ir.printer import print_collectives, print_shapes
from mithril.mesh import Sharding
from mithril.models import Layer, Model
from mithril.models.composition import Composition
from mithril.models.summary import summarize
from mithril.models.trace import input_names, output_names, parameter_names
from mithril.options import Precision
from mithril.partition import explain
from mithril.runtime.array import Array
from mithril.runtime.arrivals import Arrivals
from mithril.runtime.backend import Backend
from mithril.runtime.parameters import InitialArray, Parameters, initial_array
from mithril.runtime.planner import (
    ANYWHERE,
    Planner,
    Signature,
    Step,
    arguments_of,
)
from mithril.runtime.sampling import check_seed
from mithril.runtime.settings import (
    OutShardings,
    Settings,
    read_differentiable,
    read_limit,
    read_out_shardings,
)
from mithril.runtime.specification import as_spec
from mithril.transform import gradient_of, seed_of

SEED = "seed"


def compile(
    model: Model | Layer,
    backend: Backend,
    *,
    shapes: Mapping[str, object] | None = None,
    inference: bool = False,
    uneven: str | None = None,
    out_shardings: OutShardings = None,
    precision: Precision | None = None,
    differentiable: Sequence[str] = (),
    max_reshard_bytes: int | None = None,
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
        uneven: what happens when a dimension is split that does not divide: `pad` its parts, or
            `error`; by default as the backend does.
        out_shardings: how outputs must leave: one PartitionSpec for all, or one per output name.
        precision: the dtypes of parameters, linear algebra and activations; by default the
            backend's.
        differentiable: inputs whose gradients are wanted, too; they come with the parameters'.
        max_reshard_bytes: refuse a plan that moves more bytes than this, per device and time, only
            because two shardings do not fit together (reductions and what is kept at rest aside).
        options: none yet; others of the guides are refused by name.

    Raises:
        OptionError: an option is unknown or not available yet.
        MeshError: an annotation does not fit the backend's mesh.
        GraphError: the model is incomplete, or a name does not exist.
        PlanError: a hidden move is larger than `max_reshard_bytes`; with `shapes`, or at the first
            evaluation.
    """
    known = (
        "shapes", "inference", "uneven", "out_shardings", "precision", "differentiable",
        "max_reshard_bytes",
    )  # fmt: skip
    refuse_later("compile()", options, COMPILE_LATER)
    refuse_unknown("compile()", options, known)
    if not isinstance(backend, Backend):
        raise BackendError(
            f"compile() takes a backend, not {backend!r}; open one, such as ml.NumpyBackend()"
        )
    if not isinstance(inference, bool):
        raise OptionError(f"inference={inference!r} is neither True nor False; give one of them")
    policy = backend.uneven if uneven is None else check_uneven(uneven)
    dtypes = backend.precision if precision is None else backend.checked_precision(precision)
    snapshot = _snapshot(model)
    settings = Settings(
        inference=inference,
        uneven=policy,
        precision=dtypes,
        out_shardings=read_out_shardings(out_shardings, output_names(snapshot), backend.mesh),
        differentiable=read_differentiable(differentiable, input_names(snapshot)),
        max_reshard_bytes=read_limit(max_reshard_bytes),
    )
    compiled = CompiledModel(snapshot, backend, settings)
    if shapes is not None:
        compiled.plan_for(shapes, gradients=not inference)
    return compiled


def _snapshot(model: object) -> Composition | Layer:
    if isinstance(model, Model):
        return model.freeze()
    if isinstance(model, Layer):
        return model
    raise GraphError(f"compile() takes a Model or a layer, not {type(model).__name__}")


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
        self._arrivals = Arrivals(backend)
        self._latest: Step | None = None

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
        check_seed(seed)
        given = self._arrays(inputs, self.input_names, "input")
        parameters = self._parameters(params)
        gradients = self._fitted(self._gradients(output_gradients), given)
        seeds = None if gradients is None else arguments_of(gradients)
        signature = Signature(arguments_of(given), arguments_of(parameters), seeds)
        step = self._step(signature)
        if any(placed is ANYWHERE for _, placed in signature.parameters):
            self._materialise(parameters, step)
        handles = {name: x.shards for name, x in {**given, **parameters}.items()}
        for name, x in (gradients or {}).items():
            handles[seed_of(name)] = x.shards
        if step.uses_seed:
            handles[SEED] = self._seed_array(seed, step.ports[SEED]).shards
        results = step.run([handles[port.name] for port in step.program.inputs], observe)
        arrays = {
            port.name: Array(self.backend, port.type, port.sharding, shards)
            for port, shards in zip(step.program.outputs, results, strict=True)
        }
        outputs = {name: arrays[name] for name in self.output_names}
        if gradients is None:
            return outputs
        names = (*parameters, *self.settings.differentiable)
        wanted = (name for name in names if gradient_of(name) in arrays)
        return outputs, {name: arrays[gradient_of(name)] for name in wanted}

    def randomize_params(self, seed: int = 0) -> Parameters:
        """Return initial parameters, a new mapping by full name.

        Names are known at once. A parameter whose size depends on an input gets its values at the
        first `evaluate`, in place. Values depend on the seed alone, not on the mesh.

        Args:
            seed: an integer in [0, 2**32).
        """
        check_seed(seed)
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
    def recompiles(self) -> int:
        """How many plans were made so far: one per signature."""
        return self._planner.made

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
            spec = as_spec(shapes[name], f"input '{name}'", self.backend.precision.default)
            sharding = Sharding.of(mesh, spec.sharding, len(spec.shape), f"input '{name}'")
            placed.append((name, (spec.type, sharding)))
        traced = self._planner.trace(tuple((name, type) for name, (type, _) in placed))
        parameters = tuple((name, ANYWHERE) for name in self.parameter_names)
        types = {name: traced.graph.outputs[name].type for name in self.output_names}
        seeds = tuple((name, ANYWHERE) for name, type in types.items() if type.dtype.is_float)
        return self._step(Signature(tuple(placed), parameters, seeds if gradients else None)).plan

    def summary(self) -> str:
        """Return the model as a table, and what the last plan makes of it, if there is one."""
        described = (
            summarize(self._model)
            if isinstance(self._model, Composition)
            else f"{self._model!r}: parameters {', '.join(self.parameter_names) or 'none'}"
        )
        if self._latest is None:
            return f"{described}\non {self.backend!r}; no shapes are known yet"
        return f"{described}\n{print_shapes(self.plan, self.parameter_names)}"

    def plan_summary(self) -> str:
        """Return the last plan's collectives, each with its reason, and the bytes per mesh axis."""
        return print_collectives(self.plan)

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

    # ------------------------------------------------------------------ pieces of an evaluation

    def _step(self, signature: Signature) -> Step:
        self._latest = self._planner.step(signature)
        return self._latest

    def _materialise(self, parameters: Mapping[str, Array], step: Step) -> None:
        """Give waiting parameters their values, in the sharding the plan takes them in."""
        for name, x in parameters.items():
            if isinstance(x, InitialArray) and not x.is_materialised:
                type, initializer = step.ports[name].type, step.initializers[name]
                sharding = self._planner.remember(name, step)
                x.materialise(
                    initial_array(self.backend, name, type, initializer, sharding, x.seed)
                )

    def _seed_array(self, seed: int, port: Port) -> Array:
        value = np.asarray(seed, np.uint32)
        return self.backend.place(port.type, port.sharding, lambda box: value)

    # ------------------------------------------------------------------ checking what is passed in

    def _arrays(
        self, given: Mapping[str, object], names: Sequence[str], what: str
    ) -> dict[str, Array]:
        self._check_names(given, names, what)
        return self._arrivals.take(given, names, what)

    def _parameters(self, params: Mapping[str, Array]) -> dict[str, Array]:
        return self._arrays(params, self.parameter_names, "parameter")

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
        return self._arrivals.take(given, given, "gradient of output")

    def _fitted(
        self, gradients: dict[str, Array] | None, inputs: Mapping[str, Array]
    ) -> dict[str, Array] | None:
        """Return output gradients in the float dtypes that the precision gives the outputs."""
        if gradients is None or not self.settings.precision.is_given:
            return gradients
        types = tuple((name, x.type) for name, x in inputs.items())
        outputs = self._planner.trace(types).graph.outputs
        return {
            name: x.astype(outputs[name].type.dtype) if x.dtype.is_float else x
            for name, x in gradients.items()
        }

    def _check_names(self, given: Mapping[str, object], names: Sequence[str], what: str) -> None:
        if not isinstance(given, Mapping):
            raise GraphError(
                f"{what}s are given as a {type(given).__name__}; give a mapping of names to arrays"
            )
        if len(given) == len(names) and all(name in given for name in names):
            return
        unknown = [name for name in given if name not in names]
        missing = [name for name in names if name not in given]
        if unknown:
            raise GraphError(
                f"model has no {what} '{unknown[0]}'{nearest(unknown[0], missing or names)}; "
                f"{what}s: {listing(names)}"
            )
        if missing:
            raise GraphError(f"{what} {listing(missing)} is missing; {what}s: {listing(names)}")
