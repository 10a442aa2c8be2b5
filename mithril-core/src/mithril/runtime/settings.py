"""Settings of a compiled model: what `ml.compile` was told besides model and backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from mithril.compiler import PlanOptions, check_schedule
from mithril.errors import GraphError, MeshError, OptionError, ShardingError, listing, nearest
from mithril.mesh import Mesh, PartitionSpec, Sharding, check_spec_mesh, read_spec
from mithril.mesh.cuts import refine_for
from mithril.models import Layer
from mithril.models.annotations import Annotation
from mithril.models.composition import Composition
from mithril.models.placement import placement_spec_of
from mithril.options import PipelineOptions, check_schedule_form
from mithril.plan.search import SearchResult
from mithril.runtime.input_shardings import Specs, check_agreement, read_shape_shardings
from mithril.runtime.memory_planning import DYNAMIC
from mithril.runtime.patterns import match_patterns, read_patterns
from mithril.runtime.strategy import Strategy
from mithril.runtime.zero import NOTHING, Resting, Zero
from mithril.sharding import LATENCY
from mithril.transform import cotangent_name
from mithril.types import to_python

Shardings = PartitionSpec | Sharding | Mapping[str, PartitionSpec | Sharding] | None
Choice = int | str | Sequence[int | str]
"""Arguments chosen by position, name, or pattern."""
OF_SEARCHES = "in_shardings or partition_constraints['shardings']"
"""What says how inputs lie of a model whose other shardings are searched for."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a model is planned.

    Args:
        inference: whether dropout and its like do nothing.
        plan: the options of planning.
        out_shardings: how outputs must leave, by name.
        in_shardings: how inputs shall lie, by name; arrays that lie otherwise are moved there.
        shape_shardings: how inputs lie by `shapes=`, by name; arrays that were placed otherwise
            stay where they are.
        at_rest: how parameters are kept between uses, by name.
        donated: names of the inputs of a plan that are given up.
        differentiable: inputs whose gradients are given besides those of the parameters.
        pipeline: how the stages of a pipeline run.
        zero: what is split further than it is computed.
        memory_planning: `greedy` or `dynamic`: where results lie; see `choose_engine`.
        accumulate: how many micro-batches a batch is cut into, without stages.
        lays_axes: whether the axes of the mesh are laid on the network as the first plan sends
            least; they lie as the mesh says once that is done.
        notes: facts for readers of the plans.
        searched: what a search for stages has found.
        annotations: how parameters are computed with besides what the model says, by name: as a
            strategy has it, and what is fixed for a search.
        strategy: what the model must have the shapes of, if it is compiled with a strategy.
        partition_hooks: whether layers stand in ranges of the framework's profiler.
    """

    inference: bool
    plan: PlanOptions
    out_shardings: Mapping[str, PartitionSpec]
    in_shardings: Mapping[str, PartitionSpec] = field(default_factory=dict)
    shape_shardings: Mapping[str, PartitionSpec] = field(default_factory=dict)
    at_rest: Mapping[str, Annotation] = field(default_factory=dict)
    donated: frozenset[str] = frozenset()
    differentiable: tuple[str, ...] = ()
    partition_hooks: bool = False
    pipeline: PipelineOptions = field(default_factory=PipelineOptions)
    accumulate: int = 1
    zero: Zero = NOTHING
    memory_planning: str = DYNAMIC
    lays_axes: bool = False
    notes: tuple[str, ...] = ()
    searched: SearchResult | None = None
    annotations: Mapping[str, Annotation] = field(default_factory=dict)
    strategy: Strategy | None = None

    @property
    def decides_with_gradients(self) -> bool | None:
        """Whether parameters lie as outputs and gradients want it, or as outputs alone do.

        None, without a search: as what is evaluated first does.
        """
        search = self.plan.search
        return None if search is None else not (self.inference or search.objective == LATENCY)

    def resting(self, said: Resting) -> Settings:
        """Return the same settings, with what ZeRO says of how parameters lie."""
        return replace(
            self,
            at_rest={**self.at_rest, **said.at_rest},
            annotations={**self.annotations, **said.annotations},
        )

    def without_axis(self, axis: str) -> Settings:
        """Return the settings of a model that one part of a mesh axis runs.

        No more is said of inputs that are split over the axis, and no search splits over it.
        """
        return replace(
            self,
            in_shardings=_leave_out_split(self.in_shardings, axis),
            shape_shardings=_leave_out_split(self.shape_shardings, axis),
            plan=self.plan.without_axis(axis),
        )

    def with_shapes(self, shapes: object, *, moves_placed: bool = False) -> Settings:
        """Return the same settings, with what `shapes=` say of how inputs lie.

        Args:
            shapes: for each input a shape, an array, or a `TensorSpec`.
            moves_placed: whether arrays that were placed otherwise are moved, too.

        Raises:
            OptionError: another option says something else of an input.
        """
        specs = read_shape_shardings(shapes)
        by_strategy = {} if self.strategy is None else self.strategy.in_shardings
        others = "in_shardings" if self.plan.search is None else OF_SEARCHES
        check_agreement(
            {"shapes": specs, "partition_strategy": by_strategy, others: self.in_shardings}
        )
        if moves_placed:
            return replace(self, in_shardings={**specs, **self.in_shardings})
        return replace(self, shape_shardings=specs)


def _leave_out_split(specs: Specs, axis: str) -> dict[str, PartitionSpec]:
    """Return the specs that do not split anything over a mesh axis."""
    return {
        name: spec
        for name, spec in specs.items()
        if not any(axis in spec.axes(dimension) for dimension in range(len(spec)))
    }


def read_pipeline(
    options: PipelineOptions | None, schedule: str | Sequence[str] | None
) -> PipelineOptions:
    """Return the options that `pipeline=` and `pipeline_schedule=` mean.

    Raises:
        OptionError: both say a schedule, or one of them is something else.
        PlanError: there is no such schedule.
    """
    found = PipelineOptions() if options is None else options
    if not isinstance(found, PipelineOptions):
        raise OptionError(
            f"pipeline={options!r} is no PipelineOptions; write "
            f'ml.PipelineOptions(schedule="1f1b", microbatch_size=4)'
        )
    if schedule is not None:
        if found.schedule is not None:
            raise OptionError(
                f"pipeline_schedule={schedule!r} is given together with pipeline={found!r}, which "
                f"says a schedule, too; give one form"
            )
        found = replace(found, schedule=check_schedule_form("pipeline_schedule", schedule))
    check_schedule(found)
    return found


def check_stages_for(model: Composition | Layer, options: PipelineOptions, given: str) -> None:
    """Raise where options of a pipeline would have no effect.

    Args:
        model: what is compiled.
        options: all of them.
        given: the argument that they were given by, for messages.

    Raises:
        OptionError: the model has no stages, or a schedule has nothing to order.
    """
    if options == PipelineOptions():
        return
    pipeline = placement_spec_of(model).pipeline
    if pipeline is None:
        raise OptionError(
            f"{given} has no effect on a model without stages; use Pipeline or model.stage, or "
            f"leave it out"
        )
    if options.microbatch_size or pipeline.microbatch_size:
        return
    for option in ("schedule", "batch", "most_held"):
        if value := getattr(options, option):
            raise OptionError(
                f"pipeline option {option}={value!r} has no effect without micro-batches; give "
                f"microbatch_size, too, or leave it out"
            )


def check_accumulate(model: Composition | Layer, count: int) -> None:
    """Raise where a model cannot run on one micro-batch after another.

    Args:
        model: what is compiled.
        count: number of micro-batches.

    Raises:
        OptionError: it has stages, or placed layers.
    """
    if count > 1 and placement_spec_of(model).is_placed:
        raise OptionError(
            f"accumulate={count} is given for a model with stages or placed layers; a pipeline "
            f"accumulates over its micro-batches: say PipelineOptions(microbatch_size=…)"
        )


def read_limit(limit: object) -> int | None:
    """Return the limit that `max_reshard_bytes=` means.

    Raises:
        OptionError: it is no integer of 0 or more.
    """
    limit = to_python(limit)
    if limit is None:
        return None
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise OptionError(
            f"max_reshard_bytes={limit!r} is no number of bytes; give an integer of 0 or more"
        )
    return limit


def read_differentiable(given: object, inputs: Sequence[str]) -> tuple[str, ...]:
    """Return the inputs that `differentiable=` names.

    Raises:
        OptionError: it is no sequence of names.
        GraphError: it names something that is no input.
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise OptionError(
            f"differentiable={given!r} is no list of inputs; give their names, such as "
            f'differentiable=["input"]'
        )
    for name in given:
        if name not in inputs:
            raise GraphError(
                f"differentiable names '{name}', which is no input{nearest(str(name), inputs)}; "
                f"inputs: {listing(inputs)}"
            )
    return tuple(given)


