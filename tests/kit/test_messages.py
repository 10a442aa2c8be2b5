"""What the kit says of a failure: every op that is wrong at an edge, and whose line it was."""

from __future__ import annotations

import json
from pathlib import Path

from mithril.testing.check import describe_error

from tests.kit.faulty import write_faulty
from tests.plugin_packages import mithril

LOSES_NAN = "wrap('relu', np.nan_to_num); wrap('tanh', np.nan_to_num)"


def test_all_ops_that_are_wrong_at_an_edge_are_named(tmp_path: Path) -> None:
    write_faulty(tmp_path, LOSES_NAN)
    asked = ("backends", "check", "faulty", "--level", "basic", "-k", "values/NaN*")
    done = mithril(*asked, path=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "2 of 37 cases: " in done.stdout
    assert "smallest failing case: tanh of float32[10]" in done.stdout
    assert "; wrong as well: 'relu'" in done.stdout


def test_an_error_names_the_last_line_of_the_backend() -> None:
    package = __name__.partition(".")[0]
    try:
        json.loads("{")
    except ValueError as error:
        assert ".py:" in describe_error(error)
        assert "called at" not in describe_error(error)
        assert ", called at test_messages.py:" in describe_error(error, package)
    try:
        raise KeyError(package)
    except KeyError as error:
        assert describe_error(error, package).count("test_messages.py:") == 1
