"""What a request for a plan of a model says of its tensors: how each lies, and who said so.

A placed array keeps its sharding, which beats an annotation, and a note says so. An unplaced one
goes where the annotation says, where it was decided that the parameter lies, or where the plan
needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mithril.compiler import COMPUTED_WITH
from mithril.mesh import Mesh, PartitionSpec, Sharding, coarsen
from mithril.models.annotations import Annotation, resolve
from mithril.models.trace import Traced
from mithril.runtime.parameter_shardings import ParameterShardings
from mithril.runtime.settings import Settings
from mithril.runtime.zero_experts import count_whole_dimensions
from mithril.sharding import FREE, SEARCHED, SEARCHED_REST, UNSAID, Layout
from mithril.transform import cotangent_name, gradient_of
from mithril.types import TensorType

Placed = tuple[TensorType, Sharding | None]
"""What an argument is, and how it lies; None for as the plan needs it."""
Arguments = tuple[tuple[str, Placed], ...]
PASSED_IN = "the array that was passed in"
AT_REST = "at_rest"


@dataclass(frozen=True, slots=True, eq=False)
class ModelLayouts:
    """Says how the tensors of a traced model lie.

    Args:
        mesh: of the backend.
        settings: how the model is compiled.
        shardings: where parameters lie that nobody has placed otherwise.
        traced: the model.
    """

    mesh: Mesh
    settings: Settings
    shardings: ParameterShardings[Any]
    traced: Traced

    def of(
        self, inputs: Arguments, parameters: Arguments, gradients: Arguments
    ) -> dict[str, Layout]:
        """Return what is said of the tensors of a plan, by name.

        Args:
            inputs: of the model.
            parameters: of the model.
            gradients: of outputs, by output.

        Raises:
            MeshError: an annotation does not fit the mesh.
            ShardingError: a dimension does not divide, and padding is refused.
        """
        layouts = {name: self._input(name, *placed) for name, placed in inputs}
        for name, (_, sharding) in parameters:
            layouts[name] = self._parameter(name, sharding)
        layouts |= self._split_by_zero(parameters)
        for name, spec in self.settings.out_shardings.items():
            leaves = self._sharding(spec, self.traced.graph.outputs[name].type, f"output '{name}'")
            layouts[name] = replace(layouts.get(name, UNSAID), leaves=leaves)
        for name, home in self._homes().items():
            layouts[name] = replace(layouts.get(name, UNSAID), home=home)
        for name, (_, sharding) in gradients:
            layouts[cotangent_name(name)] = Layout(arrives=FREE if sharding is None else sharding)
        return layouts

    def of_gradients(
        self, said: Mapping[str, Layout], differentiated: Sequence[str]
    ) -> dict[str, Layout]:
        """Return how gradients leave that leave otherwise than their parameters lie.

        Args:
            said: how everything else lies, by name.
            differentiated: names of what gradients are of.
        """
        zero, found = self.settings.zero, {}
        if zero.stage != 2 or self.mesh.size == 1:
            return {}
        whole = count_whole_dimensions(self.traced)
        for name in differentiated:
            layout, type = said[name], self.traced.graph.input(name).type
            _, home = zero.find_home(layout, type, self.mesh, whole.get(name, 0))
            found[gradient_of(name)] = Layout(leaves=home, rests=home, decided_by="zero=2")
        return found

    def overrides(self, parameters: Arguments) -> Iterator[str]:
        """Yield a note for each parameter that is placed otherwise than its annotation says."""
        for name, (type, sharding) in parameters if self.mesh.size > 1 else ():
            annotation = self.traced.at_rest.get(name) or self.traced.annotations.get(name)
            if sharding is None or annotation is None:
                continue
            wanted = self._resolve_annotation(annotation, type, name, "parameter")
            if sharding != wanted and self._find_decider(name, type, sharding) == PASSED_IN:
                which = f"{AT_REST} " if name in self.traced.at_rest else "the annotation "
                yield (
                    f"parameter '{name}' was placed as {sharding.describe()} and stays so, against "
                    f"{which}{annotation}{annotation.place}"
                )

    def _input(self, name: str, type: TensorType, sharding: Sharding | None) -> Layout:
        if sharding is None:
            return Layout(FREE)
        return Layout(self._check(sharding, type, f"input '{name}'"), decided_by=PASSED_IN)

    def _parameter(self, name: str, sharding: Sharding | None) -> Layout:
        """Return the layout of a parameter: an array keeps its sharding, else annotations count."""
        if self.mesh.size > 1 and (resting := self._resting(name, sharding)):
            return resting
        if sharding is not None:
            type = self.traced.graph.input(name).type
            arrives = self._check(sharding, type, f"parameter '{name}'")
            who = self._find_decider(name, type, sharding)
            # A sharding that an earlier plan chose is one candidate, another one a wish.
            computed = None if who in (COMPUTED_WITH, SEARCHED) else arrives
            if who == SEARCHED_REST:
                return Layout(arrives, rests=arrives, decided_by=who)
            return Layout(arrives, computed, decided_by=who)
        computed = self._find_compute_sharding(name)
        if computed is None and self.settings.zero.stage == 2:  # only gradients are split
            return Layout(Sharding.replicated(self.mesh, self.traced.graph.input(name).type.rank))
        if computed is None:
            return Layout(FREE)
        annotation = self.traced.annotations[name]
        return Layout(
            computed=computed, decided_by=f"the annotation {annotation}{annotation.place}"
        )

    def _resting(self, name: str, sharding: Sharding | None) -> Layout | None:
        """Return the layout of a parameter kept at rest; an array that lies otherwise stays so."""
        annotation = self.traced.at_rest.get(name)
        type = self.traced.graph.input(name).type
        if annotation is None:
            return None
        resting = self._resolve_annotation(annotation, type, name, "parameter")
        who = "" if sharding is None else self._find_decider(name, type, sharding)
        if sharding not in (None, resting) and not who.startswith(AT_REST):
            return None
        return Layout(
            sharding,
            self._find_compute_sharding(name),
            rests=sharding or resting,
            decided_by=f"{AT_REST} {annotation}{annotation.place}",
        )

    def _split_by_zero(self, parameters: Arguments) -> dict[str, Layout]:
        """Return the layouts of parameters that rest split as ZeRO's stage 3 has it."""
        zero = self.settings.zero
        if zero.stage < 3 or self.mesh.size == 1:
            return {}
        whole, given = count_whole_dimensions(self.traced), dict[str, Sharding | None]()
        computed, homes = dict[str, Sharding](), dict[str, Sharding]()
        for name, (type, sharding) in parameters:
            said = Layout(computed=self._find_compute_sharding(name))
            used, home = zero.find_home(said, type, self.mesh, whole.get(name, 0))
            if name not in self.traced.at_rest and home != used and sharding in (None, home):
                given[name], computed[name], homes[name] = sharding, used, home
        who, fixed = f"zero={zero.stage}", zero.fix_experts(self.traced, computed, homes)
        return {
            name: Layout(given[name], home, decided_by=f"{who}: {fixed[name]}") if name in fixed
            else Layout(given[name], self._find_compute_sharding(name), rests=home, decided_by=who)
            for name, home in homes.items()
        }  # fmt: skip

    def _find_decider(self, name: str, type: TensorType, sharding: Sharding) -> str:
        """Return who decided how a parameter lies: the model and its plan, or who passed it in."""
        decision = self.shardings.of(name, type)
        is_own = decision is not None and decision.sharding == sharding
        return decision.decided_by if decision is not None and is_own else PASSED_IN

    def _find_compute_sharding(self, name: str) -> Sharding | None:
        """Return what an annotation says a parameter is computed with; one device says nothing."""
        annotation = self.traced.annotations.get(name)
        if annotation is None or self.mesh.size == 1:
            return None
        type = self.traced.graph.input(name).type
        return self._resolve_annotation(annotation, type, name, "parameter")

    def _homes(self) -> dict[str, Sharding]:
        """Return where the user wants inputs and intermediate values to lie, by name."""
        if self.mesh.size == 1:
            return {}
        return {
            value.name: self._resolve_annotation(annotation, value.type, value.name, "value")
            for value, annotation in self.traced.value_annotations.items()
        }

    def _resolve_annotation(
        self, annotation: Annotation, type: TensorType, name: str, kind: str
    ) -> Sharding:
        sharding = resolve(annotation, self.mesh, type, name)
        return self._check(coarsen(sharding, type.shape), type, f"{kind} '{name}'")

    def _sharding(self, spec: PartitionSpec, type: TensorType, what: str) -> Sharding:
        sharding = Sharding.of(self.mesh, spec, type.rank, what)
        sharding.check(type.shape, what)
        return self._check(sharding, type, what)

    def _check(self, sharding: Sharding, type: TensorType, what: str) -> Sharding:
        if not self.settings.plan.pads:
            sharding.check_even(type.shape, what)
        return sharding
