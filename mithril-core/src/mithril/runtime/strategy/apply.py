"""What a strategy says, as options of compile; what is said besides must not contradict it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from glob import escape
from typing import Any

from mithril.errors import OptionError, kind_of
from mithril.mesh import Mesh, PartitionSpec
from mithril.models.annotations import Annotation
from mithril.models.composition import Composition, Member, ShardRule
from mithril.models.layer import Layer
from mithril.models.model import Model
from mithril.models.placement import placement_spec_of
from mithril.models.stages import StageRule
from mithril.models.trace import annotations_of
from mithril.runtime.strategy.strategy import Strategy

OPTION = "partition_strategy"


@dataclass(frozen=True, slots=True)
class Applied:
    """A strategy on a model and a mesh, both of which it is for.

    Args:
        strategy: what is said.
    """

    strategy: Strategy

    def merge(self, option: str, given: Any, said: Any) -> Any:
        """Return the value of an option that the strategy says, or else the user.

        Args:
            option: its name.
            given: what the user says; None for nothing.
            said: what the strategy says; None for nothing.

        Raises:
            OptionError: both say something, and it differs.
        """
        if given is None or said is None or given == said:
            return said if given is None else given
        raise OptionError(
            f"{option}={given!r} contradicts {OPTION}, which says {said!r}; leave it out, or "
            f"change the strategy: dataclasses.replace(strategy, …)"
        )

    def merge_zero(self, stage: object, axes: object) -> tuple[Any, Any]:
        """Return ZeRO's stage and axes, which the strategy says, or else the user.

        Args:
            stage: `zero=` of the user.
            axes: `zero_axis=` of the user.

        Raises:
            OptionError: both say something, and it differs.
        """
        strategy = self.strategy
        if not strategy.zero:
            return stage, axes
        given = (axes,) if isinstance(axes, str) else axes
        named: Any = tuple(given) if isinstance(given, list) else given
        return (
            self.merge("zero", stage, strategy.zero),
            self.merge("zero_axis", named, strategy.zero_axes or None),
        )


def refuse_other(strategy: object) -> Strategy:
    """Return a strategy.

    Raises:
        OptionError: it is something else.
    """
    if not isinstance(strategy, Strategy):
        raise OptionError(
            f"{OPTION}={kind_of(strategy)} is no strategy; give what ml.auto_tune returns, or "
            f"ml.Strategy.load(path)"
        )
    return strategy


def apply_strategy(
    given: object, model: Composition | Layer, mesh: Mesh
) -> tuple[Applied, Composition | Layer]:
    """Return a strategy that is checked, and the model with its stages and its attention.

    Raises:
        OptionError: it is no strategy, is for another model, or contradicts what the model says.
        MeshError: it is for another mesh.
    """
    strategy = refuse_other(given)
    strategy.check_mesh(mesh)
    strategy.check_model(model)
    _check_annotations(strategy, annotations_of(model))
    if strategy.context_parallel:
        model = set_context(model, strategy.context_parallel)
    if strategy.value_shardings:
        model = set_values(model, strategy.value_shardings)
    if strategy.stages:
        model = set_stages(model, strategy.stages)
    return Applied(strategy), model


def _check_annotations(strategy: Strategy, said: Mapping[str, Annotation]) -> None:
    for name, spec in strategy.shardings.items():
        if name not in strategy.parameters:
            raise OptionError(f"{OPTION} splits '{name}', which is no parameter of its model")
        if (annotation := said.get(name)) is not None and annotation.spec != spec:
            raise OptionError(
                f"{OPTION} splits parameter '{name}' as {spec!r}, and the model says "
                f"{annotation}; tune for the model as it is, or remove one of them"
            )


def set_values(model: Composition | Layer, shardings: Mapping[str, PartitionSpec]) -> Composition:
    """Return a model with values between its layers split; what it says of them itself stays.

    Raises:
        OptionError: it is a layer, which has no values between layers.
    """
    if not isinstance(model, Composition):
        raise OptionError(
            f"{OPTION} splits values between layers, and {model.label} is one layer; add it to a "
            f"Model"
        )
    rules = tuple(ShardRule(escape(name), spec, None) for name, spec in shardings.items())
    return replace(model, rules=(*rules, *model.rules))


def set_stages(
    model: Composition | Layer, stages: Mapping[str, int | tuple[int, ...]]
) -> Composition:
    """Return a model with layers put into stages, by path.

    Raises:
        OptionError: it is a layer, or has stages of its own.
    """
    if not isinstance(model, Composition):
        raise OptionError(f"{OPTION} has stages, and {model.label} is one layer; add it to a Model")
    if placement_spec_of(model).is_placed:
        raise OptionError(
            f"{OPTION} has stages, and the model places its layers itself; remove one of them"
        )
    rules = tuple(StageRule(path, stage, None) for path, stage in stages.items())
    return replace(model, stage_rules=(*model.stage_rules, *rules))


def set_context(model: Composition | Layer, how: str) -> Composition | Layer:
    """Return a model whose attention does something else where its sequence comes split.

    Layers that say themselves what they do keep to it. One that is used twice stays one.
    """
    return _ContextSetter(how).visit(model)


class _ContextSetter:
    def __init__(self, how: str) -> None:
        self._how = how
        self._done: dict[int, Composition | Layer] = {}

    def visit(self, component: Composition | Layer) -> Composition | Layer:
        if id(component) not in self._done:
            of_layer = isinstance(component, Layer)
            made = self._layer(component) if of_layer else self._composition(component)  # type: ignore[arg-type]
            self._done[id(component)] = made
        return self._done[id(component)]

    def _composition(self, composition: Composition) -> Composition:
        members = tuple(
            Member(m.name, self.visit(m.component), m.inputs, m.outputs, m.source)
            for m in composition.members
        )
        return replace(composition, members=members)

    def _layer(self, layer: Layer) -> Layer:
        config, block = dict(layer.config), layer.config.get("block")
        if "context_parallel" in config and config["context_parallel"] is None:
            config["context_parallel"] = self._how
        if isinstance(block, Composition | Layer):
            config["block"] = self.visit(block)
        elif isinstance(block, Model):
            config["block"] = self.visit(block.snapshot())
        if config == layer.config:
            return layer
        made = copy.copy(layer)
        made.config = config
        return made


__all__ = ["OPTION", "Applied", "apply_strategy", "set_context", "set_stages", "set_values"]
