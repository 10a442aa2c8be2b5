"""Programs of a model for frameworks that run them by themselves, and keep what they pass.

Such a program gives nothing up: what the framework holds is not Mithril's. Its inputs may be
differentiated otherwise than those of evaluations, so that it is planned by a planner of its own,
which shares the decision of how parameters lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mithril.mesh import Sharding
from mithril.models import Layer
from mithril.models.composition import Composition
from mithril.runtime.array import Kind
from mithril.runtime.bound_model import BoundModel
from mithril.runtime.planner import Planner
from mithril.runtime.settings import Settings
from mithril.types import TensorType

Placed = tuple[TensorType, Sharding]


class PurePrograms:
    """The programs of one model.

    Args:
        model: its snapshot.
        settings: how evaluations of it are planned.
        planner: of these.
    """

    def __init__(self, model: Composition | Layer, settings: Settings, planner: Planner) -> None:
        self._model, self._settings, self._planner = model, settings, planner
        self._planners: dict[tuple[tuple[str, ...], bool], Planner] = {}
        if not settings.donated:
            self._planners[settings.differentiable, settings.inference] = planner

    def bind(
        self,
        inputs: Mapping[str, Kind],
        gradients: bool,
        differentiable: Sequence[str] | None,
        inference: bool,
        parameters: Mapping[str, Placed],
        cotangents: Mapping[str, Placed],
    ) -> BoundModel:
        """Return a program; see `CompiledModel.program_for`.

        Args:
            inputs: kinds by name, in the order of the model.
            gradients: whether output gradients go in and gradients come out.
            differentiable: the inputs that gradients come out of; None for all of floats.
            inference: whether dropout and its like do nothing.
            parameters: type and sharding of the parameters whose sharding is settled.
            cotangents: the same of gradients of outputs, by output.
        """
        if differentiable is None:
            differentiable = [name for name, kind in inputs.items() if kind.type.dtype.is_float]
        planner = self._find_planner(tuple(differentiable), inference)
        floats = planner.float_outputs([kind.type for kind in inputs.values()])
        seeded = tuple(floats) if gradients else None
        lying = [self._find_kind(parameters, name) for name in planner.parameters]
        arriving = [self._find_kind(cotangents, name) for name in seeded or ()]
        return BoundModel(planner.bind(seeded, [*inputs.values(), *lying, *arriving]))

    def _find_kind(self, given: Mapping[str, Placed], name: str) -> Kind:
        backend = self._planner.backend
        if name not in given:
            return Kind.open(backend)
        return Kind(backend, *given[name], backend.mesh.size > 1)

    def _find_planner(self, differentiable: tuple[str, ...], inference: bool) -> Planner:
        settings = replace(
            self._settings,
            differentiable=differentiable,
            inference=self._settings.inference or inference,
            donated=frozenset(),
        )
        key = settings.differentiable, settings.inference
        if key not in self._planners:
            self._planners[key] = self._planner.planning_as(settings)
        return self._planners[key]
