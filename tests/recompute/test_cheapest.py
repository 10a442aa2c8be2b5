"""Against brute force: of small graphs, with loops and on meshes, the choice is the cheapest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mithril.errors import PlanError
from mithril.ir import Value
from mithril.mesh import Mesh
from mithril.plan import Program

from tests.profiles import runs_all, scaled
from tests.recompute.graphs import droppable
from tests.recompute.solving import choose, list_subsets, measure, small_program

ONE, TWO, FOUR = Mesh(), Mesh(a=2), Mesh(a=2, b=2)
KINDS = ["wired", "chain", "loop"]
MOST = 9 if runs_all() else 7
"""Of so many values all sets are measured in a property test."""


def check_cheapest(program: Program, values: Sequence[Value], shares: Sequence[float]) -> None:
    """No set of values takes less time within budgets between the least and all."""
    known = [measure(program, dropped) for dropped in list_subsets(values)]
    most, least = known[0].peaks[0], min(found.peaks[0] for found in known)
    for share in shares:
        limit = int(least + share * (most - least))
        best = min(found.seconds for found in known if found.peaks[0] <= limit)
        choice = choose(program, limit)
        assert choice.measured.peaks[0] <= limit
        assert choice.measured.seconds == pytest.approx(best, rel=1e-9)
        assert choice.bound is not None
        assert choice.bound <= (best - known[0].seconds) * (1 + 1e-6) + 1e-12
    with pytest.raises(PlanError, match="which is too little; the least possible is"):
        choose(program, least - 1)


@pytest.mark.slow
@settings(max_examples=scaled(60), deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(KINDS),
    st.sampled_from([ONE, TWO, FOUR]),
    st.floats(0.0, 1.0),
)
def test_the_choice_is_the_cheapest_there_is(
    seed: int, kind: str, mesh: Mesh, share: float
) -> None:
    program = small_program(seed, mesh, kind)
    values = droppable(program.graph)
    assume(len(values) <= MOST)
    check_cheapest(program, values, [share])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "kind"),
    [
        pytest.param(3762, "loop", id="the whole loop runs again"),
        pytest.param(335610, "loop", id="the backward computes it anyway, in a loop"),
        pytest.param(16, "chain", id="the backward computes it anyway"),
    ],
)
def test_what_decided_once_is_the_cheapest(seed: int, kind: str) -> None:
    program = small_program(seed, ONE, kind)
    check_cheapest(program, droppable(program.graph), [0.0, 0.6])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "mesh", "most"),
    [
        ("wired", ONE, 14),
        ("chain", ONE, 14),
        ("chain", FOUR, 12),
        ("loop", ONE, 12),
        ("loop", TWO, 12),
    ],
)
def test_of_many_values_the_choice_is_the_cheapest(kind: str, mesh: Mesh, most: int) -> None:
    programs = (small_program(seed, mesh, kind, most) for seed in range(500))
    named = ((program, droppable(program.graph)) for program in programs)
    program, values = next((p, v) for p, v in named if most - 1 <= len(v) <= most)
    check_cheapest(program, values, [0.0, 0.2, 0.5, 0.8])
