"""Figures: their data, that no window opens and nothing global changes, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import mithril as ml
import numpy as np
import pytest
from matplotlib.figure import Figure
from mithril import P, visualize
from mithril.cost import PlanMemory
from mithril.cost.plan_timeline import DeviceTimeline
from mithril.cost.timeline import Costs
from mithril.errors import MeshError, OptionError, PlanError
from mithril.partition.schedule import make
from mithril.plan.schedule import read_table
from mithril.report import DeviceGraph

from tests.visualize.pictures import (
    cells,
    compile_mlp,
    event,
    find_overlaps,
    hold,
    make_timeline,
    texts,
)

GRID = ml.Mesh(data=2, tensor=2)
LARGE = ml.Mesh(data=64, tensor=8)

STEP = make_timeline(
    0.010,
    DeviceTimeline(
        tuple(range(512)),
        (
            event(0.0, 0.001),
            event(0.001, 0.002, kind="add"),
            event(0.002, 0.003, scope="block.down"),
            event(0.003, 0.004, stream="communication", kind="all_reduce", axes=("tensor",)),
            event(0.004, 0.008, phase="backward"),
            event(0.008, 0.010, stream="send", kind="send", phase="backward"),
        ),
    ),
)
HELD = PlanMemory(
    (
        hold((0, 1), (2**20, 3 * 2**20), parameters=2**20, activations=2**21),
        hold((2, 3), (2**20, 2**20, 0), parameters=2**20),
    ),
    4 * 2**20,
    "mine",
)


def ring(mesh: ml.Mesh) -> DeviceGraph:
    return DeviceGraph(mesh, np.roll(np.diag([1000] * mesh.size), 1, axis=1))


RING = ring(GRID)


def sharded() -> ml.Array:
    return ml.NumpyBackend(GRID).ones(4, 6, sharding=P("data", "tensor"))


PICTURES: dict[str, Any] = {
    "mesh": lambda: visualize.plot_mesh((4, 2)),
    "large mesh": lambda: visualize.plot_mesh(LARGE),
    "sharding": lambda: visualize.plot_sharding(sharded()),
    "map": lambda: visualize.plot_partition_map(compile_mlp(GRID).get_partition_map()),
    "large map": lambda: visualize.plot_partition_map(
        compile_mlp(LARGE, (512, 32)).get_partition_map(), LARGE
    ),
    "utilization": lambda: visualize.plot_device_utilization([[0.5, 0.25], [1.0, 0.0]], GRID),
    "large utilization": lambda: visualize.plot_device_utilization(
        np.linspace(0, 1, 512).reshape(64, 8), LARGE
    ),
    "communication": lambda: visualize.plot_communication_graph(RING, device_mesh=(2, 2)),
    "large communication": lambda: visualize.plot_communication_graph(ring(LARGE), LARGE),
    "timeline": lambda: visualize.plot_timeline(STEP),
    "memory": lambda: visualize.plot_memory(HELD),
    "schedule": lambda: visualize.plot_schedule(make("1f1b", 4, 8, 1)),
    "interleaved": lambda: visualize.plot_schedule(make("interleaved", 4, 8, 2)),
}


@pytest.mark.parametrize("name", PICTURES)
def test_no_text_covers_another(name: str) -> None:
    figure = PICTURES[name]()
    assert isinstance(figure, Figure)
    assert len(texts(figure)) > 4
    assert find_overlaps(figure) == []


def test_overlaps_are_found() -> None:
    figure = Figure()
    figure.text(0.5, 0.5, "one")
    figure.text(0.51, 0.5, "two")
    assert find_overlaps(figure) == [("one", "two")]


# ------------------------------------------------------------------ what a figure shows


def test_a_mesh_is_a_grid_of_numbers() -> None:
    figure = visualize.plot_mesh(ml.Mesh(data=4, tensor=2))
    assert cells(figure) == 8
    shown = texts(figure)
    assert shown.count("7") == 1
    assert {"Mesh(data=4, tensor=2), 8 devices", "data ↓ tensor →"} <= set(shown)


def test_of_512_devices_the_first_and_last_rows_are_shown() -> None:
    shown = texts(visualize.plot_mesh(LARGE))
    assert {"0", "511", "…", "data ↓ tensor →"} <= set(shown)
    assert "300" not in shown
    assert len(shown) < 200


def test_a_sharding_is_a_grid_of_parts() -> None:
    figure = visualize.plot_sharding(sharded())
    colors = {patch.get_facecolor() for patch in figure.axes[0].patches}
    assert len(colors) == cells(figure) == 4
    assert {"0:2", "2:4", "0:3", "3:6", "each device holds (2, 3)"} <= set(texts(figure))


def test_a_partition_map_shows_which_part_each_device_holds() -> None:
    figure = visualize.plot_partition_map(compile_mlp(GRID).get_partition_map(), (2, 2))
    shown = texts(figure)
    assert {"0, 2", "1, 3", "up.weight", "[0:32, :]", "[32:64, :]", "[:, 32:64]"} <= set(shown)
    assert shown.count("whole") == 2  # the bias of `down`, on both groups of devices
    assert cells(figure) == 2 * 5


def test_devices_that_hold_equally_much_share_a_column_where_there_are_many() -> None:
    model = ml.Model()
    model += ml.Linear(1024, name="up", at_rest=P("data"))
    backend = ml.NumpyBackend(ml.Mesh(data=512))
    compiled = ml.compile(model, backend, shapes={"input": (512, 4)})
    shown = texts(visualize.plot_partition_map(compiled.get_partition_map(), device_mesh=512))
    assert {"0-511", "2 × 4"} <= set(shown)
    assert len(shown) < 12


def test_layers_that_differ_in_their_numbers_share_a_row() -> None:
    model = ml.Model()
    for number in range(12):
        model += ml.Linear(8, name=f"block_{number}")
    compiled = ml.compile(model, ml.NumpyBackend(GRID), shapes={"input": (4, 8)})
    shown = texts(visualize.plot_partition_map(compiled.get_partition_map()))
    assert {"all 12 layers", "block_{0-11}.weight", "block_{0-11}.bias"} <= set(shown)


def test_rows_are_joined_where_that_keeps_their_names() -> None:
    model = ml.Model()
    for name in ("block_01", "block_02", "a0_b0", "a1_b1", "grid_0_0", "grid_0_1"):
        model += ml.Linear(8, name=name)
    compiled = ml.compile(model, ml.NumpyBackend(GRID), shapes={"input": (4, 8)})
    shown = texts(visualize.plot_partition_map(compiled.get_partition_map()))
    names = {text for text in shown if text.endswith(".bias")}
    assert names == {
        "block_0{1-2}.bias",
        "a0_b0.bias",
        "a1_b1.bias",
        "grid_0_{0-1}.bias",
    }


def test_a_map_of_placed_layers_says_where_they_run() -> None:
    model = ml.Model()
    model += ml.Linear(8, name="first", device_id=0)
    model += ml.Linear(8, name="second", device_id=1)
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    compiled = ml.compile(model, backend, shapes={"input": (4, 8)})
    figure = visualize.plot_partition_map(compiled.get_partition_map())
    assert texts(figure).count("runs") == 2
    assert cells(figure) == 2 + 4  # each layer, weight and bias is on one device


def test_a_heat_map_has_a_cell_for_each_device() -> None:
    figure = visualize.plot_device_utilization([[0.5, 0.25], [1.0, 0.0]], GRID)
    image = figure.axes[0].get_images()[0]
    np.testing.assert_allclose(image.get_array(), [[50, 25], [100, 0]])
    assert image.get_clim() == (0, 100)
    assert {"50 %", "data", "tensor", "% of the time"} <= set(texts(figure))


def test_neighbouring_rows_that_are_equal_are_one() -> None:
    figure = visualize.plot_device_utilization(np.full((64, 8), 0.5), LARGE)
    assert figure.axes[0].get_images()[0].get_array().shape == (1, 8)
    assert "0-63" in texts(figure)


def test_a_mesh_of_one_axis_is_one_row() -> None:
    figure = visualize.plot_device_utilization(np.array([0.5, 0.1]), device_mesh=(2,))
    assert figure.axes[0].get_images()[0].get_array().shape == (1, 2)


def test_communication_of_few_devices_has_arrows_and_a_matrix() -> None:
    figure = visualize.plot_communication_graph(RING, device_mesh=(2, 2))
    arrows, matrix, _ = figure.axes
    assert len(arrows.patches) == 4
    np.testing.assert_array_equal(matrix.get_images()[0].get_array(), RING.matrix)
    assert {"Mesh(data=2, tensor=2)", "1000 B", "from", "to"} <= set(texts(figure))


def test_communication_of_many_devices_is_joined_and_complete() -> None:
    figure = visualize.plot_communication_graph(ring(LARGE), device_mesh=LARGE)
    (image,) = figure.axes[0].get_images()
    assert image.get_array().shape == (64, 64)
    shown = "".join(texts(figure))
    assert "each cell is of 8 × 8 devices" in shown
    np.testing.assert_allclose(image.get_array().sum() * 2**10, 512 * 1000)  # in KiB


def test_a_timeline_has_a_lane_for_each_stream() -> None:
    figure = visualize.plot_timeline(STEP)
    (axes,) = figure.axes
    spans = [
        (round(x0, 6), round(x1, 6))
        for collection in axes.collections
        for (x0, _), (x1, _) in (
            (path.vertices.min(0), path.vertices.max(0)) for path in collection.get_paths()
        )
    ]
    # Two events of a layer that follow each other are one bar; times are in ms.
    assert sorted(spans) == [(0, 2), (2, 3), (3, 4), (4, 8), (8, 10)]
    shown = set(texts(figure))
    assert {"devices 0-511, compute", "devices 0-511, communication", "time in ms"} <= shown
    assert {"forward", "backward", "over tensor", "send", "devices 0-511, send"} <= shown
    what = "step of 10 ms on 512 devices, predicted with profile 'mine'"
    assert f"{what}: utilization 40 %, bubble 25 %" in shown


def test_the_timeline_of_a_plan_is_drawn() -> None:
    timeline = compile_mlp(GRID).plan.timeline("h100-sxm")
    figure = visualize.plot_timeline(timeline)
    ends = [p.vertices.max(0)[0] for c in figure.axes[0].collections for p in c.get_paths()]
    last = max(event.end for row in timeline.rows for event in row.events)
    assert max(ends) == pytest.approx(last * 1e6)  # in µs
    assert {"devices 0-3, compute", "devices 0-3, communication", "time in µs"} <= set(
        texts(figure)
    )
    assert find_overlaps(figure) == []


def test_bars_name_the_layers_that_can_be_told_apart() -> None:
    scopes = [f"gpt.block{n}.{part}" for n in range(6) for part in ("attn", "mlp")]
    events = [event(n / 12, (n + 1) / 12, scope=scope) for n, scope in enumerate([*scopes, "loss"])]
    figure = visualize.plot_timeline(make_timeline(13 / 12, DeviceTimeline((0,), tuple(events))))
    shown = set(texts(figure))
    assert {"loss", *(f"block{n}" for n in range(6))} <= shown
    assert not {"gpt", "attn"} & shown


def test_of_many_stages_some_lanes_are_left_out() -> None:
    rows = [DeviceTimeline((at,), (event(0.0, 1e-3),)) for at in range(64)]
    shown = texts(visualize.plot_timeline(make_timeline(1e-3, *rows)))
    assert "… 33 more" in shown
    assert {"device 0, compute", "device 63, compute"} <= set(shown)


def test_bars_of_memory_add_up_to_the_peak() -> None:
    figure = visualize.plot_memory(HELD)
    peaks, curves = figure.axes
    ends = [patch.get_x() + patch.get_width() for patch in peaks.patches]
    assert max(ends) == pytest.approx(3.0)  # MiB
    assert [len(line.get_xdata()) for line in curves.lines[:2]] == [2, 3]
    shown = set(texts(figure))
    assert {"devices 0-1", "devices 2-3", "MiB at the peak", "a device holds 4 MiB"} <= shown
    assert (
        "memory of 4 devices, predicted with profile 'mine': at most 3 MiB of 4 MiB on a device"
        in shown
    )


def test_the_memory_of_a_plan_is_drawn() -> None:
    memory = compile_mlp(GRID).plan.memory("h100-sxm")
    figure = visualize.plot_memory(memory)
    peaks, curves = figure.axes
    ends = [patch.get_x() + patch.get_width() for patch in peaks.patches]
    assert max(ends) * 2**10 == pytest.approx(memory.peak)  # in KiB
    assert len(curves.lines[0].get_xdata()) == len(memory.rows[0].curve)
    assert find_overlaps(figure) == []


def test_a_capacity_far_above_the_peak_is_said_in_the_title_alone() -> None:
    figure = visualize.plot_memory(PlanMemory(HELD.rows, 2**40, "mine"))
    assert "a device holds 1 TiB" not in texts(figure)
    assert any("of 1 TiB" in text for text in texts(figure))


def test_a_schedule_has_a_bar_for_each_action() -> None:
    figure = visualize.plot_schedule(make("1f1b", 4, 8, 1))
    bars = sum(len(c.get_paths()) for c in figure.axes[0].collections)
    assert bars == 4 * 8 * 2
    shown = texts(figure)
    assert "schedule 1f1b: 4 devices, 4 stages, 8 micro-batches, bubble 27.3 %" in shown
    assert shown.count("7") >= 8
    assert {"forward", "backward", "device 3"} <= set(shown)


def test_costs_stretch_a_schedule() -> None:
    table = read_table("mine", ["0F0,0I0,0W0"])
    figure = visualize.plot_schedule(table, Costs(1, 2, 3))
    assert figure.axes[0].get_xlim() == (0, 6)
    assert {"input gradient", "weight gradient"} <= set(texts(figure))


def test_the_schedule_of_a_plan_is_drawn() -> None:
    model = ml.Model()
    model += ml.Pipeline([ml.Linear(8), ml.Linear(8)], microbatch_size=2)
    model += ml.MeanSquaredError()
    backend = ml.NumpyBackend(ml.Mesh(pipeline=2))
    shapes = {"input": (8, 8), "target": (8, 8)}
    compiled = ml.compile(model, backend, pipeline_schedule="gpipe", shapes=shapes)
    figure = visualize.plot_schedule(compiled.plan)
    title = "schedule gpipe: 2 devices, 2 stages, 4 micro-batches"
    assert any(text.startswith(title) for text in texts(figure))


# ------------------------------------------------------------------ files, windows, global state


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_figure_is_saved(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"mesh.{ending}"
    visualize.plot_mesh((2, 2), path=path)
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    assert path.read_bytes().startswith(start)


@pytest.mark.slow
def test_no_state_of_matplotlib_changes_and_no_window_opens(tmp_path: Path) -> None:
    code = f"""
