"""Plans of searches: one is made for each different choice, however many searches find it."""

from __future__ import annotations

import gc
from importlib import import_module

import mithril as ml
import pytest
from mithril.plan import Plan
from mithril.runtime.planned import plan_backend
from mithril.sharding import Known, MovePrices, Search, Way

pipeline = import_module("mithril.compiler.pipeline")
searching = import_module("mithril.partition.search")


def list_programs(plan: Plan) -> str:
    """Return what devices run, without what a search says of it."""
    return "\n".join(str(stage.program.graph) for stage in plan.stages)


@pytest.mark.parametrize("width", [32, 4096])
def test_a_choice_that_several_searches_find_is_planned_once(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    laid_out: list[str] = []
    made: list[str] = []
    lay_out, finish = pipeline._lay_out, pipeline._finish_plan

    def note_laid_out(*given: object) -> object:
        parts = lay_out(*given)
        laid_out.append(list_programs(parts.plan))
        return parts

    def note_made(parts: object, *given: object) -> Plan:
        made.append(list_programs(parts.plan))  # type: ignore[attr-defined]
        plan: Plan = finish(parts, *given)
        return plan

    monkeypatch.setattr(pipeline, "_lay_out", note_laid_out)
    monkeypatch.setattr(pipeline, "_finish_plan", note_made)
    model = ml.Model(name="mlp")
    model |= ml.Linear(width, name="up")(input="input", output="hidden")
    model += ml.Linear(32, name="down")(output="output")
    backend = plan_backend(ml.Mesh(a=4, b=2), "h100-sxm")
    ml.compile(model, backend, auto_partition=True, shapes={"input": (4096, 32)}).plan  # noqa: B018
    assert len(laid_out) > len(made) == len(set(made))
    assert set(made) == set(laid_out)


def test_a_way_that_costs_more_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss as one op and expanded; of further shares that are hidden the better one."""
    searched: list[tuple[tuple[str, ...], float, object]] = []
    search_in = searching._search_in

    def note(way: Way, search: Search, *given: object) -> object:
        searched.append((search.spaces, search.hidden, way.graph))
        return search_in(way, search, *given)

    monkeypatch.setattr(searching, "_search_in", note)
    model = ml.Model()
    model |= ml.Linear(4096, name="head")(input="x", output="logits")
    model |= ml.CrossEntropy(name="end")(input="logits", target="target", output="loss")
    shapes = {"x": ml.TensorSpec((64, 32)), "target": ml.TensorSpec((64,), "int32")}
    backend = plan_backend(ml.Mesh(a=4, b=2), "h100-sxm")
    ml.compile(model, backend, auto_partition=True, shapes=shapes).plan  # noqa: B018
    first = [graph for spaces, hidden, graph in searched if (spaces, hidden) == (("mixed",), 0.0)]
    later = [graph for spaces, hidden, graph in searched if (spaces, hidden) == (("mixed",), 0.5)]
    assert len(first) == 2
    assert len(later) == 1
    assert later[0] in first


def list_known() -> list[object]:
    """Return what searches share that is there, reachable or not."""
    kinds = (Known, MovePrices, Way)  # by `type`: others warn who are asked for their class
    return [one for one in gc.get_objects() if type(one) in kinds]


def test_what_searches_share_is_gone_with_them() -> None:
    """Nothing is left in a circle, which only the collector of garbage would find."""
    model = ml.Linear(32, name="head")
    backend = plan_backend(ml.Mesh(a=4), "h100-sxm")
    gc.collect()
    gc.disable()
    try:
        before = set(map(id, list_known()))
        plan = ml.compile(model, backend, auto_partition=True, shapes={"input": (64, 32)}).plan
        kept = [one for one in list_known() if id(one) not in before]
    finally:
        gc.enable()
    assert plan.search is not None
    assert not [one for one in kept if not isinstance(one, Known) or one.ways or one.prices]
