"""Profiles are files: those of the package say where each figure is from, faulty ones are refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import mithril as ml
import pytest
from mithril.cost import SIMULATED, Hardware, Level, Link, find_hardware
from mithril.cost.profiles import find_profiles, list_profiles, load_profile
from mithril.cost.profiles.reader import write_content
from mithril.cost.profiles.registry import FOLDER
from mithril.cost.profiles.units import BANDWIDTH, BYTES, RATE, TIME
from mithril.engine.numpy_engine import NumpyEngine
from mithril.errors import OptionError
from mithril.mesh import Mesh
from mithril.types import DType

NAMES = (
    "a100-40gb", "a100-80gb", "b200", "cpu", "h100-sxm", "h200-sxm", "m2-ultra", "mi300x",
    "simulated", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e",
)  # fmt: skip
MINE = """
format = 1
matches = ["Our Card*"]
memory = "80 GB"
memory_bandwidth = "3.35 TB/s"
kernel_time = "2 us"
vector_rate = "67 TFLOP/s"
rates.float32 = [["1 GFLOP", "20 TFLOP/s"], ["1 TFLOP", "60 TFLOP/s"]]
rates.bfloat16 = "900 TFLOP/s"
peaks.bfloat16 = "989 TFLOP/s"
[[levels]]
name = "node"
devices = 8
latency = "2 us"
bandwidth = "450 GB/s"
collectives.all_reduce = { latency = "5 us", bandwidth = "300 GB/s" }
[[levels]]
name = "network"
latency = "10 us"
bandwidth = "25 GB/s"
full_duplex = false
by_processor = true
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mine.toml"


def load(path: Path, text: str) -> Hardware:
    path.write_text(text, encoding="utf-8")
    return ml.Hardware.load(path)


def test_the_package_has_the_profiles_that_it_promises() -> None:
    assert tuple(find_profiles()) == NAMES
    assert [entry.fault for entry in list_profiles()] == [""] * len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_figure_of_the_package_has_a_source(name: str) -> None:
    profile = load_profile(name)
    hardware = profile.hardware
    figures = {"memory_bandwidth", "kernel_time", "vector_rate"}
    figures |= {f"rates.{dtype}" for dtype in hardware.rates}
    figures |= {f"peaks.{dtype}" for dtype in hardware.peaks}
    figures |= {"memory"} if hardware.memory_bytes else set()
    figures |= {"host_bandwidth"} if hardware.host_bandwidth else set()
    for n, level in enumerate(hardware.levels):
        figures |= {f"levels[{n}].latency", f"levels[{n}].bandwidth"}
        figures |= {f"levels[{n}].turn_time"} if level.turn_seconds else set()
    assert set(profile.sources) == figures
    assert all(profile.sources.values())
    assert profile.summary
    assert hardware.origin == "mithril-core"


def test_the_simulated_profile_has_the_figures_of_golden_plans() -> None:
    assert (
        Hardware(
            "simulated",
            rates={DType.float32: ((1.0, 1e9),)},
            vector_rate=1e9,
            memory_bandwidth=math.inf,
            levels=(Level("any", None, latency=1e-7, bandwidth=1e9),),
        )
        == SIMULATED
    )


def test_a_file_of_ones_own_is_a_profile(path: Path) -> None:
    mine = load(path, MINE)
    assert (mine.name, mine.origin) == ("mine", str(path))
    assert (mine.memory_bytes, mine.memory_bandwidth) == (80_000_000_000, 3.35e12)
    assert (mine.kernel_seconds, mine.vector_rate) == (2e-6, 67e12)
    assert mine.rates[DType.float32] == ((1e9, 20e12), (1e12, 60e12))
    assert (mine.rate(DType.bfloat16), mine.peak(DType.bfloat16)) == (900e12, 989e12)
    mesh = Mesh(data=2, tensor=8)
    assert mine.link(mesh, ["tensor"]) == Link(2e-6, 450e9)
    assert mine.link(mesh, ["tensor"], "all_reduce") == Link(5e-6, 300e9)
    assert mine.link(mesh, ["data"], "all_reduce") == Link(10e-6, 12.5e9)