import sys, matplotlib
before = list(dict.items(matplotlib.rcParams))  # without asking for the backend, which loads pyplot
import mithril as ml
ml.visualize.plot_mesh((2, 2), path=r"{tmp_path / "mesh.png"}")
ml.visualize.plot_device_utilization([0.5], path=r"{tmp_path / "busy.png"}")
assert "matplotlib.pyplot" not in sys.modules
assert list(dict.items(matplotlib.rcParams)) == before
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_text_forms_need_no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    visualize.sharding(sharded())
    visualize.print_mesh((2, 2))
    visualize.print_partition_map(compile_mlp(GRID).get_partition_map())
    visualize.print_device_utilization([0.5])
    visualize.print_communication_graph(RING)
    visualize.print_timeline(STEP)
    visualize.print_memory(HELD)
    visualize.print_schedule(make("gpipe", 2, 2, 1))


def test_notebooks_show_figures_that_pyplot_does_not_know() -> None:
    assert visualize.plot_mesh((2, 2))._repr_png_().startswith(b"\x89PNG")


def test_a_dark_style_is_kept() -> None:
    with matplotlib.rc_context({"figure.facecolor": "black", "text.color": "white"}):
        figure = visualize.plot_mesh((2, 2))
        assert figure.get_facecolor()[:3] == (0, 0, 0)
        head, cell = (
            next(t for t in figure.axes[0].texts if t.get_text() == text)
            for text in ("data ↓ model →", "3")
        )
        assert (head.get_color(), cell.get_color()) == ("white", "#000000")


