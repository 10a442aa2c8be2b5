"""The search: best estimate first, planned where its bound is below the best plan so far.

This is branch and bound: a configuration whose lower bound is not below the best price is left out
without a plan, and no plan of it could have been better. What time leaves unplanned is counted, and
its bounds are part of the bound that is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from mithril.runtime.strategy import Alternative, Findings, Strategy
from mithril.tuning.bound import Estimate, estimate
from mithril.tuning.config import Config, Role
from mithril.tuning.model import TunedModel
from mithril.tuning.price import Price, price
from mithril.tuning.recipes import Maker, make_by_recipe

SEARCH_SECONDS = 40.0
"""A search plans no longer than that, where the budget is larger: plans of pipelines take seconds."""
PATIENCE = 12
"""So many plans in a row that are no better end it, too."""
SHOWN = 6
"""Alternatives that are told."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration, and what is known of it.

    Args:
        config: the outer choices.
        estimate: without a plan.
        strategy: how tensors are split; None before that is asked.
        price: of its plan; None before it is planned.
    """

    config: Config
    estimate: Estimate
    strategy: Strategy | None = None
    price: Price | None = None

    def cost(self, objective: str) -> float:
        """Return the price, or the estimate where there is none."""
        return (self.price or self.estimate).cost(objective)


@dataclass
class Search:
    """A search, and what it has found.

    Args:
        tuned: the model.
        make: from outer choices to a strategy.
        budget: seconds.
        patience: so many plans in a row that are no better end it.
        tell: is told how many candidates there are and how many are done, and the best.
    """

    tuned: TunedModel
    make: Maker = make_by_recipe
    budget: float = SEARCH_SECONDS
    patience: int = PATIENCE
    tell: Callable[[int, int, Candidate | None], None] = lambda total, done, best: None
    considered: int = 0
    pruned: int = 0
    unplanned: list[Candidate] = field(default_factory=list)
    planned: list[Candidate] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def run(self, configs: Iterable[Config]) -> list[Candidate]:
        """Return what was planned, the best first: what fits before what does not.

        Args:
            configs: of the space.
        """
        objective, start = self.tuned.objective, time.monotonic()
        waiting = self._order(configs)
        capacity = self.tuned.hardware.memory_bytes
        best: Candidate | None = None
        lately = 0
        for number, candidate in enumerate(waiting):
            self.tell(len(waiting), number, best)
            limit = best.cost(objective) if best else float("inf")
            if candidate.estimate.bound(objective) >= limit or (
                capacity is not None and candidate.estimate.least_memory > capacity
            ):
                self.pruned += 1
                continue
            is_over = time.monotonic() - start > self.budget or lately >= self.patience
            if best is not None and is_over:
                self.unplanned.append(candidate)
                continue
            found = self._plan(candidate)
            if found is None:
                continue
            self.planned.append(found)
            assert found.price is not None
            is_better = found.price.fits and found.cost(objective) < limit
            # Less than a hundredth is no reason to go on.
            lately = 0 if found.price.fits and found.cost(objective) < 0.99 * limit else lately + 1
            best = found if is_better else best
        self.tell(len(waiting), len(waiting), best)
        return sorted(self.planned, key=self._rank)

    def _order(self, configs: Iterable[Config]) -> list[Candidate]:
        """Return the candidates, the best estimate first; what is about to fit before the rest."""
        objective = self.tuned.objective
        capacity = self.tuned.hardware.memory_bytes or float("inf")
        found = [Candidate(config, estimate(self.tuned, config)) for config in configs]
        self.considered = len(found)

        def rank(candidate: Candidate) -> tuple[bool, float, float]:
            about = candidate.estimate
            return about.memory > capacity, about.cost(objective), about.memory

        return sorted(found, key=rank)

    def _plan(self, candidate: Candidate) -> Candidate | None:
        strategy = self.make(self.tuned, candidate.config)
        if strategy is None:
            self.refusals.append(f"{candidate.config}: sizes do not divide")
            return None
        found = price(self.tuned, strategy)
        if isinstance(found, str):
            self.refusals.append(f"{candidate.config}: {found}")
            return None
        return replace(candidate, strategy=strategy, price=found)

    def _rank(self, candidate: Candidate) -> tuple[bool, float, int]:
        assert candidate.price is not None
        return (
            not candidate.price.fits,
            candidate.cost(self.tuned.objective),
            candidate.price.memory,
        )

    def bound(self) -> float:
        """Return what no strategy of the space is below, as far as bounds know.

        Of what was planned that is its price; of the rest its bound.
        """
        objective = self.tuned.objective
        prices = [c.cost(objective) for c in self.planned if c.price and c.price.fits]
        bounds = [c.estimate.bound(objective) for c in self.unplanned]
        return min((*prices, *bounds), default=0.0)

    def describe(self, chosen: Candidate) -> Strategy:
        """Return the strategy of a candidate with what the search knows of it.

        Args:
            chosen: one of those that were planned.
        """
        assert chosen.strategy is not None and chosen.price is not None
        found = Findings(
            objective=self.tuned.objective,
            profile=self.tuned.hardware.name,
            seconds=chosen.price.seconds,
            memory=chosen.price.memory,
            bytes=chosen.price.bytes,
            bound=min(self.bound(), chosen.cost(self.tuned.objective)),
            considered=self.considered,
            pruned=self.pruned,
            planned=len(self.planned),
            alternatives=tuple(self.alternatives(chosen)),
        )
        return replace(chosen.strategy, findings=found)

    def alternatives(self, chosen: Candidate) -> list[Alternative]:
        """Return the best of each other kind, planned ones, the cheapest first.

        Args:
            chosen: what they are compared with.
        """
        objective = self.tuned.objective
        cost = chosen.cost(objective)
        found: dict[str, Alternative] = {}
        ranked: Sequence[Candidate] = sorted(self.planned, key=self._rank)
        for candidate in ranked:
            kind = name_kind(candidate.config, chosen.config)
            if not kind or kind in found or candidate.price is None:
                continue
            more = candidate.cost(objective) / cost - 1 if cost else 0.0
            found[kind] = Alternative(
                kind, candidate.cost(objective), more, candidate.price.fits, is_planned=True
            )
        return list(found.values())[:SHOWN]


def name_kind(config: Config, chosen: Config) -> str:
    """Return what a configuration does otherwise than the chosen one; empty if nothing.

    Args:
        config: another one.
        chosen: the one.
    """
    if config.kind != chosen.kind:
        return config.kind
    if config.zero != chosen.zero:
        return f"zero={config.zero}"
    if config.checkpointing != chosen.checkpointing:
        return f"checkpointing={config.checkpointing!r}"
    if config.context != chosen.context:
        return f"context_parallel={config.context!r}"
    if config.chunks != chosen.chunks:
        return f"{config.size(Role.pipeline) * config.chunks} stages"
    if config.microbatches != chosen.microbatches:
        return f"{config.microbatches} micro-batches"
    return ""


__all__ = ["Candidate", "Search", "name_kind"]
