"""Lower bounds of a configuration: no plan of it takes less, so that many need not be planned.

Time: the products of the model, divided over all devices that work, take at least their operations
over the highest rate of the profile and the start of a kernel each, and a pipeline idles while it
fills and drains: with m micro-batches over d devices of v stages each, (m v + d - 1) / (m v) times
that (Narayanan et al., 2021). Memory: parameters, gradients and the optimiser's state, each divided
as the configuration says.
"""

from __future__ import annotations

from dataclasses import dataclass

from mithril.ops.collective import AllGather, AllReduce, Permute
from mithril.tuning.config import Config, Figures, Role
from mithril.tuning.model import TunedModel
from mithril.tuning.recipes import find_sequence

BACKWARD = 2
"""The backward of a product is two products of its size."""
EXPOSED = 0.1
"""Of what goes to other stages so much is waited for, though there is work beside it."""
ADDED = 3
"""What adds to a gradient reads two of its size and writes one."""
KEPT = {"none": (1.0, 1.0), "selective": (0.4, 0.6), "all": (0.06, 0.0)}
"""Which parts of results, and of what is gathered for products, live until the backward."""


@dataclass(frozen=True, slots=True)
class Estimate(Figures):
    """What is known of a configuration without a plan.

    Args:
        seconds: about what a step takes.
        memory: about what a device holds.
        bytes: about what a device sends.
        least_seconds: no plan takes less.
        least_memory: no plan holds less.
    """

    least_seconds: float
    least_memory: float

    def find_bound(self, objective: str) -> float:
        """Return the lower bound of what an objective is about."""
        if objective == "memory_usage":
            return self.least_memory
        return 0.0 if objective == "communication" else self.least_seconds


def estimate(tuned: TunedModel, config: Config) -> Estimate:
    """Return what a configuration is about to cost, and what it costs at least.

    Args:
        tuned: the model.
        config: the outer choices.
    """
    return _Estimator(tuned, config).run()


