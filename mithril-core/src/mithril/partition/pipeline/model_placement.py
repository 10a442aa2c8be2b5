"""From what a model and the options say about stages and devices to a placement on a mesh."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from mithril.cost.timeline import simulate
from mithril.errors import MeshError, PlanError
from mithril.ir.source import at
from mithril.mesh import Mesh
from mithril.models.placement import PlacementSpec
from mithril.models.stages import Pipelined
from mithril.options import PipelineOptions
from mithril.partition.pipeline import Part, Placement
from mithril.partition.schedule import check, make, read_file
from mithril.partition.schedule.known import check_name
from mithril.plan.schedule import Schedule, Work, read_table

PIPELINE_AXES = ("pipeline", "stage")
"""Names of mesh axes that a pipeline goes along by itself."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch a pipeline cuts.

    Args:
        name: of the value whose leading dimension it is.
        size: samples.
        split: mesh axes it arrives split over.
    """

    name: str
    size: int
    split: tuple[str, ...] = ()


def check_schedule(options: PipelineOptions) -> None:
    """Raise unless the schedule exists, or its table can be read; needs no model.

    Raises:
        PlanError: there is no such schedule, or something else is in the table.
        OptionError: the file cannot be read.
    """
    if _table(options) is None and isinstance(options.schedule, str):
        check_name(options.schedule)


def placement_of(
    placement_spec: PlacementSpec,
    mesh: Mesh,
    options: PipelineOptions,
    batch: Batch,
    *,
    gradients: bool,
    pads: bool,
) -> Placement:
    """Return what runs where on a mesh, and when.

    Args:
        placement_spec: what the model says.
        mesh: the devices of the backend.
        options: how a pipeline runs.
        batch: what it cuts.
        gradients: whether backwards run, too.
        pads: whether the last micro-batch may be smaller.

    Raises:
        MeshError: a device or mesh dimension does not exist.
        PlanError: stages and devices do not fit, or micro-batches and batch, or the schedule is
            not a legal one.
    """
    if placement_spec.pipeline is None:
        return _on_devices(placement_spec, mesh)
    return _as_stages(
        placement_spec, placement_spec.pipeline, mesh, options, batch, gradients, pads
    )


def accumulate_over(mesh: Mesh, count: int, batch: Batch, *, gradients: bool) -> Placement:
    """Return the placement of a model that runs whole on a mesh, on one micro-batch after another.

    Args:
        mesh: the devices of the backend.
        count: number of micro-batches.
        batch: what is cut.
        gradients: whether backwards run, too.

    Raises:
        PlanError: the batch does not divide.
    """
    replicas = mesh.product(batch.split)
    if not batch.size or batch.size % (count * replicas):
        raise PlanError(
            f"accumulate={count} cuts a batch{_each(batch, replicas)}, which does not divide into "
            f"{count} micro-batches; use a batch that is a multiple of {count * replicas}"
        )
    schedule = make("1f1b", 1, count)  # the backward of each follows its forward at once
    parts = (Part("main", mesh, 0),)
    return Placement(
        parts, {}, 0, frozenset(), count, batch.name, batch.split,
        schedule if gradients else forwards(schedule),
    )  # fmt: skip


def _on_devices(placement_spec: PlacementSpec, mesh: Mesh) -> Placement:
    used = sorted({device for device, _ in placement_spec.devices.values()})
    for path, (device, source) in placement_spec.devices.items():
        if device >= mesh.size:
            raise MeshError(
                f"layer '{path}'{at(source)} is placed on device {device}; {mesh!r} has devices 0 "
                f"to {mesh.size - 1}; use one of them"
            )
    parts = [Part(f"device {device}", mesh.part(mesh.coordinates(device))) for device in used]
    number = {device: i for i, device in enumerate(used)}
    scopes = {path: number[device] for path, (device, _) in placement_spec.devices.items()}
    return Placement(
        (*parts, Part("mesh", mesh)),
        scopes,
        len(parts),
        placement_spec.split - set(placement_spec.devices),
    )


def _as_stages(
    placement_spec: PlacementSpec,
    pipeline: Pipelined,
    mesh: Mesh,
    options: PipelineOptions,
    batch: Batch,
    gradients: bool,
    pads: bool,
) -> Placement:
    axis = _axis(pipeline, mesh, options)
    table = _table(options)
    indices = _indices(pipeline, mesh, axis, table)
    meshes = [mesh.part({axis: index}) for index in indices]
    others = tuple(a.name for a in mesh.axes if a.name != axis and a.size > 1)
    split = _data_axes(pipeline, mesh, others, batch)
    count = _microbatches(pipeline, options, mesh, split, batch, pads)
    if options.schedule == "interleaved":
        size = options.microbatch_size or pipeline.microbatch_size or batch.size
        _check_groups(indices, count, size, mesh.product(split), batch, pads)
    schedule = table or _make_schedule(options, indices, count)
    check(schedule, pipeline.stages, count, options.most_held)
    _check_rows(schedule, indices)
    parts = tuple(Part(f"stage {number}", m, number) for number, m in enumerate(meshes))
    return Placement(
        parts,
        placement_spec.stages,
        0,
        frozenset(),
        count,
        batch.name,
        split,
        schedule if gradients else forwards(schedule),
        axis=axis,
        loops=placement_spec.loops,
    )


# ------------------------------------------------------------------ stages and devices


def _axis(pipeline: Pipelined, mesh: Mesh, options: PipelineOptions) -> str:
    """Return the mesh axis the stages go along."""
    place = at(pipeline.source)
    if pipeline.device_mesh is not None and pipeline.device_mesh != mesh.shape:
        raise MeshError(
            f"pipeline{place} is for device_mesh={pipeline.device_mesh}, and the backend has "
            f"{mesh!r}; give both the same shape"
        )
    if options.axis is not None:
        mesh.require(options.axis)
        return options.axis
    wanted = pipeline.stage_to_mesh_dim
    if pipeline.device_mesh_partition is not None:
        flagged = pipeline.device_mesh_partition.index(True)
        if wanted not in (None, flagged):
            raise MeshError(
                f"pipeline{place} goes along mesh dimension {wanted} by stage_to_mesh_dim and "
                f"{flagged} by device_mesh_partition; give one of them"
            )
        wanted = flagged
    if wanted is not None:
        if not -len(mesh.axes) <= wanted < len(mesh.axes):
            raise MeshError(
                f"pipeline{place} goes along mesh dimension {wanted}; {mesh!r} has "
                f"{len(mesh.axes)} dimensions, counted from 0"
            )
        return mesh.axes[wanted].name
    named = [axis.name for axis in mesh.axes if axis.name in PIPELINE_AXES]
    fitting = [axis.name for axis in mesh.axes if axis.size == pipeline.stages]
    lone = [axis.name for axis in mesh.axes if axis.size > 1]
    for found in (named, fitting, lone if len(lone) == 1 else []):
        if found:
            return found[-1]
    raise _misfit(pipeline, f"{mesh!r} has no axis 'pipeline', and none of that many devices")


def _indices(pipeline: Pipelined, mesh: Mesh, axis: str, table: Schedule | None) -> tuple[int, ...]:
    """Return the index of each stage along the axis."""
    size = mesh.sizes[axis]
    if pipeline.device_assignment is not None:
        for stage, index in enumerate(pipeline.device_assignment):
            if index >= size:
                raise MeshError(
                    f"stage {stage} of the pipeline{at(pipeline.source)} is assigned to index "
                    f"{index} of mesh axis '{axis}', which has {size}; use 0 to {size - 1}"
                )
        return pipeline.device_assignment
    if table is not None and len(table.rows) == size and table.stages == pipeline.stages:
        return tuple(table.devices[stage] for stage in range(pipeline.stages))
    if pipeline.stages % size:
        raise _misfit(pipeline, f"mesh axis '{axis}' has {size} devices")
    return tuple(stage % size for stage in range(pipeline.stages))


def _misfit(pipeline: Pipelined, found: str) -> PlanError:
    plural = "" if pipeline.stages == 1 else "s"
    remedy = "or say device_assignment"
    if pipeline.is_ruled:
        remedy = "giving layers a number each with model.stage"
    return PlanError(
        f"pipeline{at(pipeline.source)} has {pipeline.stages} stage{plural}; {found}; use as many "
        f"stages as devices or a multiple, {remedy}"
    )


def _data_axes(
    pipeline: Pipelined, mesh: Mesh, others: tuple[str, ...], batch: Batch
) -> tuple[str, ...]:
    """Return the axes the batch is split over inside a stage."""
    arrives = tuple(axis for axis in batch.split if axis in others)
    if not pipeline.data_parallel:
        return arrives
    count = mesh.product(others)
    if not others:
        raise PlanError(
            f"pipeline{at(pipeline.source)} has data_parallel=True, and its stages take all of "
            f"{mesh!r}; add a mesh axis for replicas, or leave it out"
        )
    wanted = pipeline.data_parallel_devices
    if wanted is not None and wanted != count:
        raise PlanError(
            f"pipeline{at(pipeline.source)} has data_parallel_devices={wanted}; {mesh!r} leaves "
            f"{count} devices for each stage; give that number, or another mesh"
        )
    return others


# ------------------------------------------------------------------ micro-batches and schedules


def _microbatches(
    pipeline: Pipelined,
    options: PipelineOptions,
    mesh: Mesh,
    split: tuple[str, ...],
    batch: Batch,
    pads: bool,
) -> int:
    size = options.microbatch_size or pipeline.microbatch_size
    if size is None:
        return 1
    replicas = mesh.product(split)
    samples = -(-batch.size // replicas)
    if not samples:
        raise PlanError(
            f"batch '{batch.name}' is empty, and a pipeline has nothing to cut; give samples"
        )
    if size > samples:
        raise PlanError(
            f"micro-batch of {size} samples is larger than the batch{_each(batch, replicas)}; use "
            f"at most {samples}"
        )
    if not _is_legal(size, batch.size, replicas, pads):
        legal = [n for n in range(1, samples + 1) if _is_legal(n, batch.size, replicas, pads)]
        remedy = f"use one of {', '.join(map(str, legal))}"
        if not legal:
            remedy = f"use a batch that is a multiple of {replicas}"
        raise PlanError(
            f"batch{_each(batch, replicas)} does not divide into micro-batches of {size} samples; "
            f'{remedy}, or allow padding with uneven="pad"'
        )
    return -(-samples // size)


def _check_groups(
    indices: Sequence[int], count: int, size: int, replicas: int, batch: Batch, pads: bool
) -> None:
    """Raise if micro-batches do not go round the devices in groups; see `make`.

    Raises:
        PlanError: they do not, and the batch has sizes with which they do.
    """
    devices, samples = len(set(indices)), -(-batch.size // replicas)
    sizes = [
        n
        for n in range(1, samples + 1)
        if -(-samples // n) % devices == 0 and _is_legal(n, batch.size, replicas, pads)
    ]
    if count > 1 and count % devices and sizes:
        near = sorted(sorted(sizes, key=lambda n: abs(n - size))[:3])
        raise PlanError(
            f"schedule 'interleaved' on {devices} devices needs a multiple of {devices} "
            f"micro-batches, not {count}; use a microbatch_size of "
            f"{' or '.join(map(str, near))}"
        )


def _is_legal(size: int, batch: int, replicas: int, pads: bool) -> bool:
    """Return whether micro-batches of a size are even, or may be filled up with padding."""
    return pads or batch % (replicas * size) == 0


def _each(batch: Batch, replicas: int) -> str:
    each = f", {-(-batch.size // replicas)} on each of {replicas} replicas" if replicas > 1 else ""
    return f" of {batch.size}{each}"


def _table(options: PipelineOptions) -> Schedule | None:
    """Return the schedule of a table, None where one is meant by name, or none at all."""
    given = options.schedule
    if isinstance(given, tuple):
        return read_table("table", given)
    return read_file(given) if given is not None and given.endswith(".csv") else None


def _make_schedule(options: PipelineOptions, indices: Sequence[int], count: int) -> Schedule:
    """Return a schedule by name for stages that may share devices."""
    devices = sorted(set(indices))
    in_turn = all(index == devices[i % len(devices)] for i, index in enumerate(indices))
    chunks, rest = divmod(len(indices), len(devices))
    name = options.schedule
    if name is None:
        fits = chunks > 1 and not rest and in_turn and count % len(devices) == 0
        name = "interleaved" if fits else "1f1b"
    assert isinstance(name, str), "a table is read elsewhere"
    if name == "interleaved":
        if rest or not in_turn:
            raise PlanError(
                f"schedule 'interleaved' deals stages out to the devices in turn, each the same "
                f"number; the {len(indices)} stages are on {list(indices)}; use another schedule, "
                f"or leave out device_assignment"
            )
        return make(name, len(devices), count, chunks)
    if "." in name and in_turn and not rest:  # of a plugin, which may know of chunks
        return make(name, len(devices), count, chunks)
    each = make(name, len(indices), count)
    return each if len(devices) == len(indices) else _share_devices(each, indices)


def _share_devices(schedule: Schedule, indices: Sequence[int]) -> Schedule:
    """Return the schedule in which stages of one device take turns, as they would by themselves."""
    starts = simulate(schedule).starts
    rows = []
    for index in sorted(set(indices)):
        row = [action for action in starts if indices[action.stage] == index]
        rows.append(tuple(sorted(row, key=lambda a: (starts[a], a.stage))))
    return Schedule(schedule.name, tuple(rows))


def _check_rows(schedule: Schedule, indices: Sequence[int]) -> None:
    """Raise unless stages of one row, and only those, share a device."""
    for row in schedule.rows:
        for action in row:
            first = row[0].stage
            if indices[action.stage] != indices[first]:
                raise PlanError(
                    f"schedule '{schedule.name}' has {action} in the row of stage {first}; the "
                    f"stages are on devices {indices[action.stage]} and {indices[first]} of the "
                    f"pipeline; write a line for each device"
                )
    firsts = [row[0].stage for row in schedule.rows if row]
    for first, other in itertools.combinations(firsts, 2):
        if indices[first] == indices[other]:
            raise PlanError(
                f"schedule '{schedule.name}' has stages {first} and {other} in two rows, and both "
                f"are on device {indices[first]} of the pipeline; write one line for each device"
            )


def forwards(schedule: Schedule) -> Schedule:
    """Return the forwards of a schedule alone.

    >>> print(forwards(make("1f1b", 2, 2)))
    0F0,0F1
    1F0,1F1
    """
    rows = tuple(tuple(a for a in row if a.work == Work.forward) for row in schedule.rows)
    return Schedule(schedule.name, rows)


__all__ = ["Batch", "accumulate_over", "check_schedule", "forwards", "placement_of"]
