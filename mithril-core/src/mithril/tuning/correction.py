"""What plans say of estimates: by how much those of a kind are off, in seconds and in memory.

An estimate knows little of what a schedule keeps in memory, or hides. Where one plan of a kind took
half as much again as was estimated, others of its kind are expected to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from mithril.tuning.bound import Estimate
from mithril.tuning.config import Config, Figures


@dataclass(slots=True)
class Correction:
    """The figures of plans over their estimates, by kind: geometric means.

    >>> from mithril.tuning.config import AxisRole, Role
    >>> two = Config((AxisRole("data", 2, Role.data),))
    >>> about = Estimate(seconds=1.0, memory=10.0, bytes=0.0, least_seconds=0.5, least_memory=5.0)
    >>> known = Correction()
    >>> known.add(two, about, Figures(seconds=1.5, memory=20.0, bytes=0.0))
    >>> known.apply(two, about).seconds, known.apply(two, about).memory
    (1.5, 20.0)
    """

    _sums: dict[object, tuple[float, float, int]] = field(default_factory=dict)
    _factors: dict[object, tuple[float, float]] = field(default_factory=dict)

    def add(self, config: Config, about: Estimate, found: Figures) -> None:
        """Take note of a plan.

        Args:
            config: of which it is.
            about: what was estimated.
            found: what it costs.
        """
        kind = _name_kind(config)
        seconds, memory, count = self._sums.get(kind, (0.0, 0.0, 0))
        seconds += _find_log(found.seconds, about.seconds)
        memory += _find_log(found.memory, about.memory)
        self._sums[kind] = seconds, memory, count + 1
        self._factors[kind] = math.exp(seconds / (count + 1)), math.exp(memory / (count + 1))

    def apply(self, config: Config, about: Estimate) -> Estimate:
        """Return an estimate as plans of its kind have it; the same where there are none.

        Args:
            config: of which it is.
            about: the estimate.
        """
        factors = self._factors.get(_name_kind(config))
        if factors is None:
            return about
        return replace(about, seconds=about.seconds * factors[0], memory=about.memory * factors[1])


def _name_kind(config: Config) -> object:
    """Return what decides by how much an estimate is off: how a step runs, not how finely."""
    return config.schedule, config.checkpointing, bool(config.context), config.is_searched


def _find_log(found: float, about: float) -> float:
    return math.log(found / about) if found > 0 and about > 0 else 0.0


__all__ = ["Correction"]
