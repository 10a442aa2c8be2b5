"""How inputs lie that nobody has placed: as `in_shardings=` says it, or else as `shapes=` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mithril.errors import OptionError
from mithril.mesh import Mesh, PartitionSpec, Sharding, read_spec
from mithril.runtime.array import Array, Kind
from mithril.runtime.specification import TensorSpec
from mithril.types import TensorType

Specs = Mapping[str, PartitionSpec]


@dataclass(frozen=True, slots=True)
class InputShardings:
    """How inputs of a model lie that nobody has placed.

    Args:
        mesh: of the backend.
        specs: by name; of all others a plan decides it.
    """

    mesh: Mesh
    specs: Specs

    def of(self, name: str, type: TensorType) -> Sharding | None:
        """Return how an unplaced input lies, None where its plan decides.

        Raises:
            ShardingError: the input has fewer dimensions than its spec.
        """
        spec = self.specs.get(name)
        what = f"input '{name}'"
        return None if spec is None else Sharding.of(self.mesh, spec, type.rank, what)

    def place(self, names: Sequence[str], kinds: Sequence[Kind]) -> list[Kind]:
        """Return kinds of which those are placed whose inputs go where that is said.

        Args:
            names: of the inputs.
            kinds: of each.
        """
        return [self._place(name, kind) for name, kind in zip(names, kinds, strict=True)]

    def _place(self, name: str, kind: Kind) -> Kind:
        lies = None if kind.is_placed else self.of(name, kind.type)
        return kind if lies is None else Kind(kind.backend, kind.type, lies, self.mesh.size > 1)

    def displace(self, names: Sequence[str], kinds: Sequence[Kind]) -> list[Kind]:
        """Return kinds of which those are unplaced that lie where unplaced ones would: one plan.

        Args:
            names: of the inputs.
            kinds: of each, as it is said.
        """
        return [self._displace(name, kind) for name, kind in zip(names, kinds, strict=True)]

    def _displace(self, name: str, kind: Kind) -> Kind:
        is_alike = kind.is_placed and kind.sharding == self.of(name, kind.type)
        return Kind.of_type(kind.backend, kind.type) if is_alike else kind


def read_said(shapes: object) -> dict[str, PartitionSpec]:
    """Return how `shapes=` says that inputs lie: by a `TensorSpec`, or an array that was placed."""
    if not isinstance(shapes, Mapping):  # which is refused where kinds are read
        return {}
    specs = {name: _find_spec(given) for name, given in shapes.items()}
    return {name: spec for name, spec in specs.items() if spec is not None}


def _find_spec(given: object) -> PartitionSpec | None:
    if isinstance(given, TensorSpec):
        return given.sharding
    if isinstance(given, Array) and given.is_placed and given.sharding.mesh == given.backend.mesh:
        return given.sharding.spec
    return None


def join_said(said: Specs, given: Any) -> Any:
    """Return how inputs lie, by `shapes=` and by `in_shardings=`.

    Args:
        said: by the first.
        given: the second, as a user passed it.

    Raises:
        OptionError: they say different things of one input.
    """
    if given is None:
        return said
    each = given if isinstance(given, Mapping) else dict.fromkeys(said, given)
    for name, spec in said.items():
        other = read_spec(each.get(name))
        if other is not None and other != spec:
            raise OptionError(
                f"shapes have input '{name}' as {spec}, and in_shardings as {other}; give one"
            )
    if each is not given:  # one for all inputs, also for those that shapes= say nothing of
        return given
    return {**said, **{name: spec for name, spec in given.items() if spec is not None}}


__all__ = ["InputShardings", "join_said", "read_said"]
