"""The timeline of a plan: counted by hand, against schedules on paper, and what must always hold."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace
from pathlib import Path

import mithril as ml
import pytest
from mithril import ops
from mithril.cli.gpt import Sizes, gpt, megatron, transformer_block, with_loss
from mithril.cost import SIMULATED, Hardware, Level, PlanTimeline, predict_timeline
from mithril.cost.timeline import Costs, simulate
from mithril.errors import PlanError
from mithril.ir import Builder, Cause, Graph, Start, Wait
from mithril.mesh import Axis, Mesh, Sharding
from mithril.ops.collective import AllReduce
from mithril.partition.schedule import make
from mithril.plan import Execution, Plan, Port, Program, Run, Send, Stage, Timetable, Transfer
from mithril.plan.schedule import Schedule, Work
from mithril.types import DType, TensorType

CAUSE = Cause("x", "", "", "")
X = TensorType((4,), DType.float32)
SECOND = replace(
    SIMULATED,
    name="a second a kernel",
    rates={DType.float32: ((1.0, 1e300),)},
    vector_rate=1e300,
    kernel_seconds=1.0,
    levels=(Level("any", None, 1.5, 1e300),),
)
"""A kernel takes a second, an all_reduce of two devices, which is two messages, takes three."""
REAL = replace(
    SIMULATED, memory_bandwidth=1e9, kernel_seconds=1e-5, levels=(Level("any", None, 1e-5, 1e8),)
)


def with_execution(hardware: Hardware, **options: bool | float) -> Hardware:
    return replace(hardware, execution=Execution(**options))  # type: ignore[arg-type]


def plan_of(graph: Graph, mesh: Mesh) -> Plan:
    def ports(names: tuple[str, ...]) -> tuple[Port, ...]:
        return tuple(Port(name, X, Sharding.replicated(mesh, 1)) for name in names)

    inputs = tuple(value.name for value in graph.inputs)
    return Plan.of_program(mesh, Program(mesh, graph, ports(inputs), ports(tuple(graph.outputs))))


# ------------------------------------------------------------------ by hand


def reduce_between(*, as_start: bool) -> Plan:
    """Return exp, an all_reduce of it, a sine that needs neither, and the sum of both."""
    builder, reduce = Builder(), AllReduce(("data",), "sum")
    x = builder.input(X, "x")
    with builder.at(scope="first"):
        e = ops.exp(x)
    with builder.at(scope="first", cause=CAUSE):
        (r,) = builder.apply(Start(reduce) if as_start else reduce, e)
    with builder.at(scope="second"):
        s = ops.sin(x)
        if as_start:
            (r,) = builder.apply(Wait(), r)
        y = ops.add(r, s)
    return plan_of(builder.build({"y": y}), Mesh(data=2))


@pytest.mark.parametrize("as_start", [False, True])
@pytest.mark.parametrize(
    ("overlaps", "seconds", "exposed", "sine"), [(False, 6.0, 3.0, 4.0), (True, 5.0, 2.0, 1.0)]
)
def test_a_step_of_two_devices_is_as_counted_by_hand(
    as_start: bool, overlaps: bool, seconds: float, exposed: float, sine: float
) -> None:
    """Exp until 1, the all_reduce until 4; the sine beside or after it; the sum once both end."""
    timeline = predict_timeline(
        reduce_between(as_start=as_start), with_execution(SECOND, overlaps=overlaps)
    )
    assert timeline.seconds == seconds
    assert (timeline.communication, timeline.exposed) == ({"data": 3.0}, {"data": exposed})
    assert timeline.layers == {"first": 1.0, "second": 2.0}
    (row,) = timeline.rows
    assert row.devices == (0, 1)
    events = {event.name: (event.stream, event.start, event.end) for event in row.events}
    assert events == {
        "exp": ("compute", 0.0, 1.0),
        "all_reduce over data": ("communication", 1.0, 4.0),
        "sin": ("compute", sine, sine + 1),
        "add": ("compute", seconds - 1, seconds),
    }
    path = [("first", 1.0), ("all_reduce over data", 3.0), ("second", seconds - 4)]
    assert list(timeline.critical_path) == path
    assert timeline.bubble == 0.0


def test_a_crowded_processor_hides_nothing_of_what_it_carries() -> None:
    """More devices than cores: what carries data over loopback would be computing otherwise."""
    (level,) = SECOND.levels
    for carried, crowded, seconds in (
        (True, 2.0, 6.0), (True, 1.0, 5.0), (False, 2.0, 5.0),
    ):  # fmt: skip
        levels = (replace(level, by_processor=carried),)
        hardware = with_execution(SECOND, overlaps=True, largest_part=crowded)
        hardware = replace(hardware, levels=levels)
        assert hardware.hides_collectives == (seconds == 5)
        assert predict_timeline(reduce_between(as_start=False), hardware).seconds == seconds


def test_devices_in_turn_take_the_time_of_all() -> None:
    """Each of three kernels runs twice; the exchange is one."""
    timeline = predict_timeline(
        reduce_between(as_start=False), with_execution(SECOND, in_turn=True)
    )
    assert timeline.seconds == 2 * 3 + 3


def test_a_call_costs_what_it_costs_besides() -> None:
    hardware = replace(with_execution(SECOND), call_seconds=0.5)
    timeline = predict_timeline(reduce_between(as_start=False), hardware)
    assert timeline.seconds == 6.5
    assert timeline.critical_path[0] == ("call", 0.5)
    assert timeline.bubble == 0.0


def test_utilization_is_the_share_of_the_peak_rate() -> None:
    model = ml.Linear(dimension=64, bias=False)
    spec = ml.TensorSpec((16, 32), sharding=ml.P("data"))
    plan = ml.compile(model, ml.NumpyBackend(Mesh(data=2)), shapes={"input": spec}).plan
    timeline = predict_timeline(plan, with_execution(SIMULATED))
    assert timeline.flops >= 2 * 16 * 32 * 64
    assert timeline.utilization == pytest.approx(timeline.flops / (timeline.seconds * 2 * 1e9))


# ------------------------------------------------------------------ pipelines


def pipeline(schedule: Schedule, seconds: float) -> Plan:
    """Return a plan in which every action is one kernel, sent on in so many seconds by hand."""
    mesh = Mesh(pipeline=len(schedule.rows))
    parts = [Mesh.of_axes([Axis("pipeline", 1)], (i,)) for i in range(mesh.size)]
    builder = Builder()
    graph = builder.build({"y": ops.exp(builder.input(X, "x"))})
    stages = []
    for number, part in enumerate(parts):
        ports = tuple(Port(name, X, Sharding.replicated(part, 1)) for name in "xy")
        stages.append(Stage(str(number), Program(part, graph, ports[:1], ports[1:]), (number,)))
    on_paper = simulate(schedule, Costs(1, 1, 0, seconds))
    slots = {action: number for number, action in enumerate(on_paper.starts, start=1)}
    steps: list[Run | Send] = []
    transfers: dict[tuple[int, int], Transfer] = {}
    sent = itertools.count(len(slots) + 1)
    arrived: dict[tuple[int, Work, int], int] = {}
    for action in sorted(on_paper.starts, key=lambda a: (on_paper.starts[a], a.stage)):
        stage, work, m = action.stage, action.work, action.microbatch
        steps.append(Run(stage, (arrived.get((stage, work, m), 0),), (slots[action],), action))
        goal = stage + (1 if work == Work.forward else -1)
        if not 0 <= goal < len(parts):
            continue
        between = stage, goal
        if between not in transfers:
            lies = (Sharding.replicated(parts[i], 1) for i in between)
            transfers[between] = Transfer(X, *lies, CAUSE)
        arrived[goal, work, m] = next(sent)
        number = list(transfers).index(between)
        steps.append(Send(number, slots[action], arrived[goal, work, m], action))
    port = Port("x", X, Sharding.replicated(parts[0], 1))
    table = Timetable((port,), (0,), (), (), tuple(steps), tuple(transfers.values()))
    return Plan(mesh, tuple(stages), table)


@pytest.mark.parametrize(("devices", "microbatches"), [(2, 2), (2, 4), (4, 4), (4, 8), (3, 7)])
def test_the_bubble_of_1f1b_is_that_of_the_formula(devices: int, microbatches: int) -> None:
    hardware = replace(SECOND, levels=(Level("any", None, 0.0, 1e300),))
    plan = pipeline(make("1f1b", devices, microbatches), 0.0)
    timeline = predict_timeline(plan, hardware)
    assert timeline.bubble == pytest.approx((devices - 1) / (microbatches + devices - 1))
    assert timeline.seconds == 2 * (microbatches + devices - 1)
    assert [row.devices for row in timeline.rows] == [(i,) for i in range(devices)]
    check(timeline)


@pytest.mark.parametrize(
    ("name", "seconds"), [("gpipe", 0.0), ("gpipe", 1.0), ("1f1b", 0.0), ("1f1b", 0.25)]
)
def test_a_schedule_takes_as_long_as_on_paper(name: str, seconds: float) -> None:
    schedule = make(name, 4, 6)
    hardware = replace(SECOND, levels=(Level("any", None, seconds, 1e300),))
    timeline = predict_timeline(pipeline(schedule, seconds), hardware)
    on_paper = simulate(schedule, Costs(1, 1, 0, seconds))
    assert timeline.seconds == pytest.approx(on_paper.makespan)
    exposed = timeline.exposed.get("send", 0.0) / timeline.seconds
    assert timeline.bubble + exposed == pytest.approx(on_paper.bubble)
    assert {event.microbatch for event in timeline.rows[0].events} == set(range(6))
    check(timeline)


def test_what_is_sent_at_once_over_one_link_takes_turns() -> None:
    """Two values of a second each go from one device to another: the second comes at 3."""
    mesh = Mesh(stage=2)
    parts = [Mesh.of_axes([Axis("stage", 1)], (i,)) for i in range(2)]
    first, second = Builder(), Builder()
    x = first.input(X, "x")
    graphs = [first.build({"a": ops.exp(x), "b": x})]
    graphs += [second.build({"y": ops.add(second.input(X, "a"), second.input(X, "b"))})]
    stages = tuple(
        Stage(str(i), Program(part, graph, (), ()), (i,))
        for i, (part, graph) in enumerate(zip(parts, graphs, strict=True))
    )
    lies = [Sharding.replicated(part, 1) for part in parts]
    transfer = Transfer(X, *lies, CAUSE)
    steps = (Run(0, (0,), (1, 2)), Send(0, 1, 3), Send(0, 2, 4), Run(1, (3, 4), (5,)))
    plan = Plan(mesh, stages, Timetable((), (0,), (), (), steps, (transfer,)))
    hardware = replace(SECOND, levels=(Level("any", None, 1.0, 1e300),))
    timeline = predict_timeline(plan, hardware)
    assert timeline.seconds == 1 + 2 + 1
    assert timeline.communication == {"send": 2.0}
    assert list(timeline.critical_path) == [("exp", 1.0), ("send", 2.0), ("add", 1.0)]
    in_turn = predict_timeline(plan, with_execution(hardware, in_turn=True))
    assert (in_turn.seconds, in_turn.bubble) == (4.0, 0.0)
    check(timeline)


# ------------------------------------------------------------------ what always holds


def compile_gpt(mesh: Mesh, layers: int = 2, *, at_rest: bool = False) -> ml.CompiledModel:
    sizes = Sizes(layers, width=16, heads=4, hidden=32, context=8, batch=8)
    model = with_loss(gpt(32, sizes))
    options = {}
    if "tensor" in mesh.names:
        megatron(model)
    if at_rest:
        model.at_rest({"*": ml.P("data")})
    if "pipeline" in mesh.names:
        last = mesh.sizes["pipeline"] - 1
        places = {"embed": 0, "position": 0, "norm": last, "head": last}
        places |= {f"block{n}": n * (last + 1) // layers for n in range(layers)}
        for name, stage in places.items():
            model.stage(f"gpt.{name}", stage)
        model.stage("cross_entropy_0", last)
        options["pipeline"] = ml.PipelineOptions(schedule="1f1b", microbatch_size=2)
    spec = ml.TensorSpec((8, 8), "int32", ml.P("data" if "data" in mesh.names else None))
    shapes = {"tokens": spec, "target": spec}
    return ml.compile(model, ml.NumpyBackend(mesh), shapes=shapes, **options)  # type: ignore[arg-type]


def repeated(count: int, mesh: Mesh) -> Plan:
    sizes = Sizes(1, width=16, heads=4, hidden=32, context=8, batch=8)
    block = transformer_block(sizes, "block")
    column, row = ml.P("tensor", None), ml.P(None, "tensor")
    block.shard({f"attn.{part}.weight": column for part in "qkv"})
    block.shard({"attn.o.weight": row, "mlp.up.weight": column, "mlp.down.weight": row})
    block.shard({"attn.[qkv].bias": ml.P("tensor"), "mlp.up.bias": ml.P("tensor")})
    model = ml.Model()
    model |= ml.Repeat(block, count, name="blocks")(input="x", output="y")
    spec = ml.TensorSpec((8, 8, 16), sharding=ml.P("data"))
    return ml.compile(model, ml.NumpyBackend(mesh), shapes={"x": spec}).plan


def check(timeline: PlanTimeline) -> None:
    """Refuse what no timeline may be."""
    assert timeline.exposed.keys() == timeline.communication.keys()
    for key, seconds in timeline.communication.items():
        assert 0 <= timeline.exposed[key] <= seconds * (1 + 1e-9)
    total = sum(seconds for _, seconds in timeline.critical_path)
    assert total == pytest.approx(timeline.seconds)
    assert 0 <= timeline.bubble < 1
    ends = []
    for row in timeline.rows:
        streams: dict[str, float] = {}
        compute = 0.0
        for event in row.events:
            assert event.start >= streams.get(event.stream, 0.0) - 1e-9 * timeline.seconds
            streams[event.stream] = event.end
            compute += event.seconds if event.stream == "compute" else 0.0
        assert len(row.events) == len(list(row.events))
        assert timeline.seconds >= compute * (1 - 1e-9)
        ends += streams.values()
    assert max(ends) == pytest.approx(timeline.seconds)


EXECUTIONS = [
    Execution(), Execution(fuses=True), Execution(overlaps=True), Execution(True, overlaps=True),
    Execution(in_turn=True), Execution(adds_in_product=True),
]  # fmt: skip
MESHES = [
    Mesh(data=1), Mesh(data=4), Mesh(data=2, tensor=2), Mesh(pipeline=2),
    Mesh(pipeline=2, tensor=2),
]  # fmt: skip


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_what_always_holds(mesh: Mesh) -> None:
    plan = compile_gpt(mesh, at_rest=mesh == Mesh(data=4)).plan
    found = {}
    for execution in EXECUTIONS:
        timeline = predict_timeline(plan, replace(REAL, execution=execution))
        check(timeline)
        found[execution] = timeline.seconds
    assert found[Execution(overlaps=True)] <= found[Execution()]
    assert found[Execution(fuses=True)] < found[Execution()]
    assert found[Execution(adds_in_product=True)] < found[Execution()]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_explain_and_the_timeline_say_the_same_of_collectives(mesh: Mesh) -> None:
    plan = compile_gpt(mesh, at_rest=mesh == Mesh(data=4)).plan
    timeline = plan.timeline()
    assert (timeline.profile, plan.pricing and plan.pricing.profile) == ("simulated",) * 2
    sends = {event.name for row in timeline.rows for event in row.events if event.kind == "send"}
    assert bool(sends) == ("pipeline" in mesh.names)
    if not sends:  # one stage: every device has every collective
        seconds: dict[str, float] = {}
        for row in plan.collectives():
            key = "+".join(row.axes)
            seconds[key] = seconds.get(key, 0.0) + row.cause.seconds * row.times
        assert timeline.communication == pytest.approx(seconds)
    moved: dict[str, int] = {}
    times = plan.timetable.times()
    for row in timeline.rows:
        for event in row.events:
            if event.stream == "communication":
                moved["+".join(event.axes)] = moved.get("+".join(event.axes), 0) + event.bytes
    expected = {axes: nbytes for axes, nbytes in plan.bytes_by_axis().items() if axes != "send"}
    assert moved == expected
    assert sum(times.values()) >= len(plan.stages)


def test_sends_take_what_explain_says() -> None:
    plan = compile_gpt(Mesh(pipeline=2)).plan
    sent = [row for row in plan.collectives() if row.kind == "send"]
    timeline = predict_timeline(plan, with_execution(SIMULATED, overlaps=True))
    # Each send is one of the sender and one of the receiver, which are all devices.
    total = sum(row.cause.seconds * row.times for row in sent)
    assert timeline.communication["send"] == pytest.approx(total)


def test_iterations_of_a_loop_are_added_up() -> None:
    hardware = with_execution(REAL, overlaps=True)
    mesh = Mesh(data=2, tensor=2)
    short, long, longest = (predict_timeline(repeated(n, mesh), hardware) for n in (3, 4, 9))
    check(longest)
    period = long.seconds - short.seconds
    assert longest.seconds == pytest.approx(long.seconds + 5 * period)
    assert longest.layers["blocks.mlp.up"] == pytest.approx(3 * short.layers["blocks.mlp.up"])
    counts = [len(timeline.rows[0].events) for timeline in (short, long, longest)]
    assert counts[2] - counts[1] == 5 * (counts[1] - counts[0]) > 0


def test_a_loop_waits_for_what_was_started_before_it() -> None:
    """The first iteration is behind an all_reduce, the later ones are not."""
    builder, inner = Builder(), Builder()
    reduce = AllReduce(("data",), "sum")
    body_x = inner.input(X, "x")
    (reduced,) = inner.apply(reduce, ops.exp(body_x))
    body = inner.build({"x": reduced})
    x = builder.input(X, "x")
    with builder.at(cause=CAUSE):
        (sum_of_all,) = builder.apply(reduce, x)
    (last,) = builder.apply(ml.ir.Repeat(body, 4, 1, 0), x)
    graph = builder.build({"y": ops.add(last, sum_of_all)})
    timeline = predict_timeline(plan_of(graph, Mesh(data=2)), with_execution(SECOND, overlaps=True))
    # The first exp is hidden: 3 (all_reduce) + 3, then three times 1 + 3, then the sum.
    assert timeline.seconds == 6 + 3 * 4 + 1
    assert timeline.exposed == {"data": 15 - 1}
    check(timeline)


# ------------------------------------------------------------------ forms and errors


def test_no_times_without_a_profile_of_the_devices() -> None:
    plan = reduce_between(as_start=False)
    with pytest.raises(PlanError, match="no hardware profile describes 'npu'; measure one with"):
        predict_timeline(plan, replace(SIMULATED, unknown_platform="npu"))


def test_the_trace_is_what_perfetto_reads(tmp_path: Path) -> None:
    plan = compile_gpt(Mesh(pipeline=2)).plan
    timeline = predict_timeline(plan, with_execution(REAL, overlaps=True))
    timeline.to_chrome_trace(tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    whole = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert len(whole) == sum(len(row.events) for row in timeline.rows)
    named = {e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"}
    assert named == {"device 0", "device 1"}
    assert {event["cat"] for event in whole} == {"compute", "send", "receive"}
    assert max(e["ts"] + e["dur"] for e in whole) == pytest.approx(1e6 * timeline.seconds)
    assert {"layer", "phase", "kind", "bytes", "microbatch"} <= whole[0]["args"].keys()


def test_the_text_says_where_time_goes_and_who_says_so() -> None:
    timeline = predict_timeline(reduce_between(as_start=False), with_execution(SECOND))
    assert str(timeline).splitlines() == [
        "step 6.00 s, predicted with profile 'a second a kernel'",
        "  utilization    0.0 %",
        "  bubble         0.0 %",
        "  communication  data: 3.00 s, of which 3.00 s are exposed",
        "  compute        second: 2.00 s",
        "  compute        first: 1.00 s",
    ]


def test_thousands_of_devices_and_deep_loops_cost_no_more() -> None:
    """96 blocks on 4096 devices; the limit of the issue is on the time of this process."""
    plan = repeated(96, Mesh(data=512, tensor=8))
    started = time.process_time()
    timeline = predict_timeline(plan, with_execution(REAL, overlaps=True))
    assert time.process_time() - started < 0.3
    assert [len(row.devices) for row in timeline.rows] == [4096]