# ------------------------------------------------------------------ what is refused


def test_without_matplotlib_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(OptionError, match=r"figures need matplotlib.*'mithril-core\[plot\]'"):
        visualize.plot_mesh((2, 2))


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"which is no format of figures; formats: .*png"):
        visualize.plot_mesh((2, 2), path=tmp_path / "mesh.xyz")


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="which is no directory; make it first"):
        visualize.plot_mesh((2, 2), path=tmp_path / "nowhere" / "mesh.png")
    with pytest.raises(OptionError, match="path=3 is no path of a file"):
        visualize.plot_mesh((2, 2), path=3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"mesh.png' cannot be written; .*; give another one"):
        visualize.plot_mesh((2, 2), path="/proc/mesh.png")


@pytest.mark.parametrize("mesh", [(4,), (4, 1), 4, ml.Mesh(tensor=2, data=2)])
def test_a_map_of_another_mesh_is_refused(mesh: Any) -> None:
    found = compile_mlp(GRID).get_partition_map()
    text = r"partition map is of Mesh\(data=2, tensor=2\), not of .*; give the mesh it was made for"
    with pytest.raises(MeshError, match=text):
        visualize.plot_partition_map(found, device_mesh=mesh)
    with pytest.raises(MeshError, match=text):
        visualize.print_partition_map(found, device_mesh=mesh)


