"""How inputs lie that nobody has placed: as `in_shardings=` says it, or else as `shapes=` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mithril.errors import OptionError
from mithril.mesh import Mesh, PartitionSpec, Sharding
from mithril.runtime.array import Array, Kind
from mithril.runtime.specification import TensorSpec, as_spec
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

        Args:
            name: of the input.
            type: of what is passed.

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

    def unplace_defaults(self, names: Sequence[str], kinds: Sequence[Kind]) -> list[Kind]:
        """Return kinds of which those are unplaced that lie where unplaced ones would: one plan.

        Args:
            names: of the inputs.
            kinds: of each, as it is said.
        """
        return [self._unplace_default(name, kind) for name, kind in zip(names, kinds, strict=True)]

    def _unplace_default(self, name: str, kind: Kind) -> Kind:
        is_default = kind.is_placed and kind.sharding == self.of(name, kind.type)
        return Kind.of_type(kind.backend, kind.type) if is_default else kind


def read_shape_shardings(shapes: object) -> dict[str, PartitionSpec]:
    """Return how `shapes=` say that inputs lie: by a `TensorSpec`, or an array that was placed.

    Args:
        shapes: as a user passed them; what they cannot be is refused where kinds are read.

    Returns:
        By name, of those inputs of which they say it.
    """
    if not isinstance(shapes, Mapping):
        return {}
    specs = {
        name: as_spec(given, f"input '{name}'").sharding
        for name, given in shapes.items()
        if isinstance(given, TensorSpec | Array)
    }
    return {name: spec for name, spec in specs.items() if spec is not None}


def check_agreement(sources: Mapping[str, Specs]) -> None:
    """Raise if two options say different things of how one input lies.

    Args:
        sources: what each option says, by its name.

    Raises:
        OptionError: that is so.
    """
    first: dict[str, tuple[str, PartitionSpec]] = {}
    for option, specs in sources.items():
        for name, spec in specs.items():
            other, known = first.setdefault(name, (option, spec))
            if known != spec:
                raise OptionError(
                    f"input '{name}' lies as {known} by {other}, and as {spec} by {option}; give "
                    f"one of them"
                )


def join_shardings(sources: Mapping[str, Specs]) -> dict[str, PartitionSpec]:
    """Return how inputs lie, as options say it that may not contradict each other.

    Args:
        sources: what each option says, by its name.

    Raises:
        OptionError: two say different things of one input.
    """
    check_agreement(sources)
    return {name: spec for specs in sources.values() for name, spec in specs.items()}


__all__ = ["InputShardings", "check_agreement", "join_shardings", "read_shape_shardings"]