class _Estimator:
    def __init__(self, tuned: TunedModel, config: Config) -> None:
        self.tuned, self.config, self.hardware = tuned, config, tuned.hardware
        size = config.size(Role.tensor)
        self.families = tuned.choose_families(size)
        self.passes = 1 if tuned.is_forward else 1 + BACKWARD
        self.replicas = config.size(Role.data, Role.context)

    def run(self) -> Estimate:
        """Return all of it."""
        compute, communication, sent = self._compute(), *self._communicate()
        least = self._least_compute()
        fill = self._bubble()
        passed, passed_bytes = self._pass_on()
        memory, least_memory = self._memory()
        sent += passed_bytes
        # What goes on to the next stage travels beside what is computed, as far as that lasts.
        passed = max(EXPOSED * passed, passed - compute * fill)
        return Estimate(
            seconds=compute * fill + self._accumulate() + communication + passed,
            memory=memory,
            bytes=sent,
            least_seconds=least * fill,
            least_memory=least_memory,
        )

    def _bubble(self) -> float:
        depth = self.config.size(Role.pipeline)
        count = self.config.microbatches * self.config.chunks
        return (count + depth - 1) / count if depth > 1 else 1.0

    def _least_compute(self) -> float:
        """Seconds of all products at the highest rate, evenly divided."""
        kernels = self.tuned.starts * self.config.microbatches / self.config.size(Role.pipeline)
        least = self.tuned.least_seconds / self.config.working
        return least + kernels * self.hardware.kernel_seconds

    def _compute(self) -> float:
        """Seconds of products at the size that they have, and of reading and writing the rest."""
        size, working = self.config.size(Role.tensor), self.config.working
        split = sum(family.flops for family in self.families)
        share = min(1.0, split / self.tuned.flops) if self.tuned.flops else 1.0
        spread = share / size + (1 - share)
        others = working / size
        # Stages have some of the products each, and each of these as large as it is.
        pieces = self.config.microbatches * working / self.config.size(Role.pipeline)
        seconds = self.tuned.compute_seconds(pieces)
        again = {"none": 0.0, "selective": 0.1, "all": 1.0}.get(str(self.config.checkpointing), 0.5)
        products = (1 + again / self.passes) * seconds * spread / others
        held = self.tuned.activation_bytes * self._find_spread() / others
        moved = (self.passes + again) * held
        starts = self.tuned.starts * self.config.microbatches
        kernels = starts / self.config.size(Role.pipeline) * self.hardware.kernel_seconds
        return products + moved / self.hardware.memory_bandwidth + kernels

    def _accumulate(self) -> float:
        """Seconds to add each micro-batch's gradients to those of the others."""
        if self.tuned.is_forward:
            return 0.0
        times = ADDED * (self.config.microbatches - 1)
        moved = times * self.tuned.parameter_bytes / self._parameter_parts()
        return moved / self.hardware.memory_bandwidth

    def _communicate(self) -> tuple[float, float]:
        """Seconds and bytes of what devices exchange."""
        seconds = sent = 0.0
        config, tensor = self.config, self.config.names(Role.tensor)
        part = config.size(Role.data, Role.context, Role.pipeline)
        pieces = config.microbatches / config.size(Role.pipeline)
        for family in self.families if tensor else ():
            nbytes, sums = family.summed_bytes, family.sums + family.gradient_sums
            if self.tuned.is_forward:
                nbytes, sums = family.bytes, family.sums
            seconds += self._exchange(AllReduce.name, nbytes / part, tensor, sums * pieces)
            sent += nbytes / part
        context, sequence = config.names(Role.context), find_sequence(self.tuned)
        if context and sequence is not None:
            others = config.size(Role.data, Role.pipeline, Role.tensor)
            nbytes = int(self.passes * sequence.whole_bytes / others)
            reads = self.passes * sequence.whole_reads * pieces
            seconds += self._exchange(AllGather.name, nbytes, context, reads)
            sent += nbytes
        replicas = config.names(Role.data, Role.context)
        if replicas and not self.tuned.is_forward:
            nbytes = int(self.tuned.parameter_bytes / self._parameter_parts())
            one = self._exchange(AllReduce.name, nbytes, replicas)
            # A sum is a scatter and a gather, of which half pass while the backward computes.
            # ZeRO 3 gathers in the forward and in the backward of each micro-batch instead.
            gathers = float(config.microbatches) if config.zero == 3 else 0.25
            again = config.microbatches - 1 if config.zero == 2 else 0  # scattered each time
            seconds += (0.25 + gathers + again) * one
            sent += (0.5 + again + (gathers if config.zero == 3 else 0.5)) * nbytes
        return seconds, sent

    def _pass_on(self) -> tuple[float, float]:
        """Return seconds and bytes of what a device passes on to other stages."""
        config, axes = self.config, self.config.names(Role.pipeline)
        if not axes:
            return 0.0, 0.0
        parts = config.size(Role.data, Role.context)
        parts *= config.size(Role.tensor) if config.splits_stream else 1
        times = config.chunks * (1 if self.tuned.is_forward else 2)  # gradients go back
        nbytes = times * self.tuned.border_bytes / parts
        start, per_byte = self.tuned.find_link(Permute.name, axes, config.axes)
        return times * config.microbatches * start + nbytes * per_byte, nbytes

    def _exchange(
        self, kind: str, nbytes: float, axes: tuple[str, ...], times: float = 1.0
    ) -> float:
        """Return the seconds of some exchanges of a kind, which have so many bytes together."""
        start, per_byte = self.tuned.find_link(kind, axes, self.config.axes)
        return times * start + nbytes * per_byte

    def _find_spread(self) -> float:
        """Return the share of the bytes of activations that a device of a tensor axis has."""
        size = self.config.size(Role.tensor)
        share = self.tuned.find_spread(size)
        return share / size + (1 - share) / (size if self.config.splits_stream else 1)

    def _parameter_parts(self) -> float:
        """Return into how many parts parameters are computed with."""
        size = self.config.size(Role.tensor)
        split = self.tuned.find_share(size)
        return self.config.size(Role.pipeline) / (split / size + 1 - split)

    def _memory(self) -> tuple[float, float]:
        """Return about how many bytes a device holds, and how many at least."""
        tuned, config = self.tuned, self.config
        parts = self._parameter_parts()
        spread = tuned.find_share(0) if config.has_experts else 0.0
        parts /= spread / config.size(Role.data) + 1 - spread
        even = config.size(Role.tensor) * config.size(Role.pipeline)
        if config.is_searched:
            even = config.devices
        if config.has_experts:
            even *= config.size(Role.data)
        state = tuned.update.bytes * tuned.parameter_bytes

        def count(divided: float, share: float) -> float:
            zero, n = config.zero, self.replicas
            kept = tuned.parameter_bytes / (n if zero == 3 else 1)
            gradients = 0.0 if tuned.is_forward else tuned.parameter_bytes / (n if zero >= 2 else 1)
            if tuned.optimizer is not None:
                gradients *= share
            return (kept + gradients + state / (n if zero >= 1 else 1)) / divided

        activations = tuned.activation_bytes / config.size(Role.data, Role.context)
        inside = config.size(Role.pipeline) * config.microbatches
        flight = min(config.microbatches, config.size(Role.pipeline))
        kept, gathered = KEPT.get(str(config.checkpointing), KEPT["selective"])
        if tuned.is_forward:
            kept, gathered = 0.05, 0.0
        alive = kept * self._find_spread()
        if config.splits_stream:  # what products of a split weight read is gathered, and kept
            read = sum(family.bytes for family in self.families)
            alive += gathered * read / tuned.activation_bytes
        alive *= tuned.kept_share
        about = count(parts, 1.0) + alive * flight * activations / inside
        # An update may give up each gradient when it is done.
        return about, count(even, 0.0)


__all__ = ["Estimate", "estimate"]
