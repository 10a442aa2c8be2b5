"""Configurations: the outer choices of a strategy, before anything is planned.

Which mesh axis splits what, stages and micro-batches, ZeRO's stage, what is computed again. How
each tensor is split on such a mesh is another question (`recipes`). What a step costs has the same
figures whether it is estimated (`bound`) or planned (`price`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a mesh axis splits."""

    data = "data"
    tensor = "tensor"
    pipeline = "pipeline"
    context = "context"
    nothing = "nothing"


@dataclass(frozen=True, slots=True)
class AxisRole:
    """A mesh axis, and what it splits.

    Args:
        name: of the axis.
        size: devices along it.
        role: what it splits; `nothing` if it holds copies.
    """

    name: str
    size: int
    role: Role


@dataclass(frozen=True, slots=True)
class Config:
    """The outer choices of a strategy.

    Args:
        axes: of the mesh, the slowest first.
        microbatches: into how many the batch of a replica is cut.
        chunks: stages of each device of a pipeline; more than one are interleaved.
        zero: ZeRO's stage, over all axes that split the batch or its sequences.
        checkpointing: what the backward computes again.
        context: what attention does where sequences are split.
        splits_stream: whether what lies between layers is split along the sequence over the axes
            that split weights (Korthikanti et al., 2022).
        has_experts: whether stacks of experts are split over the axis that splits the batch.
        is_searched: whether an exact search splits the tensors, whatever the roles of axes are.
    """

    axes: tuple[AxisRole, ...]
    microbatches: int = 1
    chunks: int = 1
    zero: int = 0
    checkpointing: str | float = "none"
    context: str = ""
    splits_stream: bool = False
    has_experts: bool = False
    is_searched: bool = False

    def size(self, *roles: Role) -> int:
        """Return how many devices share what some roles split."""
        return math.prod(axis.size for axis in self.axes if axis.role in roles)

    def names(self, *roles: Role) -> tuple[str, ...]:
        """Return the axes of some roles that have several devices."""
        return tuple(a.name for a in self.axes if a.role in roles and a.size > 1)

    @property
    def devices(self) -> int:
        """How many there are."""
        return math.prod(axis.size for axis in self.axes)

    @property
    def working(self) -> int:
        """How many of them have a part of the work of their own."""
        if self.is_searched:
            return self.devices
        return self.size(Role.data, Role.tensor, Role.pipeline, Role.context)

    @property
    def stages(self) -> int:
        """Into how many stages the model is cut."""
        depth = self.size(Role.pipeline)
        return depth * self.chunks if depth > 1 else 1

    @property
    def schedule(self) -> str:
        """How the stages run; empty without stages."""
        if self.stages == 1:
            return ""
        return "interleaved" if self.chunks > 1 else "1f1b"

    @property
    def mesh(self) -> Mapping[str, int]:
        """Size of each axis."""
        return {axis.name: axis.size for axis in self.axes}

    @property
    def kind(self) -> str:
        """How it is split, in short."""
        sizes = {a.role: self.size(a.role) for a in self.axes if a.role != Role.nothing}
        parts = [f"{role}={size}" for role, size in sizes.items() if size > 1]
        parts += ["experts"] if self.has_experts else []
        return " × ".join(parts) or "one device"

    @property
    def splits(self) -> str:
        """What is split at all: data, tensor, …."""
        used = {a.role: None for a in sorted(self.axes, key=lambda a: a.role) if a.size > 1}
        parts = [role.value for role in used if role != Role.nothing]
        return " × ".join([*parts, *(["experts"] if self.has_experts else [])]) or "one device"

    @property
    def use(self) -> tuple[object, ...]:
        """What the mesh is used for: over how many devices each role goes, and what is besides."""
        sizes = tuple((role, self.size(role)) for role in Role)
        is_split = self.has_experts, self.splits_stream, self.is_searched
        return sizes, self.stages > 1, self.zero > 0, is_split

    def __str__(self) -> str:
        said = [self.kind]
        said += [f"zero={self.zero}"] if self.zero else []
        said += [f"{self.microbatches} micro-batches"] if self.microbatches > 1 else []
        said += [f"{self.stages} stages, interleaved"] if self.chunks > 1 else []
        said += [f"context_parallel='{self.context}'"] if self.context else []
        said += ["sequences between layers"] if self.splits_stream else []
        said += ["auto_partition"] if self.is_searched else []
        if self.checkpointing != "none":
            said += [f"checkpointing={self.checkpointing!r}"]
        return ", ".join(said)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a step costs, by an estimate or by a plan.

    Args:
        seconds: that it takes.
        memory: bytes on the fullest device.
        bytes: that a device sends.
    """

    seconds: float
    memory: float
    bytes: float

    def cost(self, objective: str) -> float:
        """Return what an objective is about."""
        if objective == "memory_usage":
            return float(self.memory)
        return float(self.bytes) if objective == "communication" else self.seconds


__all__ = ["AxisRole", "Config", "Figures", "Role"]
