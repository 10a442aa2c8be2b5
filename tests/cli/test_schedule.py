"""`mithril schedule`: pictures and tables of schedules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mithril.cli.app import app
from mithril.plugins import hookimpl, register_plugin, unregister_plugin
from typer.testing import CliRunner


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["schedule", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return f"{type(done.exception).__name__}: {done.exception}"
    return done.stdout


def test_a_picture_has_its_figures_above_it() -> None:
    picture = run("zb-h1").splitlines()
    assert picture[0] == (
        "zb-h1: 4 devices, 8 micro-batches, bubble 11.1 %, activations of at most 4 micro-batches"
    )
    assert picture[4].split()[:5] == ["3", "F0", "I0", "F1", "I1"]


def test_costs_change_the_picture() -> None:
    assert "bubble 33.3 %" in run("gpipe", "--devices", "2", "--microbatches", "2")
    assert "bubble 42.9 %" in run(
        "gpipe", "--devices", "2", "--microbatches", "2", "--costs", "1,1,1,0.75"
    )


def test_json_has_the_figures_and_every_action() -> None:
    found = json.loads(run("gpipe", "--devices", "2", "--microbatches", "2", "--json"))
    assert found["schema"] == 1
    assert (found["name"], found["devices"], found["microbatches"]) == ("gpipe", 2, 2)
    assert round(found["bubble"], 3) == 0.333
    assert found["rows"][1][0] == {"action": "1F0", "start": 1.0, "end": 2.0}
    assert [len(row) for row in found["rows"]] == [4, 4]
    assert found["peaks"] == [2, 2]
    assert run("gpipe", "--json", "--table") == (
        "OptionError: --json and --table print the schedule in two forms; give one"
    )


def test_a_table_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        run("interleaved", "--devices", "2", "--microbatches", "2", "--chunks", "2", "--table")
    )
    assert run(str(path)).startswith("mine: 2 devices, 2 micro-batches, bubble ")
    assert run(str(path), "--table") == path.read_text()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ("1f1b", "--costs", "1,2"),
            "OptionError: --costs '1,2' is not four numbers; write 1,1,1,0.1",
        ),
        (
            ("1f1b", "--costs", "1e308,1e308,1e308,0", "--json"),
            "OptionError: --costs '1e308,1e308,1e308,0' add up to no number; give smaller ones",
        ),
        (("1f1b", "--costs", "0,0,0,1"), "PlanError: costs (0.0, 0.0, 0.0, 1.0) are not times"),
        (
            ("mine.csv", "--chunks", "9"),
            "OptionError: --chunks 9 has no effect beside the table 'mine.csv'; leave it out",
        ),
        (
            ("1f1b", "--table", "--costs", "1,1,1,0"),
            "OptionError: --costs 1,1,1,0 has no effect beside --table; leave it out",
        ),
        (("nowhere.csv",), "OptionError: schedule file 'nowhere.csv' cannot be read; No such file"),
        (("gpipe", "--most-held", "2"), "PlanError: schedule 'gpipe' holds activations of 3"),
    ],
)
def test_a_mistake(arguments: tuple[str, ...], text: str) -> None:
    assert run(*arguments).startswith(text)


def test_a_plugin_that_makes_other_numbers_than_were_asked_for() -> None:
    @hookimpl
    def mithril_schedules() -> dict[str, object]:
        return {"fixed": lambda devices, microbatches, chunks: ["0F0,0B0", "1F0,1B0"]}

    register_plugin("mine", mithril_schedules)
    try:
        assert run("mine.fixed", "--devices", "2", "--microbatches", "1").startswith("mine.fixed")
        assert run("mine.fixed", "--devices", "3").startswith(
            "PlanError: schedule 'mine.fixed' has 2 devices and 1 micro-batches where 3 and 8 were "
            "asked for; choose another one"
        )
    finally:
        unregister_plugin("mine")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes(b"\xff\xfe0")
    assert run(str(path)).startswith(
        f"OptionError: schedule file '{path}' is no text in UTF-8; save"
    )
    path.write_bytes("\ufeff0F0,0B0\n".encode())
    assert run(str(path)).startswith("mine: 1 devices")