def test_the_utilization_of_another_mesh_is_refused() -> None:
    with pytest.raises(MeshError, match=r"device utilization is of a mesh of shape \(2, 2\)"):
        visualize.plot_device_utilization(np.ones((2, 2)), device_mesh=(4,))


def test_the_graph_of_another_mesh_is_refused() -> None:
    with pytest.raises(
        MeshError, match=r"communication graph is of Mesh\(data=2, tensor=2\), not of \(4, 2\)"
    ):
        visualize.plot_communication_graph(RING, device_mesh=(4, 2))


def test_a_mesh_has_to_be_one() -> None:
    with pytest.raises(MeshError, match="device_mesh is 'data'; give positive integers"):
        visualize.plot_mesh("data")  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [None, {}, {"mesh": {"data": 2}}, [1], {"mesh": 3}])
def test_what_is_no_partition_map_is_refused(given: Any) -> None:
    with pytest.raises(OptionError, match=r"partition map cannot be read .*; give what"):
        visualize.plot_partition_map(given)


@pytest.mark.parametrize("given", [[1.5], [-0.1], [["a"]], [[0.5], [0.5, 0.5]], []])
def test_shares_of_time_lie_between_0_and_1(given: Any) -> None:
    with pytest.raises(OptionError, match="device utilization has values that are no shares"):
        visualize.plot_device_utilization(given)


