"""What is asked of a plan, and the options of planning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mithril.options import AS_THEY_COME, Precision
from mithril.partition.algorithms import AS_ENGINES_DO, Algorithms
from mithril.partition.compression import PLAIN, Compression
from mithril.partition.fusion import FUSE_AS_IT_PAYS, Fusion
from mithril.partition.offload import NO_OFFLOAD, Offload
from mithril.partition.overlap import AS_IT_PAYS, Overlap
from mithril.partition.pipeline import Placement
from mithril.partition.recompute import Recompute
from mithril.partition.replicas import Replicas
from mithril.plan import Port
from mithril.plan.names import is_of_compression
from mithril.plan.search import SearchResult
from mithril.plugins.extensions import Extension
from mithril.sharding import Layout, Search
from mithril.transform import Update
from mithril.types import DType

KEEP_ALL = Recompute()


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a plan.

    Args:
        layouts: how tensors lie, as far as that is said, by name of an input, an output, or a value
            between; the gradient of an output `y` arrives as the input `cotangent_name("y")`.
        cotangents: names of the outputs whose gradients are given; None for a forward plan.
        differentiated: inputs whose gradients are wanted; they leave as the inputs arrive.
        parameters: inputs that are parameters: precision casts them where they are used.
        placement: what runs where, if layers are placed on devices or run as stages.
        notes: facts for readers of the plan.
        searched: what a search for stages has found before; None where there was none.
        donated: inputs that are given up, in whose memory results may be made.
        optimizer: inputs that are the state of an optimiser.
        update: what becomes of the gradients in a train step; otherwise they are outputs.
        on_host: inputs that lie in the host arena between runs, as what is made of them does, and
            outputs that do.
        stacked: how many leading dimensions of a parameter only stack layers, by name.
        batches: inputs that are data, with their samples along the leading dimension.
    """

    layouts: Mapping[str, Layout] = field(default_factory=dict)
    cotangents: tuple[str, ...] | None = None
    differentiated: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    placement: Placement | None = None
    notes: tuple[str, ...] = ()
    searched: SearchResult | None = None
    donated: frozenset[str] = frozenset()
    optimizer: tuple[str, ...] = ()
    update: Update | None = None
    on_host: tuple[str, ...] = ()
    stacked: Mapping[str, int] = field(default_factory=dict)
    batches: tuple[str, ...] = ()

    def keeping(self, inputs: Sequence[Port]) -> Request:
        """Return the same with what compression keeps given up, as the optimiser's state is.

        Args:
            inputs: of the plan.
        """
        found = tuple(port.name for port in inputs if is_of_compression(port.name))
        if not found:
            return self
        return replace(
            self,
            donated=self.donated | frozenset(found),
            optimizer=(*self.optimizer, *found),
        )


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The options of all passes and checks.

    Args:
        precision: the dtypes values are computed in.
        pads: whether a dimension may be split that does not divide; its parts are then padded.
        max_reshard_bytes: the largest hidden move a plan may have, in bytes per device and run;
            None for any.
        strict_memory: whether a plan is refused that devices have too little memory for; otherwise
            there is a warning.
        gradients: the dtype in which gradients of parameters leave; None for that of each.
        recompute: what the backward computes again instead of finding it kept.
        offload: what is in the host arena while nobody needs it.
        overlap: how collectives are placed beside what computes.
        algorithms: how collectives are carried out.
        fusion: which of them travel together.
        optimization: the option that asks for all passes over communication, or for none, as it was
            given; the plan then says what they did.
        compression: how gradients travel where devices add them up.
        gather: the dtype in which parameters at rest are gathered; None for their own.
        replicas: parts of a mesh axis that run the plan on values of their own; None for no such.
        search: what is searched for; None where only what shardings that are said leave open is
            chosen.
        passes: those of plugins that were asked for, in order.
    """

    precision: Precision = AS_THEY_COME
    pads: bool = True
    max_reshard_bytes: int | None = None
    strict_memory: bool = False
    gradients: DType | None = None
    recompute: Recompute = KEEP_ALL
    offload: Offload = NO_OFFLOAD
    overlap: Overlap = AS_IT_PAYS
    algorithms: Algorithms = AS_ENGINES_DO
    fusion: Fusion = FUSE_AS_IT_PAYS
    optimization: str = ""
    compression: Compression = PLAIN
    gather: DType | None = None
    replicas: Replicas | None = None
    search: Search | None = None
    passes: tuple[Extension, ...] = ()

    def without_axis(self, axis: str) -> PlanOptions:
        """Return the same options, whose search splits nothing over a mesh axis."""
        if self.search is None:
            return self
        excluded = self.search.excluded_axes | {axis}
        return replace(self, search=replace(self.search, excluded_axes=excluded))