def read_shardings(
    given: Shardings, names: Sequence[str], mesh: Mesh, option: str, what: str
) -> dict[str, PartitionSpec]:
    """Return the spec that an option means for each input or output it speaks of.

    Args:
        given: one spec or sharding for all, or such by name; None for an input says nothing of it.
        names: of all inputs or outputs.
        mesh: of the backend.
        option: its name, for messages.
        what: `input` or `output`.

    Raises:
        ShardingError: it is no spec, nor a mapping of specs.
        GraphError: it names something that does not exist.
        MeshError: the mesh lacks an axis, or a sharding is of another one.
    """
    if given is None:
        return {}
    lone = read_spec(given)
    found = given if lone is None else dict.fromkeys(names, lone)
    if not isinstance(found, Mapping):
        raise ShardingError(
            f"{option}={given!r} is no partition spec; give P(…), or a mapping from {what} names "
            f"to such specs"
        )
    specs: dict[str, PartitionSpec] = {}
    for name, value in found.items():
        if name not in names:
            raise GraphError(
                f"{option} names '{name}', which is no {what}{nearest(name, names)}; {what}s: "
                f"{listing(names)}"
            )
        if value is None and what == "input":
            continue
        spec = read_spec(value)
        if spec is None:
            raise ShardingError(f"{option} of '{name}' is {value!r}; give a spec, such as P()")
        check_spec_mesh(spec, mesh, f"{what} '{name}'")
        try:
            refine_for(mesh, spec, f"{what} '{name}'")
        except MeshError as error:
            raise MeshError(f"{option} {error}") from None
        specs[name] = spec
    return specs