def test_what_is_no_timeline_no_memory_no_schedule_no_array_is_refused() -> None:
    with pytest.raises(OptionError, match=r"a timeline is drawn of what plan.timeline\(\) returns"):
        visualize.plot_timeline(3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"a communication graph is drawn of what .* not of None"):
        visualize.plot_communication_graph(None)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"memory is drawn of what plan.memory\(\) returns"):
        visualize.plot_memory([])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="a schedule is drawn of a Schedule or a Plan, not of"):
        visualize.plot_schedule("1f1b")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="a sharding is shown of an array of Mithril, not of"):
        visualize.sharding(np.ones(3))  # type: ignore[arg-type]


def test_a_plan_without_a_schedule_is_refused() -> None:
    with pytest.raises(PlanError, match="plan has no pipeline schedule to draw"):
        visualize.plot_schedule(compile_mlp(GRID).plan)


# ------------------------------------------------------------------ as the guides use them


def test_what_a_profile_measured_is_drawn_for_the_mesh_of_the_guides() -> None:
    backend = ml.NumpyBackend(device_mesh=(4, 2))
    model = ml.Model()
    model += ml.Linear(8, name="up", sharding={"weight": P("model", None)})
    model += ml.Linear(8, name="down", sharding={"weight": P(None, "model")})
    compiled = ml.compile(model, backend)
    inputs = {"input": backend.randn(32, 16, device_mesh=(4, 2), tensor_split=(0, None))}
    with ml.profile(backend) as profile:
        compiled.evaluate(compiled.randomize_params(), inputs)
    busy, graph = profile.device_utilization_map(), profile.communication_graph()

    figure = visualize.plot_device_utilization(busy, device_mesh=(4, 2))
    shown = figure.axes[0].get_images()[0].get_array()
    assert shown.shape[1] == 2
    assert busy.shape == (4, 2)
    figure = visualize.plot_communication_graph(graph, device_mesh=(4, 2))
    np.testing.assert_array_equal(figure.axes[1].get_images()[0].get_array(), graph.matrix)
    # The sum over `model` goes between neighbours: once to be added up, once as the result.
    (row,) = compiled.plan.collectives()
    assert graph.matrix[0, 1] == row.bytes
    assert np.count_nonzero(graph.matrix) == len(figure.axes[0].patches) == 8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["JaxBackend", "TorchBackend", "MLXBackend"])
def test_every_backend_shows_its_arrays_alike(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = getattr(ml, name)(GRID)
    x = backend.ones(4, 6, sharding=P("data", "tensor"))
    visualize.sharding(x)
    found = capsys.readouterr().out
    visualize.sharding(sharded())
    assert capsys.readouterr().out == found
    assert x._repr_html_() == sharded()._repr_html_()
