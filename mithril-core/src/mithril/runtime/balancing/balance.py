"""`load_balancing=`: the layers of a model in stages of which the slowest is as fast as can be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mithril.compiler import PlanOptions
from mithril.engine.planned import PlannedEngine
from mithril.errors import BackendError, OptionError
from mithril.models.composition import Composition
from mithril.models.layer import Layer
from mithril.models.placement import placement_spec_of
from mithril.option_checks import check_choice, check_flag
from mithril.options import PipelineOptions, Precision
from mithril.partition.pipeline.model_placement import PIPELINE_AXES
from mithril.plan import Plan
from mithril.runtime.backend import Backend
from mithril.runtime.balancing.cut import Cut, cut_greedily, cut_optimally
from mithril.runtime.balancing.trial import Trial
from mithril.runtime.balancing.units import LayerCosts, list_units
from mithril.runtime.compiled import CompiledModel
from mithril.runtime.processes import process_count
from mithril.runtime.settings import Settings
from mithril.runtime.strategy.apply import set_stages
from mithril.units import format_seconds

OPTION = "load_balancing"
ALGORITHMS = ("optimal", "greedy")


@dataclass(frozen=True, slots=True)
class Balancing:
    """How layers are put into stages.

    Args:
        algorithm: one of `ALGORITHMS`.
        is_measured: whether the times of layers are measured, and not predicted.
    """

    algorithm: str
    is_measured: bool


@dataclass(frozen=True, slots=True)
class Job:
    """What is compiled.

    Args:
        backend: where.
        shapes: of inputs, as `compile` takes them; None where they are not given.
        precision: of the model.
        pipeline: how the stages run.
        inference: whether it is evaluated without gradients.
    """

    backend: Backend
    shapes: Mapping[str, object] | None
    precision: Precision
    pipeline: PipelineOptions
    inference: bool

    def require_shapes(self, option: str) -> None:
        """Raise an OptionError if sizes of inputs are not given, which an option needs."""
        if self.shapes is None:
            raise OptionError(
                f"{option} has to know how long layers take, and therefore the sizes of inputs; "
                f"give shapes= to compile()"
            )

    @property
    def axis(self) -> str:
        """The mesh axis that stages go along; empty where there is none."""
        mesh = self.backend.mesh
        if self.pipeline.axis is not None:
            mesh.require(self.pipeline.axis)
            return self.pipeline.axis
        named = [axis.name for axis in mesh.axes if axis.name in PIPELINE_AXES and axis.size > 1]
        return named[-1] if named else ""


def read_balancing(
    given: bool | None, algorithm: str | None, measured: bool | None
) -> Balancing | None:
    """Return what `load_balancing=` and the options beside it mean; None for nothing.

    Raises:
        OptionError: there is no such algorithm, or an option has no effect without another.
    """
    is_on = given is not None and check_flag(OPTION, given)
    beside = {"load_balancing_algorithm": algorithm, "profiling_based_partitioning": measured}
    for option, value in beside.items():
        if not is_on and value not in (None, False):
            raise OptionError(
                f"{option}={value!r} has no effect without {OPTION}=True; give that, too, or leave "
                f"it out"
            )
    chosen = ALGORITHMS[0] if algorithm is None else algorithm
    check_choice("load_balancing_algorithm", chosen, ALGORITHMS)
    is_measured = measured is not None and check_flag("profiling_based_partitioning", measured)
    return Balancing(chosen, is_measured) if is_on else None


def balance_stages(
    model: Composition | Layer, balancing: Balancing, job: Job
) -> tuple[Composition | Layer, tuple[str, ...]]:
    """Return the model with its layers in stages, and a note that says how, or why it has none.

    Args:
        model: its snapshot.
        balancing: how.
        job: what is compiled.

    Raises:
        OptionError: sizes of inputs are missing.
        PlanError: there are fewer layers than stages.
        BackendError: times of layers shall be measured where that cannot be.
    """
    axis = job.axis
    reason = find_reason(model, axis)
    if reason:
        return model, (f"{OPTION}=True changes nothing: {reason}",)
    assert isinstance(model, Composition)  # find_reason names lone layers
    job.require_shapes(f"{OPTION}=True")
    stages = job.backend.mesh.sizes[axis]
    costs = price_layers(model, balancing, job)
    units = list_units(model, costs, stages)
    cut = (cut_greedily if balancing.algorithm == "greedy" else cut_optimally)(units, stages)
    return set_stages(model, cut.places), (_describe(cut, balancing),)


def price_layers(model: Composition, balancing: Balancing, job: Job) -> LayerCosts:
    """Return what layers cost: seconds measured on the backend, or predicted."""
    settings = Settings(
        inference=job.inference, plan=PlanOptions(precision=job.precision), out_shardings={}
    )
    if balancing.is_measured:
        if process_count() > 1:
            raise BackendError(
                f"profiling_based_partitioning=True measures layers in each of {process_count()} "
                f"processes, which could cut the model differently; measure in one process and "
                f"keep the stages: partition_strategy=, or model.stage"
            )
        compiled = CompiledModel(model, job.backend, settings)
        plan = compiled.plan_for(job.shapes or {}, gradients=not job.inference)
        return LayerCosts(Trial.of(compiled, plan).time_layers(), _parameter_bytes(plan))
    known = replace(job.backend.hardware, unknown_platform="")  # only shares of time count
    planned = Backend(PlannedEngine(job.backend.mesh), hardware=known)
    compiled = CompiledModel(model, planned, settings)
    plan = compiled.plan_for(job.shapes or {}, gradients=not job.inference)
    return LayerCosts(dict(plan.timeline().layers), _parameter_bytes(plan))


def _parameter_bytes(plan: Plan) -> dict[str, float]:
    return {
        port.name: float(port.type.nbytes) for port in plan.inputs if port.name in plan.parameters
    }


def find_reason(model: Composition | Layer, axis: str) -> str:
    """Return why layers are not put into stages; empty if they are."""
    if not isinstance(model, Composition):
        return "the model is one layer, of which every device computes an equal part"
    spec = placement_spec_of(model)
    if spec.is_placed:
        return "the model says itself where its layers run"
    if not axis:
        return "the mesh has no axis 'pipeline', and every device computes a part of each layer"
    return ""


def _describe(cut: Cut, balancing: Balancing) -> str:
    seconds = cut.seconds
    how = "measured" if balancing.is_measured else "predicted"
    mean = sum(seconds) / len(seconds)
    over = 100 * (max(seconds) / mean - 1) if mean else 0.0
    return (
        f"{OPTION}=True: {len(cut.units)} layers in {len(seconds)} stages ({balancing.algorithm}); "
        f"{how} {', '.join(map(format_seconds, seconds))}, the slowest {over:.0f} % above the mean"
    )


__all__ = [
    "Balancing", "Job", "balance_stages", "find_reason", "price_layers", "read_balancing",
]  # fmt: skip
