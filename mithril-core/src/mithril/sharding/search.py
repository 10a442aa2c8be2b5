"""What a search over everything that nobody has said is asked for.

Ordinarily a graph has the candidates that somebody's shardings lead to (`candidates`). A search
admits all: any dimension of any value may be split over any axis, a parameter may be computed with
in any sharding and rest in another one. What was said stays as it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from mithril.ir import Op, Rule
from mithril.mesh import MICRO, Axis, Mesh
from mithril.ops.collective import AllReduce
from mithril.types import TensorType

THROUGHPUT, LATENCY, MEMORY, COMMUNICATION = (
    "throughput", "latency", "memory_usage", "communication",
)  # fmt: skip
OBJECTIVES = (THROUGHPUT, LATENCY, MEMORY, COMMUNICATION)
DATA, TENSOR, MIXED, ANNOTATIONS = "data", "tensor", "mixed", "annotations"
FULLY_SHARDED, PIPELINE = "fully_sharded", "pipeline"
SPACES = (DATA, FULLY_SHARDED, TENSOR, MIXED, ANNOTATIONS, PIPELINE)
SEARCHED = "auto_partition"
"""Who decided how a tensor lies that was searched for."""
SEARCHED_REST = f"{SEARCHED}, which has it rest so"
"""The same of a parameter that is computed with otherwise."""


Rules = dict[tuple[Op, tuple[TensorType, ...], tuple[TensorType, ...]], Rule]
"""The sharding rules of ops on types of operands and results."""


@dataclass(slots=True, eq=False)
class Known:
    """What searches of one graph share, however they differ in spaces, shares and limits.

    Args:
        prices: `MovePrices` by mesh, which know options, as these know what is searched for.
        rules: of nodes.
        ways: to compute the graph, by what they depend on.
        parts: laid out and localised, by what was chosen of them.
        plans: by the programs of their parts.
    """

    prices: dict[Mesh, Any] = field(default_factory=dict)
    rules: Rules = field(default_factory=dict)
    ways: dict[Hashable, Any] = field(default_factory=dict)
    parts: dict[Hashable, Any] = field(default_factory=dict)
    plans: dict[Hashable, Any] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget it all: what knows the search that it was made for would keep it, in a circle."""
        for known in (self.prices, self.rules, self.ways, self.parts, self.plans):
            known.clear()


@dataclass(frozen=True, slots=True)
class Search:
    """What is minimised, over what, and within which limits.

    Args:
        objective: `throughput` and `latency` are predicted seconds (of outputs and gradients, or of
            outputs alone: the graph says which), `memory_usage` the bytes of the fullest moment,
            `communication` the seconds of collectives.
        spaces: what may be split; the best answer of all of them counts. `data`: nothing but the
            leading dimension of inputs; `fully_sharded`: that, and parameters rest split;
            `tensor`: everything but that; `mixed`: everything;
            `annotations`: what the shardings that were said lead to, as without a search;
            `pipeline`, by itself: where layers are cut into stages, and nothing else.
        memory: the most bytes that a device may hold; None for any.
        all_reduce: the most bytes that one all_reduce may have; None for any.
        refused: kinds of collectives that may not occur.
        whole: patterns of names, and axes over which what they match is not split.
        excluded_axes: mesh axes whose parts compute by themselves: nothing is split over them.
        batches: inputs that are data, whose leading dimension is the batch.
        cotangents: inputs that are gradients of outputs.
        parameters: inputs that may rest in another sharding than they are computed with.
        stacked: how many leading dimensions of a parameter only stack layers.
        given_up: inputs that a run gives up.
        hidden: the part of the seconds of moves that nobody waits for (of parameters from where
            they rest, and of their gradients) which is not counted.
        batch_axes: the mesh axes over which batches, and gradients of outputs, come split along
            their leading dimension, as far as it divides, and no others; None for any.
        rest_axes: the same of where parameters rest, along their largest dimension.
        experts: parameters of which each part is used with activations of its own, and along which
            dimension; see `find_experts`.
        expert_axes: the mesh axes over which these are split along it, in `annotations`, where
            batches come as `batch_axes` say; None for none.
        sequences: those of the batches whose second dimension is a sequence.
        sequence_axes: the mesh axes over which these are split along it, likewise.
        known: what it shares with other searches of one graph.
    """

    objective: str = THROUGHPUT
    spaces: tuple[str, ...] = (MIXED,)
    memory: int | None = None
    all_reduce: int | None = None
    refused: frozenset[str] = frozenset()
    whole: tuple[tuple[str, str], ...] = ()
    excluded_axes: frozenset[str] = frozenset()
    batches: frozenset[str] = frozenset()
    cotangents: frozenset[str] = frozenset()
    parameters: frozenset[str] = frozenset()
    stacked: Mapping[str, int] = field(default_factory=dict)
    given_up: frozenset[str] = frozenset()
    hidden: float = 0.0
    batch_axes: frozenset[str] | None = None
    rest_axes: frozenset[str] | None = None
    experts: Mapping[str, int] = field(default_factory=dict)
    expert_axes: frozenset[str] | None = None
    sequences: frozenset[str] = frozenset()
    sequence_axes: frozenset[str] | None = None
    known: Known = field(default_factory=Known, compare=False, repr=False)

    @property
    def is_of_stages(self) -> bool:
        """Whether layers are put into stages, which is decided before there is a graph."""
        return self.spaces == (PIPELINE,)

    @property
    def has_refusals(self) -> bool:
        """Whether there are collectives that may not occur."""
        return self.all_reduce is not None or bool(self.refused)

    def find_axes(self, name: str) -> frozenset[str] | None:
        """Return the mesh axes over which an input comes split; None for any."""
        if name in self.batches or name in self.cotangents:
            return self.batch_axes
        return self.rest_axes if name in self.parameters else None

    def find_refused(self, name: str) -> set[str]:
        """Return the mesh axes over which a value is not to be split.

        Args:
            name: of the value.

        Returns:
            Names as users say them: of axes that a mesh may have cut, which are its origins then.
        """
        axes = (axis for pattern, axis in self.whole if fnmatchcase(name, pattern))
        return {*self.excluded_axes, *axes}

    def list_axes(self, mesh: Mesh) -> list[Axis]:
        """Return the axes of devices over which work may be split.

        Args:
            mesh: with these axes, which may be cut further, and with that of time.
        """
        axes = (axis for axis in mesh.axes if axis.size > 1 and axis.name != MICRO)
        return [axis for axis in axes if axis.origin not in self.excluded_axes]

    def refuses(self, kind: str, nbytes: int) -> bool:
        """Return whether a collective may not occur."""
        is_large = self.all_reduce is not None and nbytes > self.all_reduce
        return kind in self.refused or (kind == AllReduce.name and is_large)
