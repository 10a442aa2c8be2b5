"""The same pictures as text: what is printed, in colour or not, however narrow the terminal."""

from __future__ import annotations

import io
import json
import re

import mithril as ml
import numpy as np
import pytest
from mithril import P, visualize
from mithril.cost.plan_timeline import DeviceTimeline
from mithril.cost.timeline import simulate
from mithril.partition.schedule import make
from mithril.report import DeviceGraph, draw

from tests.visualize.pictures import compile_mlp, event, make_timeline
from tests.visualize.test_figures import HELD, LARGE, RING, STEP, ring


def test_a_sharding_of_any_rank_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2, tensor=2, pipeline=2))
    visualize.sharding(backend.ones(4, 6, 8, sharding=P("data", "tensor", "pipeline")))
    shown = capsys.readouterr().out
    assert "│ 0:2, 0:3, 0:4 │ 0       │" in shown
    assert "│ 2:4, 3:6, 4:8 │ 7       │" in shown
    visualize.sharding(backend.ones(sharding=P()))
    assert "0-7" in capsys.readouterr().out


def test_a_device_without_elements_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    visualize.sharding(ml.NumpyBackend(ml.Mesh(data=4)).ones(3, sharding=P("data")))
    shown = capsys.readouterr().out
    assert "without elements: 3" in shown
    assert "│ devices       │ 0   │ 1   │ 2   │" in shown


def test_replicas_share_a_part(capsys: pytest.CaptureFixture[str]) -> None:
    visualize.sharding(ml.NumpyBackend(LARGE).ones(8, 8, sharding=P(None, "tensor")))
    assert "0, 8, …, 504 (64)" in capsys.readouterr().out


def test_an_array_of_a_stage_is_on_the_devices_of_the_stage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = ml.Model()
    model += ml.Linear(8, name="first", device_id=0)
    model += ml.Linear(8, name="second", device_id=3)
    backend = ml.NumpyBackend(ml.Mesh(data=4))
    compiled = ml.compile(model, backend, shapes={"input": (4, 8)})
    visualize.sharding(compiled.randomize_params(seed=0)["second.weight"])
    assert "│ 0:8                         │ 3   │" in capsys.readouterr().out


def test_shares_that_are_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    visualize.print_device_utilization([0.5, float("nan")])
    shown = capsys.readouterr().out
    assert "mean 50 %, least 50 % on device 0" in shown
    assert re.search(r"│ 50 % │ - +│", shown)


def test_a_map_read_from_json_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    found = compile_mlp(ml.Mesh(data=2, tensor=2)).get_partition_map()
    visualize.print_partition_map(found, device_mesh=ml.Mesh(data=2, tensor=2))
    first = capsys.readouterr().out
    visualize.print_partition_map(json.loads(json.dumps(found)))
    assert capsys.readouterr().out == first
    assert re.search(r"up\.weight +│ \[0:32, :\] +│ \[32:64, :\]", first)


def test_a_wide_table_is_printed_in_parts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    visualize.print_mesh(16)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert sum(line.startswith("│ data →") for line in lines) == 2


def test_lines_of_512_devices_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    visualize.print_mesh(LARGE)
    visualize.print_device_utilization(np.full((64, 8), 0.5), LARGE)
    visualize.print_timeline(STEP)
    visualize.print_communication_graph(ring(LARGE), LARGE)
    assert len(capsys.readouterr().out.splitlines()) < 80


def test_communication_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    visualize.print_communication_graph(RING, device_mesh=(2, 2))
    assert "│ 3           │ 1000 B │" in capsys.readouterr().out
    visualize.print_communication_graph(DeviceGraph(ml.Mesh(data=2), np.zeros((2, 2), int)))
    assert "communication: 0 B in all" in capsys.readouterr().out


def test_a_timeline_is_printed_to_scale(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(28 + 100))
    visualize.print_timeline(STEP)
    title, compute, communication, sent, axis, unit, keys = capsys.readouterr().out.splitlines()
    assert title.startswith("step of 10 ms on 512 devices")
    assert compute.startswith("devices 0-511, compute ")
    row = compute[len("devices 0-511, communication") + 1 :]
    assert abs(row.count("f") - 30) <= 1  # of 10 ms in 100 columns 3 are forward, 4 backward
    assert abs(row.count("b") - 40) <= 1
    assert abs(communication[28:].count("t") - 10) <= 1
    assert abs(sent[28:].count("s") - 20) <= 1
    assert (axis.split(), unit) == (["0", "10"], "time in ms")
    assert "t  over tensor" in keys


def test_memory_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    visualize.print_memory(HELD)
    shown = capsys.readouterr().out
    assert re.search(r"devices 0-1 │ 3 MiB +│ 1 MiB +│ 2 MiB", shown)
    assert "the peak is at einsum (up)" in shown


def test_a_schedule_is_printed_as_the_command_prints_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    visualize.print_schedule(make("zb-h1", 4, 8, 1))
    assert capsys.readouterr().out.rstrip() == draw(simulate(make("zb-h1", 4, 8, 1)))


def test_names_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    model = ml.Model()
    model += ml.Linear(8, name="[bold]x")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": (4, 8)})
    visualize.print_partition_map(compiled.get_partition_map())
    assert "[bold]x.weight" in capsys.readouterr().out


def test_a_terminal_has_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)
    visualize.print_mesh((2, 2))
    assert "\x1b[38;2;0;0;0;48;2;142;202;230m" in terminal.getvalue()


def test_what_takes_less_than_half_of_a_place_is_a_point(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short = DeviceTimeline((0,), (event(0.0, 1e-9), event(0.5, 1.0)))
    visualize.print_timeline(make_timeline(1.0, short))
    row = capsys.readouterr().out.splitlines()[1]
    assert re.fullmatch(r"device 0, compute · +f+", row)
