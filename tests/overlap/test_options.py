"""Options of overlap: what each does, where it has no effect, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import mithril as ml
import numpy as np
import pytest
from mithril.compiler import PlanOptions, Request, Target, make_plan
from mithril.cost import SIMULATED
from mithril.ir import Builder, Graph, Start
from mithril.ir.rewrite import all_nodes
from mithril.mesh import Mesh, P, Sharding
from mithril.partition.overlap import Overlap
from mithril.plan import Execution, Plan
from mithril.report import explain
from mithril.runtime.planned import plan_backend
from mithril.sharding import Layout
from mithril.types import DType, TensorType

WIDTH = 2048
SHAPES = {"x": ml.TensorSpec((8, WIDTH), "float32", P("data"))}


def mlp(layers: int = 3) -> ml.Model:
    model = ml.Model()
    for number in range(layers):
        model += ml.Linear(WIDTH, name=f"layer_{number}")(
            input="x" if not number else f"x{number}", output=f"x{number + 1}"
        )
    return model


def starts_of(plan: Plan) -> int:
    nodes = (node for stage in plan.stages for node in all_nodes(stage.program.graph))
    return sum(isinstance(node.op, Start) for node in nodes)


def compiled_on(backend: ml.Backend, **options: object) -> Plan:
    compiled = ml.compile(mlp(), backend, zero=3, shapes=SHAPES, inference=True, **options)
    return compiled.plan


def planned_for(**options: object) -> ml.Backend:
    backend = plan_backend(Mesh(data=2), "a100-80gb")
    opened = ml.open_backend("numpy", Mesh(data=2), **options)
    backend.communication = opened.communication
    return backend


@pytest.mark.parametrize(
    ("options", "waits"),
    [
        ({"overlap_communication": False}, True),
        ({"communication_overlap_strategy": "none"}, True),
        ({"overlap_communication": False, "communication_overlap_strategy": "none"}, True),
        ({"overlap_communication": True}, False),
        ({"communication_overlap_strategy": "auto"}, False),
        ({"overlap_communication": True, "communication_overlap_strategy": "bucket"}, False),
        ({}, False),
    ],
)
def test_options_of_compile_and_of_backends_place_collectives(
    options: dict[str, object], waits: bool
) -> None:
    for plan in (
        compiled_on(plan_backend(Mesh(data=2), "a100-80gb"), **options),
        compiled_on(planned_for(**options)),
    ):
        hidden = [row.cause.hidden for row in plan.collectives()]
        assert None not in hidden
        assert (sum(hidden) == 0) == waits
        assert (starts_of(plan) == len(hidden)) == waits


def test_compile_overrides_its_backend() -> None:
    backend = planned_for(overlap_communication=False)
    assert starts_of(compiled_on(backend)) == len(compiled_on(backend).collectives())
    plan = compiled_on(backend, overlap_communication=True)
    assert starts_of(plan) < len(plan.collectives())


@pytest.mark.parametrize("is_on", [True, False])
def test_the_guides_have_it_among_the_options_of_tensor_parallelism(is_on: bool) -> None:
    backend = ml.NumpyBackend(
        Mesh(data=2, model=2), tensor_parallel_config={"tp_size": 2, "overlap_comm": is_on}
    )
    overlap = backend.communication.overlap
    assert overlap.strategy == ("auto" if is_on else "none")
    assert overlap.said == f"tensor_parallel_config['overlap_comm']={is_on}"


def test_functions_follow_their_backend() -> None:
    weight = ml.TensorSpec((16, 16), "float32", P("data"))
    for is_on in (True, False):
        backend = planned_for(overlap_communication=is_on)
        function = ml.jit(lambda x, w: x @ w, backend=backend, out_shardings=P())
        plan = function.plan(ml.TensorSpec((8, 16), "float32"), weight)
        assert plan.collectives()
        assert starts_of(plan) == (0 if is_on else len(plan.collectives()))


# ------------------------------------------------------------------ where it has no effect


def test_backends_on_which_nothing_overlaps_say_so() -> None:
    backend = ml.NumpyBackend(Mesh(data=2))
    for options, said in (
        ({"overlap_communication": True}, "overlap_communication=True"),
        ({"overlap_communication": False}, "overlap_communication=False"),
        ({"communication_overlap_strategy": "bucket"}, "communication_overlap_strategy='bucket'"),
    ):
        plan = compiled_on(backend, **options)
        why = "a program waits for each collective where it is issued"
        assert f"note: {said} changes nothing on backend 'numpy': {why}" in explain(plan)
        assert not starts_of(plan)
    assert "changes nothing" not in explain(compiled_on(backend))
    assert "hidden" not in explain(compiled_on(backend))


def gathered() -> tuple[Graph, Request]:
    builder = Builder()
    x = builder.input(TensorType((4,), DType.float32), "x")
    mesh = Mesh(data=2)
    lies, leaves = Sharding.of(mesh, P("data"), 1), Sharding.of(mesh, P(), 1)
    return builder.build({"y": x}), Request({"x": Layout(lies), "y": Layout(leaves=leaves)})


def plan_with(execution: Execution, overlap: Overlap) -> Plan:
    graph, request = gathered()
    profile = replace(SIMULATED, execution=execution)
    target = Target("some", Mesh(data=2), frozenset(), hardware=profile)
    return make_plan(graph, request, target, PlanOptions(overlap=overlap))


@pytest.mark.parametrize(
    ("execution", "why"),
    [
        (Execution(schedules=True, overlaps=True), "it decides by itself where collectives start"),
        (Execution(schedules=True), "it decides by itself where collectives start and end"),
        (Execution(in_turn=True, overlaps=True), "its devices compute one after the other"),
        (Execution(), "a program waits for each collective where it is issued"),
    ],
)
def test_plans_say_why_nothing_was_placed(execution: Execution, why: str) -> None:
    asked = Overlap("auto", "overlap_communication=True")
    (note,) = plan_with(execution, asked).notes
    assert note.startswith(f"overlap_communication=True changes nothing on backend 'some': {why}")
    assert not plan_with(execution, Overlap()).notes


# ------------------------------------------------------------------ what is refused


def test_what_an_engine_decides_cannot_be_forbidden() -> None:
    asked = Overlap("none", "overlap_communication=False")
    with pytest.raises(ml.OptionError) as raised:
        plan_with(Execution(schedules=True, overlaps=True), asked)
    assert str(raised.value) == (
        "overlap_communication=False is not available on backend 'some', which decides by itself "
        "what goes on beside what; leave it out"
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"communication_overlap_strategy": "buckets"},
            "communication_overlap_strategy='buckets' does not exist; did you mean 'bucket'?; "
            "known: 'auto', 'none', 'bucket', 'decompose'",
        ),
        (
            {"overlap_communication": 1},
            "overlap_communication=1 is neither True nor False; give one of them",
        ),
        (
            {"overlap_communication": True, "communication_overlap_strategy": "none"},
            "overlap_communication=True is given together with communication_overlap_strategy="
            "'none', which says the opposite; leave one of them out",
        ),
        (
            {"overlap_communication": False, "communication_overlap_strategy": "auto"},
            "overlap_communication=False is given together with communication_overlap_strategy="
            "'auto', which says the opposite; leave one of them out",
        ),
    ],
)
def test_values_that_are_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(ml.OptionError) as raised:
        ml.compile(mlp(), ml.NumpyBackend(), **options)
    assert str(raised.value) == text
    with pytest.raises(ml.OptionError) as raised:
        ml.NumpyBackend(Mesh(data=2), **options)
    assert str(raised.value) == text


def test_functions_are_told_to_ask_their_backend() -> None:
    with pytest.raises(ml.OptionError, match="option 'overlap_communication' makes no sense for"):
        ml.jit(np.sin, overlap_communication=True)
