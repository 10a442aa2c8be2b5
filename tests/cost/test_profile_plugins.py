"""Profiles of third parties: files that a plugin names; a faulty one harms no other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import mithril as ml
import pytest
from mithril.cost.profiles import list_profiles
from mithril.cost.profiles.registry import read_profiles
from mithril.errors import BackendError, OptionError
from mithril.plugins import hookimpl, register_plugin, unregister_plugin

from tests.plugin_packages import write_plugin

Install = Callable[[str, str], None]
HOOK = "from mithril.plugins import hookimpl\n@hookimpl\ndef mithril_hardware():\n    return {}\n"
CARD = """
format = 1
matches = ["NPU 7"]
memory_bandwidth = "1 TB/s"
kernel_time = "1 us"
vector_rate = "1 TFLOP/s"
rates.float32 = "10 TFLOP/s"
[[levels]]
name = "node"
latency = "1 us"
bandwidth = "10 GB/s"
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a plugin written in a test on the path of this process, and forget profiles."""
    monkeypatch.syspath_prepend(tmp_path)
    read_profiles.cache_clear()
    yield lambda name, source: write_plugin(tmp_path, name, source, group="mithril.plugins")
    read_profiles.cache_clear()
    for module in [name for name in sys.modules if name.startswith("acme_")]:
        del sys.modules[module]


def offer(folder: Path, *names: str, text: str = CARD) -> str:
    """Write profiles, and return the source of a plugin that names them."""
    for name in names:
        (folder / name).write_text(text, encoding="utf-8")
    return HOOK.format([str(folder / name) for name in names])


def refusal(name: str) -> str:
    with pytest.raises(OptionError) as raised:
        ml.Hardware.load(name)
    return str(raised.value)


def test_one_that_is_not_installed_offers_profiles(tmp_path: Path) -> None:
    path = tmp_path / "npu-7.toml"
    path.write_text(CARD, encoding="utf-8")

    @hookimpl
    def mithril_hardware() -> list[str]:
        return [str(path)]

    @hookimpl
    def mithril_backends() -> list[object]:
        return []

    register_plugin("mine", mithril_hardware)
    try:
        assert ml.Hardware.load("npu-7").name == "npu-7"
        path.write_text(CARD.replace("1 TB/s", "2 TB/s"), encoding="utf-8")
        assert ml.Hardware.load("npu-7").memory_bandwidth == 2e12
    finally:
        unregister_plugin("mine")
    assert refusal("npu-7").startswith("hardware 'npu-7' has no profile")
    said = "plugin 'mine' of this process implements mithril_backends, and backends are found by"
    with pytest.raises(BackendError, match=said):
        register_plugin("mine", mithril_backends)


def test_a_module_that_exits_harms_no_other(install: Install, tmp_path: Path) -> None:
    install("cards", offer(tmp_path, "npu-7.toml"))
    install("gone", "raise SystemExit(3)")
    assert ml.NumpyBackend().name == "numpy"
    assert ml.Hardware.load("npu-7").origin == "acme-cards"
    (row,) = [entry for entry in list_profiles() if entry.package == "acme-gone"]
    assert (row.name, row.fault) == ("gone", "SystemExit: 3")


def test_a_plugin_registers_profiles(install: Install, tmp_path: Path) -> None:
    install("cards", offer(tmp_path, "npu-7.toml", "npu-8.toml"))
    found = ml.Hardware.load("npu-7")
    assert (found.name, found.origin, found.memory_bandwidth) == ("npu-7", "acme-cards", 1e12)
    assert refusal("npu") == "hardware 'npu' is one of 'npu-7', 'npu-8'; say which"


def test_a_faulty_profile_is_refused_when_it_is_asked_for(install: Install, tmp_path: Path) -> None:
    install("cards", offer(tmp_path, "npu-7.toml", text=CARD.replace("TB/s", "TB")))
    install("more", offer(tmp_path, "npu-8.toml"))
    assert ml.Hardware.load("npu-8").name == "npu-8"
    assert refusal("npu-7") == (
        f"hardware profile 'npu-7' of acme-cards is broken; hardware profile "
        f"'{tmp_path / 'npu-7.toml'}': memory_bandwidth is '1 TB'; give bytes a second, such as "
        f"'900 GB/s'; mend or remove it, or give the path of another"
    )
    (row,) = [entry for entry in list_profiles() if entry.name == "npu-7"]
    assert (row.package, row.profile, "give bytes a second" in row.fault) == (
        "acme-cards",
        None,
        True,
    )


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
        (
            HOOK.format("7"),
            "BackendError: mithril_hardware returned an int; return a list of paths",
        ),
        (
            HOOK.format("[7]"),
            "BackendError: mithril_hardware offers an int; return a list of paths",
        ),
    ],
)
def test_a_plugin_that_cannot_be_asked_is_named_beside_the_profile_that_is_missed(
    install: Install, source: str, said: str
) -> None:
    install("cards", source)
    assert ml.Hardware.load("h100-sxm").name == "h100-sxm"
    assert refusal("npu-7").endswith(f"; broken: cards ({said})")
    assert f"hardware profile 'cards' of acme-cards is broken; {said}; " in refusal("cards")


def test_a_profile_has_the_name_of_its_file(install: Install, tmp_path: Path) -> None:
    install(
        "cards", offer(tmp_path, "npu-7.toml", text=CARD.replace("format", "name = 'npu'\nformat"))
    )
    assert "has the name 'npu'; name it as its file, 'npu-7'" in refusal("npu-7")


def test_a_name_of_the_core_stays_the_cores(install: Install, tmp_path: Path) -> None:
    install("cards", offer(tmp_path, "cpu.toml"))
    assert ml.Hardware.load("cpu").origin == "mithril-core"
    faults = {entry.package: entry.fault for entry in list_profiles() if entry.name == "cpu"}
    assert faults["acme-cards"] == (
        "its name is also claimed by mithril-core, whose profile is used"
    )


def test_a_name_that_two_plugins_claim_is_neithers(install: Install, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    install("cards", offer(tmp_path, "npu-7.toml"))
    install("boards", offer(tmp_path / "other", "npu-7.toml"))
    assert refusal("npu-7") == (
        "hardware profile 'npu-7' is claimed by 'acme-boards', 'acme-cards'; remove one of them, "
        "or give the path of a file"
    )
    faults = {entry.package: entry.fault for entry in list_profiles() if entry.name == "npu-7"}
    assert faults["acme-cards"] == "its name is also claimed by 'acme-boards'; none is used"
    assert faults["acme-boards"] == "its name is also claimed by 'acme-cards'; none is used"


def test_what_the_variable_blocks_is_not_asked(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("cards", offer(tmp_path, "npu-7.toml"))
    monkeypatch.setenv("MITHRIL_PLUGINS", "numpy")
    assert refusal("npu-7").startswith("hardware 'npu-7' has no profile; ")


def test_strict_raises_what_the_plugin_raised(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("cards", "raise RuntimeError('no driver')")
    monkeypatch.setenv("MITHRIL_STRICT", "1")
    with pytest.raises(RuntimeError, match="no driver"):
        list_profiles()
