"""Methods that frameworks add: messages say which backend has one, whoever wrote the backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mithril as ml
import pytest
from mithril.plugins import published

from tests.plugin_packages import write_plugin

PLUGIN = """
@hookimpl
def mithril_backends():
    methods = ("on_chip", "as_netlist")
    return [BackendSpec(name="silicon", open=never, api=(2, 0), methods=methods)]
"""


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Have installed backends asked again."""
    published._list_installed_methods.cache_clear()
    yield
    published._list_installed_methods.cache_clear()


def test_of_an_installed_backend_they_come_from_its_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plugin(tmp_path, "silicon", PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        AttributeError, match=r"has no attribute 'as_netlist'; backend 'silicon' has it$"
    ):
        ml.NumpyBackend().ones(2).as_netlist()


def test_otherwise_the_nearest_name_is_proposed() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'as_netlist'$"):
        ml.NumpyBackend().ones(2).as_netlist()
    assert published.suggest_attribute("nunpy", ["numpy"]) == "; did you mean 'numpy'?"
