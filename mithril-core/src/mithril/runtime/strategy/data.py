"""What a strategy says, and what it is for: plain data, with the checks that it is for something.

It says what `compile` and `train_step` would otherwise be told by annotations and options: how
parameters and inputs are split, which layers are which stage, micro-batches, ZeRO's stage, and what
the backward computes again. It belongs to one model, which its parameters and inputs tell, and to
one mesh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from mithril.errors import MeshError, OptionError, listing
from mithril.mesh import Mesh, PartitionSpec
from mithril.models.annotations import Annotation
from mithril.options import PipelineOptions
from mithril.types import Shape

if TYPE_CHECKING:
    from mithril.models import Layer
    from mithril.models.composition import Composition

OBJECTIVES = ("throughput", "latency", "memory_usage", "communication")
"""What can be made best: samples a second of training, seconds of a forward, bytes held, sent."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """The best strategy of another kind than the one that was chosen.

    Args:
        kind: how it is split, such as `data=8`, or what it does otherwise, such as `zero=3`.
        cost: of it, in the unit of the objective.
        more: how many times the cost of the chosen one it is, less 1.
        fits: whether devices have memory for it.
        is_planned: whether it was planned; otherwise the cost is an estimate.
    """

    kind: str
    cost: float
    more: float
    fits: bool
    is_planned: bool


@dataclass(frozen=True, slots=True)
class Findings:
    """What a search knew of a strategy: reports, which compiling does not read.

    Args:
        objective: what was made best.
        profile: hardware profile that priced it.
        seconds: predicted, of a step.
        memory: predicted bytes at most on a device.
        bytes: predicted to be sent by a device.
        bound: no strategy of the space takes less, in the unit of the objective.
        measured: seconds of a step as measured; None where no device was there.
        considered: how many configurations there were.
        pruned: of them, those whose bound was above the best.
        planned: of them, those that were planned.
        alternatives: the best of other kinds, the cheapest first.
    """

    objective: str = "throughput"
    profile: str = ""
    seconds: float = 0.0
    memory: int = 0
    bytes: int = 0
    bound: float = 0.0
    measured: float | None = None
    considered: int = 0
    pruned: int = 0
    planned: int = 0
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class StrategyData:
    """The fields of a `Strategy`, which says what they are, and what they are for."""

    mesh: Mapping[str, int]
    parameters: Mapping[str, Shape]
    inputs: Mapping[str, Shape]
    shardings: Mapping[str, PartitionSpec] = field(default_factory=dict)
    in_shardings: Mapping[str, PartitionSpec] = field(default_factory=dict)
    value_shardings: Mapping[str, PartitionSpec] = field(default_factory=dict)
    stages: Mapping[str, int | tuple[int, ...]] = field(default_factory=dict)
    axis: str = ""
    schedule: str = ""
    microbatch_size: int | None = None
    accumulate: int = 1
    zero: int = 0
    zero_axes: tuple[str, ...] = ()
    checkpointing: str | float = "none"
    context_parallel: str = ""
    auto_partition: str = ""
    findings: Findings = field(default_factory=Findings, compare=False)

    def make_mesh(self) -> Mesh:
        """Return the mesh that it is for."""
        return Mesh(dict(self.mesh))

    def without_zero(self) -> Self:
        """Return the same strategy with nothing split between uses."""
        return replace(self, zero=0, zero_axes=())

    @property
    def pipeline(self) -> PipelineOptions | None:
        """How its stages run; None without stages."""
        if not self.axis:
            return None
        return PipelineOptions(
            schedule=self.schedule or None, microbatch_size=self.microbatch_size, axis=self.axis
        )

    def annotate(self) -> dict[str, Annotation]:
        """Return how parameters are split, as models say it."""
        place = " of partition_strategy"
        return {name: Annotation(spec, place=place) for name, spec in self.shardings.items()}

    def check_mesh(self, mesh: Mesh) -> None:
        """Raise unless a mesh is the one that it is for.

        Raises:
            MeshError: it is another one.
        """
        if tuple(mesh.sizes.items()) != tuple(self.mesh.items()):
            raise MeshError(
                f"partition_strategy is for {self.make_mesh()!r}, and the backend has {mesh!r}; "
                f"open a backend on that mesh, or tune for this one"
            )

    def check_model(self, model: Composition | Layer) -> None:
        """Raise unless a model has the parameters and inputs that it is for.

        Raises:
            OptionError: it is another model.
        """
        from mithril.models.trace import input_names, parameter_names

        for what, mine, others in (
            ("parameter", self.parameters, parameter_names(model)),
            ("input", self.inputs, input_names(model)),
        ):
            lacking = [name for name in mine if name not in others]
            new = [name for name in others if name not in mine]
            if lacking or new:
                known = f"has {what} '{lacking[0]}'" if lacking else f"has no {what} '{new[0]}'"
                raise OptionError(
                    f"partition_strategy is for another model, which {known}; tune for this one: "
                    f"its {what}s are {listing(others[:8])}"
                )

    def check_shapes(self, shapes: Mapping[str, Shape]) -> None:
        """Raise unless parameters have the shapes that it is for.

        Args:
            shapes: of the parameters, by name.

        Raises:
            OptionError: one has another shape.
        """
        for name, shape in self.parameters.items():
            if shapes[name] != shape:
                raise OptionError(
                    f"partition_strategy is for another model: parameter '{name}' has shape "
                    f"{shape} there and {shapes[name]} here; tune for this one"
                )


__all__ = ["OBJECTIVES", "Alternative", "Findings", "StrategyData"]
