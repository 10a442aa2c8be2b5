"""What a model says about its stages, as it was said: plain data, part of a model's snapshot."""

from __future__ import annotations

from dataclasses import dataclass

from mithril.ir import Source


@dataclass(frozen=True, slots=True)
class Pipelined:
    """How a pipeline lies on a mesh, as it was said.

    Args:
        stages: how many there are.
        device_assignment: for each stage its index along the mesh axis of the pipeline.
        microbatch_size: samples of a micro-batch, per data-parallel replica.
        data_parallel: whether the batch is split over the other axes of the mesh.
        data_parallel_devices: how many devices that must be.
        device_mesh: the shape of the mesh it is for.
        device_mesh_partition: which of its dimensions it goes along.
        stage_to_mesh_dim: the mesh dimension of the pipeline.
        source: the user's line.
        is_ruled: whether `model.stage` said the stages, and not a `Pipeline`.
    """

    stages: int
    device_assignment: tuple[int, ...] | None = None
    microbatch_size: int | None = None
    data_parallel: bool = False
    data_parallel_devices: int | None = None
    device_mesh: tuple[int, ...] | None = None
    device_mesh_partition: tuple[bool, ...] | None = None
    stage_to_mesh_dim: int | None = None
    source: Source | None = None
    is_ruled: bool = False


@dataclass(frozen=True, slots=True)
class StageRule:
    """`model.stage(pattern, number)`, as said at a place; several numbers are for a loop."""

    pattern: str
    stage: int | tuple[int, ...]
    place: Source | None
