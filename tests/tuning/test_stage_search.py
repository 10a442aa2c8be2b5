"""`partition_search_space="pipeline"`: the best stages, their bound, and results as ever."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, pairwise

import mithril as ml
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mithril.runtime.balancing import cut as cutting
from mithril.runtime.balancing.cut import Unit, cut_optimally, find_least_time

from tests.tolerances import TOLERANCE
from tests.tuning.models import make_deep

SHAPES = {"input": (8, 32), "t": (8, 32)}
MESH = ml.Mesh(data=2, pipeline=2)


def compile_deep(mesh: ml.Mesh = MESH, **options: object) -> ml.CompiledModel:
    asked = {"auto_partition": True, "partition_search_space": "pipeline", "shapes": SHAPES}
    return ml.compile(make_deep(), ml.NumpyBackend(mesh), **{**asked, **options})  # type: ignore[arg-type]


def test_stages_are_found_with_a_bound_and_give_the_same() -> None:
    compiled = compile_deep()
    found = compiled.plan.search
    assert found is not None
    assert found.is_exact
    assert (found.space, found.objective) == ("pipeline", "throughput")
    assert found.variables >= 2
    assert len({stage.devices for stage in compiled.plan.stages}) == 2
    assert "search for throughput over 'pipeline'" in compiled.explain()
    rng = np.random.default_rng(0)
    batch = {name: rng.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}
    loss = compiled.evaluate(compiled.randomize_params(seed=0), batch)["loss"].numpy()
    one = ml.compile(make_deep(), ml.NumpyBackend())
    wanted = one.evaluate(one.randomize_params(seed=0), batch)["loss"].numpy()
    np.testing.assert_allclose(loss, wanted, *TOLERANCE["float32"])


@given(st.lists(st.integers(1, 9), min_size=2, max_size=7), st.integers(2, 4))
def test_the_slowest_stage_is_the_least_of_all_cuts(seconds: list[int], stages: int) -> None:
    stages = min(stages, len(seconds))
    units = [Unit(f"l{i}", float(s)) for i, s in enumerate(seconds)]
    found = cut_optimally(units, stages)
    ways = combinations(range(1, len(seconds)), stages - 1)
    edges = ([0, *inner, len(seconds)] for inner in ways)
    best = min(max(sum(seconds[a:b]) for a, b in pairwise(e)) for e in edges)
    assert found.slowest == best == find_least_time(units, stages, found)


def test_where_not_all_cuts_of_loops_are_tried_the_bound_is_a_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    units = [Unit("loop", 6.0, repeats=6), Unit("last", 4.0)]
    monkeypatch.setattr(cutting, "MOST_CUTS", 1)
    found = cut_optimally(units, 2)
    assert found.slowest == 6.0
    assert find_least_time(units, 2, found) == 5.0


def test_parameters_of_a_stage_keep_to_the_memory() -> None:
    free = compile_deep(max_memory_per_device="1 GB").plan.search
    assert free is not None
    assert free.limit == 10**9
    with pytest.raises(
        ml.PlanError, match=r"cannot be cut into 2 stages of which each holds at most 1000 B"
    ):
        compile_deep(max_memory_per_device=1000)


def test_what_a_device_holds_keeps_to_the_memory() -> None:
    plan = compile_deep().plan
    assert plan.search is not None
    between = (plan.search.memory + plan.memory().peak) // 2
    with pytest.raises(
        ml.PlanError,
        match=r"auto_partition finds no stages within .* a device: the fullest one holds .*; give more memory or stages",
    ):
        compile_deep(max_memory_per_device=between)


MISTAKES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "no axis": (
        lambda: compile_deep(ml.Mesh(data=4)),
        ml.OptionError,
        r"partition_search_space='pipeline' finds no stages: the mesh has no axis 'pipeline'.*; use another space",
    ),
    "no shapes": (
        lambda: compile_deep(shapes=None),
        ml.OptionError,
        r"partition_search_space='pipeline' has to know how long layers take.*; give shapes= to compile\(\)",
    ),
    "objective": (
        lambda: compile_deep(partition_objective="communication"),
        ml.OptionError,
        r"partition_objective='communication' is no objective of partition_search_space='pipeline', which cuts",
    ),
    "forbidden": (
        lambda: compile_deep(partition_constraints={"forbid": ["all_to_all"]}),
        ml.OptionError,
        r"partition_constraints\['forbid'\] and \['max_all_reduce_size'\] have no effect with partition_search_space='pipeline'",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    mistake, kind, text = MISTAKES[name]
    with pytest.raises(kind, match=text):
        mistake()
