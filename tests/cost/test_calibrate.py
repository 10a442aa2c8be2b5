"""Calibration: what is measured is what was put in, and is used where it was measured."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path

import mithril as ml
import pytest
from mithril.cost import SIMULATED, Level, Link, find_hardware, op_seconds
from mithril.cost.calibrate import calibrate, count_measurements, prepare_reference
from mithril.cost.calibrate.compute import measure_memory, measure_products, watch_products
from mithril.cost.calibrate.fit import fit_line
from mithril.cost.calibrate.links import _start_up, measure_kind, measure_levels
from mithril.cost.calibrate.timing import Timer
from mithril.cost.hardware import Calibration, Hardware
from mithril.cost.kernels import find_kernels
from mithril.cost.profiles.machine import describe_machine
from mithril.cost.profiles.store import find_folder, find_path, find_stored, list_stored, save
from mithril.engine import Engine, Executable
from mithril.engine.numpy_engine import NumpyEngine
from mithril.engine.planned import PlannedEngine
from mithril.errors import BackendError, OptionError
from mithril.ir import Builder
from mithril.ir.op import Types
from mithril.ir.rewrite import all_nodes
from mithril.mesh import Mesh
from mithril.ops.collective import class_of
from mithril.ops.conv import Convolution
from mithril.ops.functions import Exp, Tanh
from mithril.ops.nn import Gelu
from mithril.plan import Execution, Program
from mithril.types import DType, TensorType

KERNEL, BANDWIDTH, RATE = 20e-6, 4e9, 5e9
LINK = Link(50e-6, 2e9)
CLOCK = [0.0]
"""What engines of this file tell the time by."""
BUSY = (0.0, 0.0)
"""From when to when they are half as fast."""
WINDOW = 0.0
"""Seconds that they take for each window of a convolution, besides its operations."""


class Paced(NumpyEngine):
    """An engine whose ops take the time that they are told to, and compute nothing."""

    __slots__ = ()

    @property
    def platform(self) -> str:
        return "card"

    @property
    def execution(self) -> Execution:
        return Execution()

    @property
    def dtypes(self) -> frozenset[DType]:
        return frozenset({DType.float32})

    def lower(self, program: Program, donate: object = ()) -> Executable:
        seconds = sum(_seconds(node, program.mesh) for node in all_nodes(program.graph))
        (out,) = program.outputs
        made = self.put(out.type, out.sharding, lambda box: out.type.dtype.numpy.type(0))

        def run(handles: Sequence[object], observe: object = None) -> list[object]:
            is_busy = BUSY[0] <= CLOCK[0] < BUSY[1]
            CLOCK[0] += 2 * seconds if is_busy else seconds
            return [made]

        return run  # type: ignore[return-value]


def _seconds(node, mesh: Mesh) -> float:
    inputs: Types = [value.type for value in node.inputs]
    outputs = [value.type for value in node.outputs]
    if node.op.is_collective:
        group = mesh.product(node.op.axes)
        traffic = class_of(node.op.name).traffic(node.op.count_bytes(inputs), group)
        return traffic.messages * LINK.latency + traffic.bytes / LINK.bandwidth
    work = node.op.cost(inputs, outputs)
    if node.op.name in ("sum", "max", "after") or node.op.is_view:
        return 0.0
    return KERNEL + max(work.flops / RATE + work.windows * WINDOW, work.bytes / BANDWIDTH)


@cache
def paced(**axes: int) -> Engine:
    return Paced(Mesh(axes))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure with the clock of the engines of this file."""
    monkeypatch.setattr("mithril.cost.calibrate.timing.perf_counter", lambda: CLOCK[0])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Store profiles in a folder of the test."""
    monkeypatch.setenv("MITHRIL_DATA_DIR", str(tmp_path))
    return tmp_path / "hardware"


def test_lines_are_fitted_by_relative_error_and_never_fall() -> None:
    line = fit_line([(1, 10, 2.0), (1, 1000, 101.0)])
    assert (line.first, line.second) == pytest.approx((1.0, 0.1))
    assert line.error == pytest.approx(0, abs=1e-9)
    assert line.at(1, 100) == pytest.approx(11)
    noisy = fit_line([(1, 10, 2.0), (1, 10, 2.2)])
    assert noisy.error == pytest.approx(0.0476, abs=1e-3)
    falling = fit_line([(1, 1, 5.0), (1, 100, 1.0)])
    assert falling.second == 0.0
    early = fit_line([(1, 10, 0.1), (1, 1000, 100.0)])
    assert early.first == 0.0
    assert early.second > 0


@pytest.mark.usefixtures("clock")
def test_kernels_memory_and_products_are_measured() -> None:
    told: list[str] = []
    timer = Timer(paced(), 0.0)
    memory = measure_memory(timer, told.append)
    assert memory.kernel_seconds == pytest.approx(KERNEL, rel=0.05)  # its 3 kB count, too
    assert memory.bandwidths[-1][1] == pytest.approx(BANDWIDTH, rel=1e-3)
    rates = measure_products(timer, memory.kernel_seconds, told.append)
    assert rates.keys() == {DType.float32}
    size, rate = rates[DType.float32][-1]
    assert size >= 2 * 256**3
    assert rate == pytest.approx(RATE, rel=1e-3)
    assert told[0] == "memory, 1 x 256"
    assert told[-1] == "product, 3072 x 768 float32"


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    "kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"]
)
def test_a_collective_costs_its_messages_and_bytes(kind: str) -> None:
    line = measure_kind(Timer(paced(data=2, tensor=4), 0.0), kind, "tensor")
    assert line.first == pytest.approx(LINK.latency, rel=1e-3)
    assert 1 / line.second == pytest.approx(LINK.bandwidth, rel=1e-3)
    assert line.error < 1e-3


def test_a_start_that_noise_leaves_out_is_what_the_smallest_takes() -> None:
    points = [(6.0, 768.0, 6e-4), (6.0, 1e5, 2e-4), (6.0, 3e6, 6e-3), (6.0, 2.4e7, 5e-2)]
    fitted = fit_line(points)
    assert fitted.first * 6 < 1e-4
    found = _start_up(points, fitted)
    assert found.first == pytest.approx(1e-4)
    assert found.second == pytest.approx(1.8e-9, rel=0.2)
    good = fit_line([(1, 1000, 3.0), (1, 2000, 4.0)])
    assert _start_up([(1, 1000, 3.0)], good) is good


@pytest.mark.slow
@pytest.mark.usefixtures("clock")
def test_each_axis_is_a_level() -> None:
    levels, errors = measure_levels(Timer(paced(data=2, tensor=2), 0.0), lambda what: None)
    assert [(level.name, level.devices) for level in levels] == [("tensor", 2), ("data", None)]
    assert {f"{kind} over data" for kind in levels[1].collectives if kind != "send"} <= set(errors)
    assert levels[0].collectives["send"] == levels[0].collectives["permute"]


@pytest.mark.slow
@pytest.mark.usefixtures("clock")
def test_a_calibrated_profile_predicts_what_it_was_made_of() -> None:
    told: list[str] = []
    engine = paced(data=2)
    made = calibrate(engine, ["numpy"], told.append, seconds=0.0)
    assert len(told) <= count_measurements(engine)
    assert made.name == "simulated-calibrated"
    assert made.op_rates["batched_product"][-1][1] == pytest.approx(RATE, rel=0.05)
    record = made.calibration
    assert record is not None
    assert (record.backend, record.device_kind, record.devices) == ("numpy", "card", 2)
    assert {"mithril-core", "numpy", "python"} == set(record.versions)
    assert "kernels" in record.errors
    x = TensorType((1024, 256), DType.float32)
    found = op_seconds(Gelu(approximate=False), [x], [x], made)
    assert found == pytest.approx(KERNEL + 20 * x.size / RATE, rel=1e-3)
    assert made.serving(2).vector_rate == made.vector_rate
    for kind in ("convolution", "convolution_input_gradient"):
        assert made.op_rate(kind, 1e9) == pytest.approx(RATE, rel=1e-3)
        assert f"{kind}_windows" not in made.op_rates
    assert {"max_pool", "max_pool_gradient", "avg_pool", "avg_pool_gradient"} <= set(made.op_rates)


@pytest.mark.usefixtures("clock")
def test_a_convolution_of_few_channels_takes_as_long_as_its_windows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tests.cost.test_calibrate.WINDOW", 2e-6)
    made = calibrate(paced(), [], seconds=0.0)
    assert made.op_rate("convolution", 1e9) == pytest.approx(RATE, rel=1e-2)
    assert made.op_rate("convolution_windows", 1e4) == pytest.approx(1 / 2e-6, rel=1e-2)
    save(made, tmp_path / "mine.json")
    made = Hardware.load(tmp_path / "mine.json")
    x, w = TensorType((4, 3, 16, 16), DType.float32), TensorType((8, 3, 3, 3), DType.float32)
    op = Convolution((1, 1), ((1, 1), (1, 1)), (1, 1), 1)
    (y,) = op.infer([x, w])
    flops, windows = 2 * y.size * 27, 4 * 16 * 16
    expected = KERNEL + flops / RATE + windows * 2e-6
    assert op_seconds(op, [x, w], [y], made) == pytest.approx(expected, rel=1e-2)
    narrow = w.with_shape((1, 3, 3, 3))  # a part of its channels has all of the windows
    assert op_seconds(op, [x, narrow], op.infer([x, narrow]), made) > 0.9 * windows * 2e-6


@pytest.mark.slow
@pytest.mark.usefixtures("clock")
def test_a_profile_tells_whether_the_machine_is_slower_than_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = paced(data=2)
    record = calibrate(engine, seconds=0.0).calibration
    assert record is not None
    run = prepare_reference(engine)
    took = []
    for busy in (False, True):
        monkeypatch.setattr(f"{__name__}.BUSY", (CLOCK[0], math.inf if busy else 0.0))
        started = CLOCK[0]
        run()
        took.append((CLOCK[0] - started) / record.reference_seconds)
    assert took == pytest.approx([1.0, 2.0])


@pytest.mark.usefixtures("clock")
def test_what_ran_beside_other_work_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = paced()
    timer = Timer(engine, 0.0, watch_products(engine))
    now = CLOCK[0]
    monkeypatch.setattr(f"{__name__}.BUSY", (now, now + 10.0))
    rates = measure_products(timer, KERNEL, lambda what: None)
    assert rates[DType.float32][-1][1] == pytest.approx(RATE, rel=1e-3)
    monkeypatch.setattr(f"{__name__}.BUSY", (CLOCK[0], math.inf))
    rates = measure_products(timer, KERNEL, lambda what: None)  # and comes to an end
    assert rates[DType.float32][-1][1] == pytest.approx(RATE / 2, rel=0.1)


def test_simulated_devices_are_not_measured() -> None:
    with pytest.raises(
        BackendError, match=r"^backend 'numpy' simulates its devices, which have no"
    ):
        calibrate(NumpyEngine(Mesh()))


class Job(Paced):
    """An engine of a job of two processes."""

    __slots__ = ()

    @property
    def process_count(self) -> int:
        return 2


def test_a_job_of_processes_is_not_measured() -> None:
    with pytest.raises(
        BackendError, match=r"^backend 'numpy' has devices of 2 processes; calibrate"
    ):
        calibrate(Job(Mesh(data=2)))


# ------------------------------------------------------------------ op rates


def test_an_op_has_a_rate_of_its_own() -> None:
    mine = replace(SIMULATED, op_rates={"exp": ((1.0, 2e9),)})
    x = TensorType((1000,), DType.float32)
    assert op_seconds(Exp(), [x], [x], mine) == 8000 / 2e9
    assert op_seconds(Tanh(), [x], [x], mine) == 8000 / 1e9
    builder = Builder()
    value = builder.input(x, "x")
    (made,) = builder.apply(Exp(), value)
    graph = builder.build({"y": builder.apply(Tanh(), made)[0]})
    (kernel,) = find_kernels(graph, Execution(fuses=True)).values()
    assert kernel.seconds(mine) == 8000 / 2e9 + 8000 / 1e9


def test_bandwidth_depends_on_what_is_moved() -> None:
    mine = replace(SIMULATED, memory_bandwidth=1e9, bandwidths=((1e3, 8e9), (1e5, 1e9)))
    assert [mine.bandwidth(n) for n in (10, 1e4, 1e9)] == [8e9, pytest.approx(4.5e9), 1e9]
    with pytest.raises(OptionError, match=r"^memory_bandwidth has sizes that do not rise"):
        replace(mine, bandwidths=((1e5, 8e9), (1e3, 1e9)))
    with pytest.raises(OptionError, match=r"^rate of op 'exp' has rate 0; give a finite"):
        replace(mine, op_rates={"exp": ((1.0, 0),)})


# ------------------------------------------------------------------ stored profiles


def made_for(engine: Engine, **changes: object) -> Hardware:
    """Return a profile as if it had been measured on an engine."""
    execution = engine.execution
    record = Calibration(
        date(2026, 11, 22), engine.name, engine.device_kind, engine.mesh.size, describe_machine(),
        execution.fuses, execution.in_turn, 0.001, {"numpy": "2"}, {"kernels": 0.05},
    )  # fmt: skip
    link = {"all_reduce": Link(3e-6, 5e9)}
    return replace(
        SIMULATED,
        name="card-calibrated",
        bandwidths=((1e3, 8e9), (1e5, 1e9)),
        memory_bandwidth=1e9,
        op_rates={"exp": ((1.0, 2e9),)},
        levels=(Level("data", None, 1e-6, 1e9, collectives=link),),
        call_seconds=1e-4,
        calibration=replace(record, **changes),
    ).as_measured()


def store(engine: Engine, **changes: object) -> Path:
    path = find_path(engine.name, engine.device_kind, engine.mesh.size)
    save(made_for(engine, **changes), path)
    return path


def test_a_stored_profile_is_used_from_then_on() -> None:
    engine = paced(data=2)
    assert find_hardware(engine).unknown_platform == "card"
    path = store(engine)
    found = find_hardware(engine)
    assert (found.name, found.origin, found.unknown_platform) == ("card-calibrated", str(path), "")
    expected = made_for(engine)
    assert found == replace(expected, execution=found.execution, shared=found.shared)
    assert found.calibration == expected.calibration
    assert find_hardware(paced(data=4)).unknown_platform == "card"
    assert [stored.path for stored in list_stored(paced())] == [path]
    backend = ml.Backend(engine)
    assert backend.hardware.name == "card-calibrated"


def test_the_profile_of_fewer_devices_is_used_while_no_more_of_them_work() -> None:
    store(paced())
    store(paced(data=4))
    assert [count for count, _ in find_hardware(paced(data=4)).shared] == [1, 4]
    store(paced(data=2))
    assert [count for count, _ in find_hardware(paced(data=2)).shared] == [1, 2]


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"device_kind": "other"}, "was measured with device 'other', and here it is 'card'"),
        ({"backend": "jax"}, "was measured with backend 'jax', and here it is 'numpy'"),
        ({"devices": 8}, "was measured with number of devices '8', and here it is '2'"),
        ({"machine": "Z80, 1 cores"}, "was measured with machine 'Z80, 1 cores', and here it is "),
        ({"fuses": True}, "was measured with fusion 'True', and here it is 'False'"),
        ({"in_turn": True}, "was measured with execution in turn 'True', and here it is 'False'"),
    ],
)
def test_what_was_measured_elsewhere_is_left_aside(changes: dict[str, object], note: str) -> None:
    engine = paced(data=2)
    store(engine, **changes)
    found = find_stored(engine)
    assert found.hardware is None
    assert found.note.startswith(note)
    assert find_hardware(engine).unknown_platform == "card"


def test_a_file_of_a_newer_version_is_left_aside() -> None:
    engine = paced(data=2)
    path = store(engine)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "format": 2}))
    assert "has format 2, and this Mithril reads up to 1" in find_stored(engine).note
    path.write_text(json.dumps({k: v for k, v in content.items() if k != "calibration"}))
    assert find_stored(engine).note == "has no 'calibration'; run `mithril calibrate` again"
    record = {**content["calibration"], "date": "yesterday"}
    path.write_text(json.dumps({**content, "calibration": record}))
    assert "has calibration.date 'yesterday'; write YYYY-MM-DD" in find_stored(engine).note
    assert find_hardware(engine).unknown_platform == "card"


def test_processes_of_a_job_choose_without_it() -> None:
    engine = Job(Mesh(data=2))
    path = store(engine)
    assert find_stored(engine).note.startswith("not used in a job of several processes; give it by")
    assert find_hardware(engine).unknown_platform == "card"
    assert find_hardware(engine, path).name == "card-calibrated"


def test_a_profile_of_another_device_is_refused_where_it_is_given(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    save(made_for(paced(), device_kind="NPU 7"), path)
    with pytest.raises(OptionError) as raised:
        find_hardware(paced(), path)
    assert str(raised.value) == (
        "hardware profile 'card-calibrated' was measured on 'NPU 7', and backend 'numpy' has "
        "'card'; calibrate here, or give the name of a profile"
    )


def test_planned_devices_are_what_a_profile_says(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    save(made_for(paced(), device_kind="NPU 7"), path)
    assert find_hardware(PlannedEngine(Mesh(data=4)), path).name == "card-calibrated"
    shapes = {"input": (16, 8)}
    found = ml.auto_tune(ml.Linear(8), path, input_shapes=shapes, devices=2, strategy_space="data")
    assert found.findings.profile == "card-calibrated"


def test_what_cannot_be_written_says_so(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OptionError, match=r"cannot be written; .*; give another path by --out"):
        save(SIMULATED, blocked / "mine.json")


def test_the_data_folder_is_the_users(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_folder() == folder
    pytest.importorskip("platformdirs")
    monkeypatch.delenv("MITHRIL_DATA_DIR")
    found = find_folder()
    assert (found.name, found.parent.name) == ("hardware", "mithril")


# ------------------------------------------------------------------ hardware=


def test_a_backend_takes_its_devices_for_others(tmp_path: Path) -> None:
    model = ml.Linear(dimension=4)
    for given in ("h100-sxm", ml.Hardware.load("h100-sxm")):
        backend = ml.NumpyBackend(ml.Mesh(data=2), hardware=given)
        assert backend.hardware.name == "h100-sxm"
        plan = ml.compile(model, backend, shapes={"input": (8, 4)}).plan
        assert plan.pricing is not None
        assert plan.pricing.profile == "h100-sxm"
    with pytest.raises(OptionError, match=r"^hardware 'h100-smx' has no profile; did you mean"):
        ml.NumpyBackend(hardware="h100-smx")
    with pytest.raises(OptionError, match=r"^hardware is an int; give a name such as 'h100-sxm'"):
        ml.NumpyBackend(hardware=7)


def test_prices_are_those_of_the_hardware_that_is_given() -> None:
    """Over a fast link parts are gathered that are not worth it over a slow one."""
    slow = replace(SIMULATED, levels=(Level("slow", None, 1.0, 1.0),))
    model = ml.Linear(dimension=4, bias=False, name="down")
    texts = []
    for hardware in (SIMULATED, slow):
        backend = ml.NumpyBackend(ml.Mesh(tensor=2), hardware=hardware)
        compiled = ml.compile(model, backend, shapes={"input": (8, 4)})
        texts.append(compiled.plan.timeline().seconds)
        assert backend.hardware.levels == hardware.levels
    assert texts[0] <= texts[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torch", "jax", "mlx"])
@pytest.mark.parametrize("devices", [1, 2])
def test_real_devices_are_measured(name: str, devices: int) -> None:
    if importlib.util.find_spec(f"mithril_{name}") is None:
        pytest.skip(f"mithril_{name} is not installed")
    backend = ml.open_backend(name, ml.Mesh(data=devices))
    made = calibrate(backend.engine, seconds=0.05)
    assert made.name == "cpu-calibrated"
    assert made.rate(DType.float32) > 1e8
    kinds = {kind for level in made.levels for kind in level.collectives}
    assert "all_reduce" in kinds if devices > 1 else not kinds
    if devices > 1:  # one device exchanges nothing: its links are those of the described ones
        is_crowd = backend.engine.execution.devices_per_processor > 1
        assert all(level.by_processor == is_crowd for level in made.levels)
    assert ("column_sum" in made.op_rates) == (name == "jax")


@pytest.mark.slow
@pytest.mark.usefixtures("clock")
def test_what_a_device_is_made_for_is_no_less_than_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    made_for = replace(
        SIMULATED,
        rates={DType.float32: ((1.0, 1e6),), DType.bfloat16: ((1.0, 1e6),)},
        peaks={DType.float32: 2e6, DType.bfloat16: 2e6},
    )
    monkeypatch.setattr("mithril.cost.calibrate.find_described", lambda engine: made_for)
    made = calibrate(paced(), seconds=0.0)
    assert made.peaks == {DType.float32: max(rate for _, rate in made.rates[DType.float32])}
