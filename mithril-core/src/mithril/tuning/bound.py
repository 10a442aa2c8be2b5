"""Lower bounds of a configuration: no plan of it takes less, so that many need not be planned.

Time: the products of the model, divided over all devices that work, take at least their operations
over the highest rate of the profile and the start of a kernel each, and a pipeline idles while it
fills and drains: with m micro-batches over d devices of v stages each, (m v + d - 1) / (m v) times
that (Narayanan et al., 2021). Memory: parameters, gradients and the optimiser's state, each divided
as the configuration says.
"""

from __future__ import annotations

from dataclasses import dataclass

from mithril.ops.collective import AllGather, AllReduce
from mithril.tuning.config import Config, Role
from mithril.tuning.model import TunedModel
from mithril.tuning.recipes import find_sequence

BACKWARD = 2
"""The backward of a product is two products of its size."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is known of a configuration without a plan.

    Args:
        seconds: about what a step takes.
        memory: about what a device holds.
        bytes: about what a device sends.
        least_seconds: no plan takes less.
        least_memory: no plan holds less.
    """

    seconds: float
    memory: float
    bytes: float
    least_seconds: float
    least_memory: float

    def cost(self, objective: str) -> float:
        """Return the estimate of what an objective is about."""
        if objective == "memory_usage":
            return self.memory
        return self.bytes if objective == "communication" else self.seconds

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
        memory, least_memory = self._memory()
        return Estimate(
            seconds=compute * fill + communication,
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
        pieces = max(1, self.config.microbatches) * others * size
        seconds = self.tuned.compute_seconds(pieces)
        again = {"none": 0.0, "selective": 0.1, "all": 1.0}.get(str(self.config.checkpointing), 0.5)
        products = (1 + again / self.passes) * seconds * spread / others
        moved = (self.passes + again) * self.tuned.activation_bytes * spread / others
        starts = self.tuned.starts * self.config.microbatches
        kernels = starts / self.config.size(Role.pipeline) * self.hardware.kernel_seconds
        return products + moved / self.hardware.memory_bandwidth + kernels

    def _communicate(self) -> tuple[float, float]:
        """Seconds and bytes of what devices exchange."""
        seconds = sent = 0.0
        config, tensor = self.config, self.config.names(Role.tensor)
        part = config.size(Role.data, Role.context, Role.pipeline)
        for family in self.families if tensor else ():
            nbytes = (family.summed_bytes if not self.tuned.is_forward else family.bytes) / part
            seconds += self._exchange(AllReduce.name, nbytes, tensor)
            sent += nbytes
        context, sequence = config.names(Role.context), find_sequence(self.tuned)
        if context and sequence is not None:
            others = config.size(Role.data, Role.pipeline, Role.tensor)
            nbytes = int(self.passes * sequence.whole_bytes / others)
            seconds += self._exchange(AllGather.name, nbytes, context)
            sent += nbytes
        replicas = config.names(Role.data, Role.context)
        if replicas and not self.tuned.is_forward:
            nbytes = int(self.tuned.parameter_bytes / self._parameter_parts())
            times = 1.5 if config.zero == 3 else 1.0
            one = self._exchange(AllReduce.name, nbytes, replicas)
            seconds += 0.5 * times * one  # half of it passes while the backward computes
            sent += times * nbytes
        return seconds, sent

    def _exchange(self, kind: str, nbytes: float, axes: tuple[str, ...]) -> float:
        """Return the seconds of all exchanges of a kind together, as large ones."""
        start, per_byte = self.tuned.find_link(kind, axes, self.config.axes)
        return start + nbytes * per_byte

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
        inside = config.size(Role.tensor) * config.size(Role.pipeline) * config.microbatches
        flight = min(config.microbatches, config.size(Role.pipeline))
        kept = {"none": 0.7, "selective": 0.4, "all": 0.06}.get(str(config.checkpointing), 0.4)
        alive = 0.05 if tuned.is_forward else kept
        about = count(parts, 1.0) + alive * flight * activations / inside
        # An update may give up each gradient when it is done.
        return about, count(even, 0.0)


__all__ = ["Estimate", "estimate"]
