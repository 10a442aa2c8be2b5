"""The order of axes in which a plan sends least is found, and taken where that is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Never

import mithril as ml
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril.cost import SIMULATED, Hardware, Level, collective_seconds, transfer_seconds
from mithril.cost.axis_order import find_axis_order, list_orders
from mithril.cost.pairs import exchange_seconds
from mithril.engine import Engine
from mithril.engine.numpy_engine import NumpyEngine
from mithril.mesh import Mesh, P
from mithril.ops.collective import collective_of
from mithril.plan.timetable import Send
from mithril.runtime.planned import plan_backend

from tests.conformance.engines import BACKENDS, opened
from tests.profiles import scaled
from tests.topology.models import (
    ALONE,
    ATOL,
    GIVEN,
    NODES,
    RTOL,
    T,
    X,
    check_same,
    evaluated,
    perceptron,
    staged,
)

# ------------------------------------------------------------------ the search


def busy(mesh: Mesh, hardware: Hardware, specs: dict[str, P]) -> ml.CompiledModel:
    shapes = {n: ml.TensorSpec(v.shape, sharding=P("data")) for n, v in (("x", X), ("t", T))}
    return ml.compile(perceptron(**specs), ml.NumpyBackend(mesh, hardware=hardware), shapes=shapes)


def price(plan: ml.Plan, order: tuple[str, ...], hardware: Hardware) -> float:
    """Return what the collectives of a plan without loops take in an order, each by itself."""
    mesh, seconds = plan.mesh.reorder(order), 0.0
    for node in plan.only_stage.program.graph.nodes:
        if (op := collective_of(node.op)) is not None:
            nbytes = op.count_bytes([value.type for value in node.inputs])
            seconds += exchange_seconds(op, nbytes, mesh, hardware)
    return seconds


LEVELS = st.sampled_from([(2,), (4,), (2, 4), (4, 8), (2, 4, 8), (3, 6), ()])


@settings(max_examples=scaled(40), deadline=None)
@given(st.data())
def test_no_order_is_better_than_the_one_that_is_found(data: st.DataObject) -> None:
    """All orders are priced, row by row, without what the search leaves out."""
    sizes = {n: data.draw(st.integers(1, 3)) for n in ("data", "tensor", "pipe")}
    given_order = tuple(data.draw(st.permutations(tuple(sizes))))
    counts = data.draw(LEVELS)
    levels = [Level(f"l{n}", n, 1e-6 * n, 1e10 / n**2) for n in counts]
    hardware = replace(SIMULATED, levels=(*levels, Level("any", None, 1e-4, 1e7)))
    axes = st.sampled_from([None, "data", "tensor", "pipe", ("pipe", "tensor"), ("tensor", "pipe")])
    specs = {n: P(data.draw(axes), None) for n in ("up", "down")}
    plan = busy(Mesh(sizes, order=given_order), hardware, specs).plan
    found = find_axis_order(plan, hardware)
    prices = {order: price(plan, order, hardware) for order in permutations(sizes)}
    assert found.seconds == pytest.approx(min(prices.values()))
    assert prices[found.order] == pytest.approx(found.seconds)
    given_price = prices[plan.mesh.order or plan.mesh.names]
    assert found.seconds_as_given == pytest.approx(given_price)
    if given_price == pytest.approx(found.seconds):
        assert found.order == found.given


def test_groups_may_cross_different_levels() -> None:
    """Of pairs three devices apart in nodes of four, one is inside a node and two are not."""
    hardware = replace(NODES, levels=(Level("node", 4, 1e-6, 1e10), NODES.levels[1]))
    link = hardware.link(Mesh(data=2, tensor=3), ["data"], "all_reduce")
    assert (link.latency, link.bandwidth) == (1e-5, 1e8)


def test_sends_between_stages_count() -> None:
    sizes = {"data": 2, "pipeline": 2}
    backend = ml.NumpyBackend(Mesh(sizes), hardware=NODES, network_topology_aware=True)
    compiled = ml.compile(staged(), backend, shapes={"x": X.shape, "t": T.shape}, inference=True)
    (note,) = (note for note in compiled.plan.notes if "network" in note)
    assert note.startswith(
        "network_topology_aware=True: the order of axes stays ('data', 'pipeline')"
    )
    turned = ml.NumpyBackend(Mesh(pipeline=2, data=2), hardware=NODES, network_topology_aware=True)
    compiled = ml.compile(staged(), turned, shapes={"x": X.shape, "t": T.shape}, inference=True)
    assert compiled.plan.mesh == Mesh(pipeline=2, data=2, order=("data", "pipeline"))


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("slow", [1e6, 1e9])
def test_no_order_of_stages_is_better(nodes: int, slow: float) -> None:
    """What is sent is priced in plans that were made in each order."""
    outer = Level("network", None, 1e-5, slow)
    hardware = replace(SIMULATED, levels=(Level("node", nodes, 1e-6, 1e10), outer))
    sizes, shapes = {"pipeline": 2, "data": 2, "tensor": 2}, {"x": X.shape, "t": T.shape}
    found, prices = None, {}
    for order in permutations(sizes):
        mesh = Mesh(sizes, order=order)
        model = staged()
        model.shard({"all.*.weight": P("tensor", None)})
        plan = ml.compile(model, ml.NumpyBackend(mesh, hardware=hardware), shapes=shapes).plan
        found = found or find_axis_order(plan, hardware)
        sent = Counter(step.transfer for step in plan.timetable.steps if isinstance(step, Send))
        prices[order] = price_stages(plan, hardware) + sum(
            n * transfer_seconds(plan.timetable.transfers[i], hardware) for i, n in sent.items()
        )
    assert len({f"{seconds:.4e}" for seconds in prices.values()}) > 1
    assert found.seconds == pytest.approx(min(prices.values()))
    assert prices[found.order] == pytest.approx(found.seconds)


def price_stages(plan: ml.Plan, hardware: Hardware) -> float:
    """Return what the collectives of all stages take."""
    times = plan.timetable.times()
    return sum(
        times[number] * row.times
        * collective_seconds(row.kind, row.bytes, row.axes, stage.program.mesh, hardware)
        for number, stage in enumerate(plan.stages)
        for row in stage.program.collectives()
    )  # fmt: skip


def test_720_orders_are_compared() -> None:
    names = [f"a{n}" for n in range(6)]
    model = ml.Linear(8, bias=False, sharding={"weight": P(None, ("a0", "a3"))})
    slow = Level("any", None, 1e-5, 1e8)
    nodes = replace(SIMULATED, levels=(Level("node", 4, 1e-6, 1e10), slow))
    backend = plan_backend(Mesh(dict.fromkeys(names, 2)), nodes)
    plan = ml.compile(model, backend, shapes={"input": (4, 64)}, inference=True).plan
    assert len(list(list_orders(plan.mesh))) == 720
    found = find_axis_order(plan, nodes)
    assert set(found.order[-2:]) == {"a0", "a3"}
    assert found.seconds < found.seconds_as_given


# ------------------------------------------------------------------ the option


def test_the_busiest_axis_is_innermost(golden: Callable[[str, str], None]) -> None:
    backend = ml.NumpyBackend(GIVEN, hardware=NODES, network_topology_aware=True)
    shapes = {n: ml.TensorSpec(v.shape, sharding=P("data")) for n, v in (("x", X), ("t", T))}
    compiled = ml.compile(perceptron(), backend, shapes=shapes)
    turned = Mesh(data=2, tensor=2, order=("tensor", "data"))
    assert compiled.plan.mesh == compiled.backend.mesh == turned
    assert backend.mesh == GIVEN
    assert compiled.recompiles == 1
    shared = ml.compile(perceptron(), compiled.backend, shapes=shapes)
    assert (shared.backend, shared.plan.notes) == (compiled.backend, ())
    golden("axis_order_plan.txt", f"{compiled.plan}\n")
    assert "network_topology_aware=True: order ('tensor', 'data')" in compiled.explain()
    check_same(evaluated(perceptron(), backend), ALONE)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_option_on_every_backend(backend: str) -> None:
    opened_one = opened(backend, data=2, tensor=2)
    before = opened_one.hardware
    opened_one.hardware, opened_one.is_topology_aware = NODES, True
    try:
        found = evaluated(perceptron(), opened_one)
        compiled = ml.compile(perceptron(), opened_one)
        placed = {n: opened_one.array(v, sharding=P("data")) for n, v in (("x", X), ("t", T))}
        params = compiled.randomize_params(3)
        for _ in range(2):  # parameters were moved by the first
            outputs, _ = compiled.evaluate(params, placed, {"loss": 1.0})
        assert compiled.plan.mesh.order == ("tensor", "data")
        np.testing.assert_allclose(outputs["loss"].numpy(), ALONE["loss"], RTOL, ATOL)
    finally:
        opened_one.hardware, opened_one.is_topology_aware = before, False
    check_same(found, ALONE)


def test_a_step_is_laid_by_its_own_plan() -> None:
    backend = ml.NumpyBackend(GIVEN, hardware=NODES, network_topology_aware=True)
    shapes = {n: ml.TensorSpec(v.shape, sharding=P("data")) for n, v in (("x", X), ("t", T))}
    losses = []
    for where in (backend, ml.NumpyBackend(GIVEN)):
        step = ml.train_step(perceptron(), where, ml.optim.adamw(0.01), shapes=shapes, zero=2)
        state = step.init()
        for _ in range(2):
            state, metrics = step(state, {"x": X, "t": T})
        losses.append(float(metrics["loss"]))
        if where is backend:
            assert step.plan.mesh == Mesh(data=2, tensor=2, order=("tensor", "data"))
            (note,) = (n for n in step.plan.notes if "network_topology_aware" in n)
            assert "order ('tensor', 'data') instead of ('data', 'tensor')" in note
            prices = [price(step.plan, order, NODES) for order in permutations(GIVEN.names)]
            assert prices[1] < prices[0]
    assert losses[0] == pytest.approx(losses[1], rel=RTOL)


def notes_of(model: ml.Model | ml.Layer, backend: ml.Backend, **shapes: object) -> list[str]:
    plan = ml.compile(model, backend, shapes=shapes, inference=True).plan
    return [note.removeprefix("network_topology_aware=True: ") for note in plan.notes]


STAYS = "the order of axes stays ('data', 'tensor'), as given"


def test_why_the_order_stays() -> None:
    backend = ml.NumpyBackend(GIVEN, network_topology_aware=True)  # all links are alike
    split = ml.Linear(4, bias=False, sharding={"weight": P(None, "tensor")})
    (note,) = notes_of(split, backend, input=(8, 64))
    assert note.startswith(f"{STAYS}: predicted communication ")
    assert note.endswith("and no less in any other")
    assert notes_of(ml.Relu(), backend, input=(8, 64)) == [f"{STAYS}: nothing is communicated"]
    placed = ml.Model()
    placed |= ml.Linear(8, device_id=1, name="up")(input="x", output="h")
    placed |= ml.Linear(4, device_id=2, name="down")(input="h", output="y")
    assert f"{STAYS}: layers are placed by device_id" in notes_of(placed, backend, x=(8, 64))
    backend.hardware = replace(SIMULATED, unknown_platform="npu")
    stays = f"{STAYS}: no hardware profile describes platform 'npu'"
    assert notes_of(split, backend, input=(8, 64)) == [stays]


def test_an_engine_of_one_order_says_so() -> None:
    class Fixed(NumpyEngine):
        name = "fixed"

        def part(self, mesh: Mesh) -> Never:
            return Engine.part(self, mesh)

    with pytest.raises(ml.BackendError) as raised:
        ml.Backend(Fixed(GIVEN)).reorder(("tensor", "data"))
    assert str(raised.value) == (
        "backend 'fixed' has its devices in one order of mesh axes; open it on "
        "Mesh(data=2, tensor=2, order=('tensor', 'data')), or leave out network_topology_aware"
    )


def test_one_device_has_one_order() -> None:
    backend = ml.NumpyBackend(network_topology_aware=True)
    assert notes_of(ml.Linear(4), backend, input=(8, 64)) == []


def test_what_cannot_be_searched_is_refused() -> None:
    with pytest.raises(ml.OptionError) as raised:
        ml.NumpyBackend(GIVEN, network_topology_aware="yes")
    assert str(raised.value) == (
        "network_topology_aware='yes' is neither True nor False; give one of them"
    )
    mesh = Mesh({f"a{n}": 2 for n in range(7)})
    with pytest.raises(ml.OptionError) as raised:
        ml.NumpyBackend(mesh, network_topology_aware=True)
    assert str(raised.value) == (
        "network_topology_aware=True compares all orders of up to 6 mesh axes of several devices; "
        f"{mesh!r} has 7; leave it out, and say Mesh(…, order=)"
    )
