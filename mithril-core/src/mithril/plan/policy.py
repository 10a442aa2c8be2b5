"""The memory policy of a plan: what its backward finds, and what it computes again, as data."""

from __future__ import annotations

from dataclasses import dataclass

from mithril.units import format_bytes, format_seconds


@dataclass(frozen=True, slots=True)
class LayerPolicy:
    """What becomes of the activations of a layer between its forward and its backward.

    Args:
        layer: its path; empty for what belongs to no layer.
        kept: bytes that a device keeps for the backward, of one micro-batch.
        recomputed: bytes that it would keep otherwise, and computes again.
        offloaded: bytes that wait on the host.
        seconds: predicted time that computing them again takes, for one micro-batch.
        why: why so.
    """

    layer: str
    kept: int
    recomputed: int
    offloaded: int = 0
    seconds: float = 0.0
    why: str = ""

    def __str__(self) -> str:
        parts = [f"keeps {format_bytes(self.kept)}"]
        if self.recomputed:
            time = f" in {format_seconds(self.seconds)}" if self.seconds else ""
            parts.append(f"computes {format_bytes(self.recomputed)} again{time}")
        if self.offloaded:
            parts.append(f"moves {format_bytes(self.offloaded)} to the host")
        reason = f" ({self.why})" if self.why else ""
        return f"{self.layer or 'outside of layers'}: {', '.join(parts)}{reason}"


@dataclass(frozen=True, slots=True)
class TradeOff:
    """What a policy costs.

    Args:
        peak: the most bytes that a device holds at once.
        seconds: predicted time that a run takes more than one that keeps everything.
    """

    peak: int
    seconds: float


@dataclass(frozen=True, slots=True)
class MemoryPolicy:
    """What the backward of a plan finds, and what it computes again.

    Args:
        asked: the options that asked for it.
        layers: what becomes of each layer, in the order of the forward.
        keeping: the most bytes that a device would hold if everything were kept.
        seconds: predicted time that the plan takes more than one that keeps everything.
        budget: the most bytes that a device was to hold; None where no budget was given.
        bound: the least time that any policy within the budget takes more; None if not known.
        curve: what cheaper and dearer policies cost, by peak from the largest.
        bound_by: how the bound was found.
    """

    asked: str
    layers: tuple[LayerPolicy, ...]
    keeping: int
    seconds: float = 0.0
    budget: int | None = None
    bound: float | None = None
    curve: tuple[TradeOff, ...] = ()
    bound_by: str = ""

    @property
    def gap(self) -> float | None:
        """How many seconds the policy takes more than the bound; None if that is not known."""
        return None if self.bound is None else max(0.0, self.seconds - self.bound)

    @property
    def kept(self) -> int:
        """Bytes that a device keeps for the backward, of one micro-batch."""
        return sum(layer.kept for layer in self.layers)

    @property
    def recomputed(self) -> int:
        """Bytes that a device computes again instead, of one micro-batch."""
        return sum(layer.recomputed for layer in self.layers)

    def find(self, *, dearer: bool, peak: int) -> TradeOff | None:
        """Return the next policy on the curve: one that holds less and takes longer, or the other.

        Args:
            dearer: whether it shall hold less.
            peak: the most bytes that a device holds with this policy.
        """
        if dearer:
            return max((p for p in self.curve if p.peak < peak), key=lambda p: p.peak, default=None)
        return min((p for p in self.curve if p.peak > peak), key=lambda p: p.peak, default=None)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return it as text, line by line; layers that are alike and follow each other in one."""
        head = f"{self.asked}: keeps {format_bytes(self.kept)} for the backward"
        head += f", computes {format_bytes(self.recomputed)} again"
        if self.seconds:
            head += f" in {format_seconds(self.seconds)}"
        head += f"; keeping everything takes {format_bytes(self.keeping)} at most"
        found = [head]
        if self.budget is not None:
            found.append(f"  budget {format_bytes(self.budget)}{self._describe_bound()}")
        return [*found, *(f"  {line}" for line in _join_alike(self.layers))]

    def _describe_bound(self) -> str:
        if self.bound is None or self.gap is None:
            return ""
        by = f" by {self.bound_by}" if self.bound_by else ""
        bound, gap = (_write(seconds) for seconds in (self.bound, self.gap))
        return f"; at least {bound}{by}, gap {gap}"


def _write(seconds: float) -> str:
    return format_seconds(seconds) if seconds else "0 s"


def _join_alike(layers: tuple[LayerPolicy, ...]) -> list[str]:
    """Return a line for each run of layers of which the same is said."""
    runs: list[list[LayerPolicy]] = []
    for layer in layers:
        if runs and _rest(runs[-1][0]) == _rest(layer):
            runs[-1].append(layer)
        else:
            runs.append([layer])
    lines = []
    for run in runs:
        first, last = run[0], run[-1]
        line = str(first)
        if len(run) > 1:
            name = f"{first.layer} to {last.layer} ({len(run)} layers, each)"
            line = line.replace(first.layer, name, 1)
        lines.append(line)
    return lines


def _rest(layer: LayerPolicy) -> tuple[object, ...]:
    return layer.kept, layer.recomputed, layer.offloaded, layer.seconds, layer.why


__all__ = ["LayerPolicy", "MemoryPolicy", "TradeOff"]
