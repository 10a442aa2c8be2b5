"""Settings of a compiled model: what `ml.compile` was told besides model and backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mithril.compiler import check_schedule
from mithril.engine import Engine
from mithril.errors import GraphError, MeshError, OptionError, ShardingError, listing, nearest
from mithril.mesh import Mesh, PartitionSpec
from mithril.models import Layer
from mithril.models.composition import Composition
from mithril.models.placement import placement_spec_of
from mithril.options import PipelineOptions, Precision, check_schedule_form

OutShardings = PartitionSpec | Mapping[str, PartitionSpec] | None


@dataclass(frozen=True, slots=True)
class Settings:
    """How a model is planned.

    Args:
        inference: whether dropout and its like do nothing.
        uneven: `pad` or `error`: whether a dimension may be split that does not divide.
        precision: the dtypes it keeps parameters in, multiplies in, and passes values on in.
        out_shardings: how outputs must leave, by name.
        differentiable: inputs whose gradients are given besides those of the parameters.
        max_reshard_bytes: the largest hidden move a plan may have, None for any.
        pipeline: how the stages of a pipeline run.
        partition_hooks: whether layers stand in ranges of the framework's profiler.
    """

    inference: bool
    uneven: str
    precision: Precision
    out_shardings: Mapping[str, PartitionSpec]
    differentiable: tuple[str, ...] = ()
    max_reshard_bytes: int | None = None
    partition_hooks: bool = False
    pipeline: PipelineOptions = field(default_factory=PipelineOptions)


def engine_with(settings: Settings, engine: Engine) -> Engine:
    """Return the engine that runs what is compiled with some settings.

    Args:
        settings: of a compiled model.
        engine: of its backend.

    Raises:
        OptionError: it has no such ranges.
    """
    if not settings.partition_hooks:
        return engine
    return engine.with_ranges()


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


def read_limit(limit: object) -> int | None:
    """Return the limit that `max_reshard_bytes=` means.

    Raises:
        OptionError: it is no integer of 0 or more.
    """
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


def read_out_shardings(
    given: OutShardings, names: Sequence[str], mesh: Mesh
) -> dict[str, PartitionSpec]:
    """Return the spec that `out_shardings=` means for each output it speaks of.

    Raises:
        ShardingError: it is no spec, nor a mapping of specs.
        GraphError: it names something that is no output.
        MeshError: the mesh lacks an axis.
    """
    if given is None:
        return {}
    found = dict.fromkeys(names, given) if isinstance(given, PartitionSpec) else given
    if not isinstance(found, Mapping):
        raise ShardingError(
            f"out_shardings={given!r} is no partition spec; give P(…), or a mapping from output "
            f"names to such specs"
        )
    for name, spec in found.items():
        if name not in names:
            raise GraphError(
                f"out_shardings names '{name}', which is no output{nearest(name, names)}; outputs: "
                f"{listing(names)}"
            )
        if not isinstance(spec, PartitionSpec):
            raise ShardingError(f"out_shardings of '{name}' is {spec!r}; give a spec, such as P()")
        for dimension in range(len(spec)):
            for axis in spec.axes(dimension):
                if axis not in mesh.sizes:
                    raise MeshError(
                        f"out_shardings {spec!r} of output '{name}' does not fit; "
                        f"{mesh.lacking(axis)}"
                    )
    return dict(found)