def test_what_is_written_is_read_again(path: Path) -> None:
    load(path, MINE)
    profile = load_profile(path)
    again = path.with_suffix(".json")
    again.write_text(json.dumps(write_content(profile)), encoding="utf-8")
    assert load_profile(again) == profile


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a100", "hardware 'a100' is one of 'a100-40gb', 'a100-80gb'; say which"),
        ("h100-smx", "hardware 'h100-smx' has no profile; did you mean 'h100-sxm'?; there are "),
        ("abacus", "hardware 'abacus' has no profile; there are 'a100-40gb', "),
        ("none.toml", "hardware profile 'none.toml' cannot be read; "),
        (7, "hardware is an int; give a name such as 'h100-sxm', the path of a TOML file, or a "),
    ],
)  # fmt: skip
def test_unknown_hardware_is_refused(name: str, said: str) -> None:
    with pytest.raises(OptionError) as raised:
        ml.Hardware.load(name)
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("format = 1", "", "has no key 'format'; write format = 1"),
        ("format = 1", "format = 'x'", "has format 'x'; write format = 1"),
        ("format = 1", "format = 2", "has format 2, and this Mithril reads up to 1; pip install -U mithril-core"),
        ("memory =", "memry =", "has an unknown key 'memry'; did you mean 'memory'?; keys: "),
        ("vector_rate =", "# ", "has no key 'vector_rate'; give operations a second, such as "),
        ("rates.bfloat16", "rates.bf16", "has an unknown key 'rates.bf16'; did you mean 'bfloat16'?"),
        ("'80 GB'", "'80 GB/s'", ": memory is '80 GB/s'; give a number of bytes, such as '80 GB'"),
        ("'80 GB'", "80", ": memory is an int without a unit; give a number of bytes, such as '80 GB'"),
        ("'80 GB'", "'80'", ": memory is '80'; give a number of bytes"),
        ("'80 GB'", "'0 GB'", "device has memory 0; give a finite number above 0"),
        ("3.35 TB/s", "3350 Gb/s", ": memory_bandwidth is '3350 Gb/s'; give bytes a second, such as '900 GB/s'"),
        ("3.35 TB/s", "-1 TB/s", ": memory_bandwidth is '-1 TB/s', no number of at least 0"),
        ("3.35 TB/s", "NaN TB/s", ": memory_bandwidth is 'NaN TB/s', no number of at least 0"),
        ("3.35 TB/s", "inf TB/s", ": memory_bandwidth is 'inf TB/s', no number of at least 0"),
        ("'2 us'", "'2 TFLOP/s'", ": kernel_time is '2 TFLOP/s'; give a time, such as '2.5 us'"),
        ("67 TFLOP/s", "0 TFLOP/s", "device has vector_rate 0.0; give a finite number above 0"),
        ("rates.float32", "rates.float16", "device has no rate of float32; give one, which others "),
        ("'1 TFLOP',", "'1 kFLOP',", "rate of float32 has sizes that do not rise; sort its points"),
        ("[['1 GFLOP', '20 TFLOP/s'], ", "['1 GFLOP', ", "has no pairs of a size and a rate"),
        ("devices = 8", "devices = 0", "level 'node' links 0 devices; give 1 or more, or none for any"),
        ("devices = 8", "topology = 'torus'", "level 'node' is a torus of no known size; say how many"),
        ("devices = 8", "topology = 'tours'", "has topology 'tours'; did you mean 'torus'?"),
        ("devices = 8", "", "level 'network' links any number of devices, which is no multiple of "),
        ("'network'", "'network'\ndevices = 12", "links 12 devices, which is no multiple of the 8 of 'node'"),
        ("= true", "= 'yes'", "level 'network' has by_processor 'yes'; give true or false"),
        ("'network'", "'network'\nturn_time = '-1 ms'", ".turn_time is '-1 ms', no number of at least 0"),
        ("= false", "= 0", "level 'network' has full_duplex 0; give true or false"),
        ("all_reduce", "all_redcue", "which is no collective; did you mean 'all_reduce'?"),
        ("'25 GB/s'", "'0 GB/s'", "level 'network' has bandwidth 0.0; give a finite number above 0"),
        ("'10 us'", "{ value = '1 us', source = 'x' }", "the source 'x' of levels[1].latency is none of [sources]"),
        ("name = 'node'", "name = 8", "has an int as 'levels[0].name'; write a text"),
        ("matches = ['Our Card*']", "matches = 'cpu'", "has a str as 'matches'; write a list"),
        ("rates.bfloat16 = '900 TFLOP/s'", "sources = 1", "has an int as 'sources'; write a table"),
        ("format = 1", "format 1", "' is no TOML; "),
    ],
)  # fmt: skip
def test_a_faulty_file_is_refused_by_the_key(path: Path, old: str, new: str, said: str) -> None:
    text = MINE.replace('"', "'")
    assert old in text
    with pytest.raises(OptionError) as raised:
        load(path, text.replace(old, new, 1))
    assert str(raised.value).startswith(f"hardware profile '{path}'")
    if "is no TOML" in said:
        assert str(raised.value).endswith("; mend the file")
    assert said in str(raised.value)


