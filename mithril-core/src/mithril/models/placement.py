"""What a model says about where its layers run: on a device, or as a stage of a pipeline.

Plain data, said while a model is composed and read when it is planned; nothing here knows a mesh.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from mithril.errors import OptionError, PlanError, listing
from mithril.ir import Source
from mithril.ir.repeat import part_of
from mithril.ir.source import at
from mithril.models.composition import Composition
from mithril.models.layer import Layer
from mithril.models.stages import Pipelined


@dataclass(frozen=True, slots=True)
class PlacementSpec:
    """Where the layers of a model shall run.

    Args:
        devices: flat device index of each layer that is placed on one, by path, and the line.
        stages: stage of each layer or model that is part of a pipeline, by path.
        loops: into how many parts a `Repeat` is cut, by path; its parts are in `stages`.
        pipeline: how the pipeline lies on the mesh, if there is one.
        batch: the value whose leading dimension is the pipeline's batch, by a name of the trace;
            empty for the model's first input.
        split: paths of layers whose parameters are split over the mesh.
    """

    devices: Mapping[str, tuple[int, Source | None]]
    stages: Mapping[str, int]
    loops: Mapping[str, int]
    pipeline: Pipelined | None
    batch: str
    split: frozenset[str]

    @property
    def is_placed(self) -> bool:
        """Whether anything is said."""
        return bool(self.devices or self.stages)


def placement_spec_of(component: Composition | Layer) -> PlacementSpec:
    """Return where the layers of a model shall run.

    Raises:
        PlanError: there are two pipelines, or a layer is placed and also part of a pipeline.
        OptionError: a pattern of `model.stage` matches no layer, or a stage has none.
    """
    walk = _Walk()
    walk.component(component, "")
    return walk.placement_spec()


class _Walk:
    def __init__(self) -> None:
        self._devices: dict[str, tuple[int, Source | None]] = {}
        self._stages: dict[str, int] = {}
        self._pipelines: list[tuple[str, Pipelined]] = []
        self._ruled: list[Source | None] = []
        self._split: set[str] = set()
        self._loops: dict[str, int] = {}
        self._layers: dict[str, Layer] = {}

    def component(self, component: Composition | Layer, path: str) -> None:
        if isinstance(component, Composition):
            self._composition(component, path)
            return
        name = path or component.given_name or component.kind
        self._layers[name] = component
        block = component.config.get("block") if component.kind == "repeat" else None
        if block is not None and placement_spec_of(block).is_placed:
            raise PlanError(
                f"layer '{name}'{at(component.source)} repeats a block with device_id or stages, "
                f"which cannot be somewhere else in every repetition; cut the Repeat itself with "
                f"model.stage('{name}', [0, 1])"
            )
        if component.device_id is not None:
            self._devices[name] = (component.device_id, component.source)
        if component.annotations or component.sharding_options:
            self._split.add(name)

    def _composition(self, composition: Composition, path: str) -> None:
        prefix = f"{path}." if path else ""
        if composition.pipeline is not None:
            self._pipelines.append((path, composition.pipeline))
            for number, member in enumerate(composition.members):
                self._stages[prefix + member.name] = number
        for member in composition.members:
            self.component(member.component, prefix + member.name)
        names = list(_paths(composition, prefix))
        for rule in composition.stage_rules:
            hits = [n for n in names if fnmatchcase(n.removeprefix(prefix), rule.pattern)]
            if not hits:
                shown = listing([n.removeprefix(prefix) for n in names[:8]])
                raise OptionError(
                    f"pattern '{rule.pattern}' of model.stage{at(rule.place)} matches no layer; "
                    f"layers: {shown}"
                )
            self._ruled.append(rule.place)
            for hit in hits:
                self._forget(hit)
                if isinstance(rule.stage, int):
                    self._stages[hit] = rule.stage
                else:
                    self._cut(hit, rule.stage, rule.place)

    def _forget(self, path: str) -> None:
        """Forget what earlier rules say of a layer or model, and of what is inside."""
        for known in (self._stages, self._loops):
            for name in [n for n in known if n == path or n.startswith(f"{path}.")]:
                del known[name]

    def _cut(self, path: str, stages: tuple[int, ...], place: Source | None) -> None:
        """Cut a loop over several stages.

        Raises:
            OptionError: it is no `Repeat`, or its count does not divide.
        """
        layer = self._layers.get(path)
        count = layer.config.get("count") if layer is not None and layer.kind == "repeat" else None
        if layer is None or count is None:
            raise OptionError(
                f"model.stage{at(place)} gives '{path}' the stages {list(stages)}; only a Repeat "
                f"is cut over several: give it one stage"
            )
        if count % len(stages):
            raise OptionError(
                f"model.stage{at(place)} cuts '{path}' into {len(stages)} parts, and it repeats "
                f"{count} times; use a divisor of {count}"
            )
        self._loops[path] = len(stages)
        for part, stage in enumerate(stages):
            self._stages[part_of(path, part)] = stage

    def placement_spec(self) -> PlacementSpec:
        """Return what was found."""
        pipeline, batch = None, ""
        if len(self._pipelines) + bool(self._ruled) > 1:
            raise PlanError(
                f"model has {len(self._pipelines) + bool(self._ruled)} pipelines; give it one, "
                f"with all stages, or say the stages with model.stage alone"
            )
        if self._pipelines:
            ((path, pipeline),) = self._pipelines
            batch = f"{path}.input" if path else "input"
        elif self._ruled:
            (place, *_) = self._ruled
            pipeline = Pipelined(_count(self._stages, place), source=place, is_ruled=True)
        for path, (device, source) in self._devices.items() if pipeline else ():
            raise PlanError(
                f"layer '{path}'{at(source)} is placed on device {device}, and the model is a "
                f"pipeline, which places its stages; remove device_id"
            )
        return PlacementSpec(
            self._devices, self._stages, self._loops, pipeline, batch, frozenset(self._split)
        )


def _count(stages: Mapping[str, int], place: Source | None) -> int:
    count = 1 + max(stages.values())
    for number in range(count):
        if number not in stages.values():
            raise OptionError(
                f"model.stage{at(place)} names {count} stages and gives stage {number} no layer; "
                f"number the stages from 0 without gaps"
            )
    return count


def _paths(composition: Composition, prefix: str) -> Iterator[str]:
    for member in composition.members:
        yield prefix + member.name
        if isinstance(member.component, Composition):
            yield from _paths(member.component, f"{prefix}{member.name}.")