def read_at_rest(given: Shardings, parameters: Sequence[str], mesh: Mesh) -> dict[str, Annotation]:
    """Return how parameters are kept between uses by `at_rest=`.

    Args:
        given: one spec or sharding for all but scalars, or such by pattern.
        parameters: names of the parameters.
        mesh: of the backend.

    Raises:
        ShardingError: it gives no specs, or a pattern matches no parameter.
        MeshError: a sharding is of another mesh.
    """
    option = "at_rest of compile()"
    patterns = read_patterns(given, option, mesh)
    found = match_patterns(patterns, [(name,) for name in parameters], option)
    named = zip(parameters, found, strict=True)
    return {
        name: Annotation(match.spec, place=" of compile()", least_rank=match.least_rank)
        for name, match in named
        if match is not None
    }


def read_donated(
    given: Choice, inputs: Sequence[str], parameters: Sequence[str], outputs: Sequence[str]
) -> frozenset[str]:
    """Return the names of what `donate=` gives up in a plan.

    Args:
        given: positions and names of arguments of `evaluate`, and patterns of names in them.
        inputs: names of the inputs.
        parameters: names of the parameters.
        outputs: names of the outputs.

    Raises:
        OptionError: there is nothing of that name.
    """
    several = [given] if isinstance(given, int | str) else given
    arguments = {
        "params": parameters,
        "inputs": inputs,
        "output_gradients": [cotangent_name(name) for name in outputs],
    }
    if not isinstance(several, Sequence):
        raise OptionError(
            f"donate={given!r} chooses no arguments; give names, such as donate=('params',)"
        )
    found: set[str] = set()
    for item in several:
        name = list(arguments)[item] if type(item) is int and 0 <= item < 3 else item
        names = [*inputs, *parameters]
        hits = arguments.get(str(name)) or [n for n in names if fnmatchcase(n, str(name))]
        if not hits:
            raise OptionError(
                f"donate={item!r} is no argument of evaluate() and matches no input or parameter"
                f"{nearest(str(item), [*arguments, *names])}; arguments: {listing(arguments)}, by "
                f"name or by position from 0; names: {listing(names)}"
            )
        found.update(hits)
    return frozenset(found)
