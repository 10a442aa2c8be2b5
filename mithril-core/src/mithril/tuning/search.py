"""The search: best estimate first, planned where its bound is below the best plan so far.

This is branch and bound: a configuration whose lower bound is not below the best price is left out
without a plan, and no plan of it could have been better. What time leaves unplanned is counted, and
its bounds are part of the bound that is told.

Estimates are off by much the same factor where configurations are of a kind, such as those of one
schedule: each plan corrects the estimates of its kind (`correction`), and the rest is ordered
anew.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from mithril.runtime.strategy import Alternative, Findings, Strategy
from mithril.tuning.bound import Estimate, estimate
from mithril.tuning.config import Config
from mithril.tuning.correction import Correction
from mithril.tuning.model import TunedModel
from mithril.tuning.price import Price, price
from mithril.tuning.recipes import Maker, make_strategy
from mithril.tuning.space import is_flat, vary_one

SEARCH_SECONDS = 40.0
"""A search plans no longer than that, however large the budget: plans may take seconds.

They are the processor's, so that what is found depends little on what else the machine does.
"""
WITHOUT_ANY = 5.0
"""So many times longer it goes on where nothing has fitted yet."""
PATIENCE = 12
"""So many plans in a row that are no better end it, too."""
SHOWN = 8
"""Alternatives that are told."""
WITHIN = 3.0
"""What is predicted to cost more than so many times the best is not measured."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration, and what is known of it.

    Args:
        config: the outer choices.
        estimate: without a plan.
        strategy: how tensors are split; None before that is asked.
        price: of its plan; None before it is planned.
        is_twin: whether it is another one but for the order of axes, and estimated alike.
    """

    config: Config
    estimate: Estimate
    strategy: Strategy | None = None
    price: Price | None = None
    is_twin: bool = False

    def cost(self, objective: str) -> float:
        """Return the price, or the estimate where there is none."""
        return (self.price or self.estimate).cost(objective)


@dataclass
class Search:
    """A search, and what it has found.

    Args:
        tuned: the model.
        make: from outer choices to a strategy.
        budget: seconds of the clock.
        seconds: of the processor.
        patience: so many plans in a row that are no better end it.
        searches: whether an exact search may split the tensors, too.
        measures: whether the best are to be measured: each use of the mesh is then planned,
            whatever its bound is, as predictions are further off between uses than within one.
        tell: is told how many candidates there are and how many are done, and the best.
    """

    tuned: TunedModel
    make: Maker = make_strategy
    budget: float = math.inf
    seconds: float = SEARCH_SECONDS
    patience: int = PATIENCE
    searches: bool = True
    measures: bool = False
    tell: Callable[[int, int, Candidate | None], None] = lambda total, done, best: None
    considered: int = 0
    pruned: int = 0
    unplanned: list[Candidate] = field(default_factory=list)
    planned: list[Candidate] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    waiting: list[Candidate] = field(default_factory=list)
    best: Candidate | None = None
    least_memory: float = 0.0
    correction: Correction = field(default_factory=Correction)
    _seen: set[Config] = field(default_factory=set)
    _refused: set[Config] = field(default_factory=set)
    _took: dict[int, float] = field(default_factory=dict)
    _late: int = 0
    _start: float = 0.0
    _begin: float = 0.0

    def run(self, configs: Iterable[Config]) -> list[Candidate]:
        """Return what was planned, the best first: what fits before what does not.

        Args:
            configs: of the space.
        """
        self._start, self._begin = time.monotonic(), time.process_time()
        waiting = self.waiting = self._order(configs)
        self.considered = len(waiting)
        self.least_memory = min((c.estimate.least_memory for c in waiting), default=0.0)
        left = waiting[::-1]
        while left:
            self.tell(len(waiting), len(waiting) - len(left), self.best)
            if self._visit(left.pop()):
                left.sort(key=self._rank_estimate, reverse=True)
        if self.measures and self.best is not None:
            self._plan_each_use(WITHIN * self.best.cost(self.tuned.objective))
        while self.best is not None:
            rivals = self._order(self._list_rivals(self.best))
            for candidate in rivals:
                self.considered += 1
                self._late = 0
                self._visit(candidate)
            if not rivals:
                break
        self.tell(len(waiting), len(waiting), self.best)
        return sorted(self.planned, key=self._rank)

    def choose_to_measure(self, most: int) -> list[Candidate]:
        """Return what to measure: the best of each use of the mesh, and then the rest.

        Args:
            most: how many at most.
        """
        objective = self.tuned.objective
        ranked = sorted(self.planned, key=self._rank)
        fitting = [c for c in ranked if c.price is not None and c.price.fits]
        near = [c for c in fitting if c.cost(objective) <= WITHIN * fitting[0].cost(objective)]
        first = {candidate.config.use: candidate for candidate in reversed(near)}
        chosen = sorted(first.values(), key=self._rank)
        rest = [candidate for candidate in near if candidate not in chosen]
        return [*chosen, *rest][:most]

    def _plan_each_use(self, limit: float) -> None:
        """Plan the simplest of the best estimates of each use of the mesh, unless it was planned.

        Args:
            limit: what an estimate may cost at most.
        """
        self._consider_whole_sequences()
        objective, done = self.tuned.objective, set[object]()
        planned = {candidate.config for candidate in self.planned}
        for candidate in sorted(self.waiting, key=self._rank_simple):
            config = candidate.config
            if config in planned:
                done.add(config.use)
            if config.use in done or candidate.estimate.cost(objective) > limit:
                continue
            if self._is_over(config.stages):
                break
            if config not in self._refused and self._take_up(candidate):
                done.add(config.use)

    def _consider_whole_sequences(self) -> None:
        """Add what leaves sequences between layers whole, where the space has them split."""
        whole = (replace(candidate.config, splits_stream=False) for candidate in self.waiting)
        more = self._order(config for config in dict.fromkeys(whole) if config not in self._seen)
        self._seen |= {candidate.config for candidate in more}
        self.waiting, self.unplanned = [*self.waiting, *more], [*self.unplanned, *more]
        self.considered += len(more)

    def _take_up(self, candidate: Candidate) -> bool:
        """Plan what was left out, for its bound or for want of time; return whether it can be."""
        if candidate in self.unplanned:
            self.unplanned.remove(candidate)
        else:
            self.pruned -= 1
        return self._add(candidate)

    def _rank_simple(self, candidate: Candidate) -> tuple[bool, bool, float, int, bool]:
        """Return what candidates that are estimated alike are ordered by, the simplest first."""
        too_large, is_twin, *_ = self._rank_estimate(candidate)
        config, cost = candidate.config, candidate.estimate.cost(self.tuned.objective)
        parts = config.microbatches * config.stages
        return too_large, is_twin, float(f"{cost:.2g}"), parts, config.checkpointing != "none"

    def _visit(self, candidate: Candidate) -> bool:
        """Plan a candidate, unless its bound or the time leaves it out; return whether it is."""
        objective, capacity = self.tuned.objective, self.tuned.hardware.memory_bytes
        self._seen.add(candidate.config)
        limit = self.best.cost(objective) if self.best else float("inf")
        if candidate.estimate.find_bound(objective) >= limit or (
            capacity is not None and candidate.estimate.least_memory > capacity
        ):
            self.pruned += 1
            return False
        is_over = bool(self.planned) and self._is_over(candidate.config.stages)
        is_enough = self.best is not None and self._late >= self.patience
        if is_over or is_enough:
            self.unplanned.append(candidate)
            return False
        return self._add(candidate)

    def _add(self, candidate: Candidate) -> bool:
        """Plan a candidate and keep what that tells; return whether it can be planned."""
        found = self._plan(candidate)
        if found is None:
            return False
        self.planned.append(found)
        assert found.price is not None
        self.correction.add(found.config, found.estimate, found.price)
        objective = self.tuned.objective
        limit = self.best.cost(objective) if self.best else float("inf")
        cost = found.cost(objective) if found.price.fits else float("inf")
        # Less than a hundredth is no reason to go on.
        self._late = 0 if cost < 0.99 * limit else self._late + 1
        self.best = found if cost < limit else self.best
        return True

    def _is_over(self, stages: int) -> bool:
        """Return whether there is no time left for a plan of so many stages.

        It takes what one of about as many took; a first plan that fits has the time that it needs.
        """
        most = self.seconds * (1.0 if self.best is not None else WITHOUT_ANY)
        is_late = time.monotonic() - self._start > self.budget
        wanted = 0.0
        if self.best is not None and self._took:
            near = min(self._took, key=lambda known: abs(math.log(known / stages)))
            wanted = self._took[near] * max(1.0, stages / near)
        return is_late or time.process_time() - self._begin + wanted > most

    def _list_rivals(self, best: Candidate) -> Iterator[Config]:
        """Yield what does one thing otherwise than the best, and than the best without stages.

        On a mesh without stages the exact search splits tensors.
        """
        flat = [c for c in self.planned if is_flat(self.tuned, c.config)]
        starts = [best.config]
        if flat:
            starts.append(min(flat, key=self._rank).config)
        for config in dict.fromkeys(one for start in starts for one in vary_one(self.tuned, start)):
            is_allowed = self.searches or not config.is_searched
            if is_allowed and config not in self._seen:
                yield config

    def _order(self, configs: Iterable[Config]) -> list[Candidate]:
        """Return the candidates, the best estimate first; what is about to fit before the rest."""
        known: set[object] = set()
        found = []
        for config in configs:
            about = estimate(self.tuned, config)
            axes = tuple(sorted(config.axes, key=lambda axis: axis.name))
            key = replace(config, axes=axes), about
            found.append(Candidate(config, about, is_twin=key in known))
            known.add(key)
        return sorted(found, key=self._rank_estimate)

    def _rank_estimate(self, candidate: Candidate) -> tuple[bool, bool, float, float]:
        """Return what candidates are ordered by that were not planned."""
        about = self.correction.apply(candidate.config, candidate.estimate)
        capacity = self.tuned.hardware.memory_bytes or float("inf")
        cost = about.cost(self.tuned.objective)
        return about.memory > capacity, candidate.is_twin, cost, about.memory

    def _plan(self, candidate: Candidate) -> Candidate | None:
        begin, stages = time.process_time(), candidate.config.stages
        made = self.make(self.tuned, candidate.config)
        found = made if isinstance(made, str) else price(self.tuned, made)
        took = time.process_time() - begin
        self._took[stages] = max(took, self._took.get(stages, 0.0))
        if isinstance(made, str) or isinstance(found, str):
            self.refusals.append(f"{candidate.config}: {found}")
            self._refused.add(candidate.config)
            return None
        return replace(candidate, strategy=made, price=found)

    def _rank(self, candidate: Candidate) -> tuple[bool, float, int]:
        assert candidate.price is not None
        return (
            not candidate.price.fits,
            candidate.cost(self.tuned.objective),
            candidate.price.memory,
        )

    def find_bound(self) -> float:
        """Return what no strategy of the space is below, as far as bounds know.

        Of what was planned that is its price; of the rest its bound.
        """
        objective = self.tuned.objective
        prices = [c.cost(objective) for c in self.planned if c.price and c.price.fits]
        bounds = [c.estimate.find_bound(objective) for c in self.unplanned]
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
            bound=min(self.find_bound(), chosen.cost(self.tuned.objective)),
            considered=self.considered,
            pruned=self.pruned,
            planned=len(self.planned),
            alternatives=tuple(self.alternatives(chosen)),
        )
        return replace(chosen.strategy, findings=found)

    def alternatives(self, chosen: Candidate) -> list[Alternative]:
        """Return the best of each other kind, the cheapest first.

        A kind of which nothing was planned has the cost that it was estimated at; what cannot be
        planned is left out.

        Args:
            chosen: what they are compared with.
        """
        objective, capacity = self.tuned.objective, self.tuned.hardware.memory_bytes
        cost = chosen.cost(objective)
        found: dict[str, Alternative] = {}
        for candidate in (*sorted(self.planned, key=self._rank), *self.waiting):
            kind = name_kind(candidate.config, chosen.config)
            if not kind or kind in found or candidate.config in self._refused:
                continue
            of = candidate.cost(objective)
            price, about = candidate.price, candidate.estimate
            fits = price.fits if price else capacity is None or about.memory <= capacity
            is_split = kind in (candidate.config.splits, candidate.config.kind)
            label = str(candidate.config) if is_split else kind
            found[kind] = Alternative(
                label, of, of / cost - 1 if cost else 0.0, fits, is_planned=price is not None
            )
        rows = sorted(found.values(), key=lambda row: (not row.fits, row.cost))
        return rows[:SHOWN]


def name_kind(config: Config, chosen: Config) -> str:
    """Return what a configuration does otherwise than the chosen one; empty if nothing.

    That is what it splits, or by how much, and one option otherwise.

    Args:
        config: another one.
        chosen: the one.
    """
    if config.splits != chosen.splits:
        return config.splits
    if config.kind != chosen.kind:
        return config.kind
    options = {
        "zero": (config.zero, chosen.zero),
        "checkpointing": (config.checkpointing, chosen.checkpointing),
        "context_parallel": (config.context, chosen.context),
        "sequences between layers": (config.splits_stream, chosen.splits_stream),
        "auto_partition": (config.is_searched, chosen.is_searched),
        "stages": (config.stages, chosen.stages),
        "micro-batches": (config.microbatches, chosen.microbatches),
    }
    differ = [f"{name}={mine!r}" for name, (mine, other) in options.items() if mine != other]
    return differ[0] if len(differ) == 1 else ""


__all__ = ["Candidate", "Search", "name_kind"]