def test_no_profile_is_made_of_figures_that_no_device_has() -> None:
    with pytest.raises(OptionError, match="device has vector_rate nan; give a finite number above"):
        replace(SIMULATED, vector_rate=math.nan)
    with pytest.raises(OptionError, match=r"device has kernel_seconds -1; .* number of at least 0"):
        replace(SIMULATED, kernel_seconds=-1)
    with pytest.raises(OptionError, match="rate of float32 has no points; give a size and a rate"):
        replace(SIMULATED, rates={DType.float32: ()})
    with pytest.raises(OptionError, match="device has no level of links; give at least one"):
        replace(SIMULATED, levels=())


def test_what_is_no_toml_is_refused(path: Path) -> None:
    with pytest.raises(OptionError, match=r"^hardware profile '.*' is no TOML; .*; mend the file$"):
        load(path, "format 1")


def test_json_holds_a_table(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(OptionError, match="holds a list; write a table of keys"):
        ml.Hardware.load(path)


class Card(NumpyEngine):
    """An engine whose devices call themselves something."""

    __slots__ = ()
    kind = ""

    @property
    def device_kind(self) -> str:
        return self.kind


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"), ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"), ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA B200", "b200"), ("AMD Instinct MI300X OAM", "mi300x"), ("TPU v4", "tpu-v4"),
        ("TPU v5 lite", "tpu-v5e"), ("TPU v5", "tpu-v5p"), ("TPU v6 lite", "tpu-v6e"),
        ("Apple M2 Ultra", "m2-ultra"), ("cpu", "cpu"), ("simulated", "simulated"),
    ],
)  # fmt: skip
def test_devices_find_their_profile_by_what_they_call_themselves(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Card, "kind", kind)
    found = find_hardware(Card(Mesh()))
    assert (found.name, found.unknown_platform) == (name, "")


def test_no_profile_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Card, "kind", "NVIDIA H100 PCIe")
    found = find_hardware(Card(Mesh()))
    assert (found.name, found.unknown_platform) == ("simulated", "simulated")


def test_every_file_of_the_folder_is_named_as_its_profile() -> None:
    assert {path.stem for path in FOLDER.glob("*.toml")} == set(NAMES)


@pytest.mark.parametrize(
    ("dimension", "number", "text"),
    [(BYTES, 8e10, "80 GB"), (BANDWIDTH, 3.35e12, "3.35 TB/s"), (TIME, 3.25e-5, "32.5 us"), (RATE, 5.0, "5 FLOP/s")],
)  # fmt: skip
def test_quantities_are_read_as_they_are_written(dimension, number, text) -> None:
    assert dimension.write(number) == text
    assert dimension.read(text, "it") == number


def test_binary_prefixes_are_those_of_memory() -> None:
    assert BYTES.read("32 GiB", "memory") == 32 * 2**30


def test_a_profile_with_a_link_to_the_host_is_written_as_it_is_read() -> None:
    hardware = load_profile("h100-sxm").hardware
    assert hardware.host_bandwidth == 64e9
    assert hardware.copy_seconds(64e9) == pytest.approx(1.0, rel=1e-3)
    assert SIMULATED.copy_seconds(1e9) == 0.0  # it is one memory, which takes no time
