"""What the kit says of a failure: every op that is wrong at an edge, and whose line it was."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from mithril.testing.check import describe_error
from mithril.testing.checks.ops import FLOAT64_ALONE
from mithril.testing.compare import describe_difference

from tests.kit.faulty import write_faulty
from tests.plugin_packages import mithril

LOSES_NAN = "wrap('relu', np.nan_to_num); wrap('tanh', np.nan_to_num)"


@pytest.mark.slow
def test_all_ops_that_are_wrong_at_an_edge_are_named(tmp_path: Path) -> None:
    write_faulty(tmp_path, LOSES_NAN)
    asked = ("backends", "check", "faulty", "--level", "basic", "-k", "values/NaN*")
    done = mithril(*asked, path=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "2 of 37 cases: " in done.stdout
    assert "smallest failing case: tanh of float32[10]" in done.stdout
    assert "; wrong as well: 'relu'" in done.stdout


BURNS = """
def burn(*_):
    raise TypeError("no such\\n  dtype")
replace('relu', burn); replace('tanh', burn); replace('sin', lambda x: x)
"""


@pytest.mark.slow
def test_what_several_checks_fail_for_is_said_once_more(tmp_path: Path) -> None:
    write_faulty(tmp_path, BURNS)
    done = mithril("backends", "check", "faulty", "--level", "smoke", path=tmp_path)
    lines = done.stdout.splitlines()
    at = lines.index("causes of several")
    causes = lines[at + 1 : -1]
    assert len(causes) == 1, causes
    faults = int(causes[0].split()[2])
    assert causes[0].split(maxsplit=5)[3:] == ["that", "fail", "TypeError: no such dtype"]
    assert int(causes[0].split()[0]) == faults - 1, "all but ops/sin"
    (relu,) = [line for line in lines if line.startswith("  relu")]
    assert re.search(r"raises TypeError: no such dtype \(acme_faulty\.py:\d+\); its operands", relu)


OF_SHAPES = """
def refuse(x):
    raise ValueError(f"shape {x.shape} has {x.size} elements, not {x.size + 1.5} of float16")
replace('relu', refuse); replace('tanh', refuse)
def shard(self, shards, sharding, device):
    found = NumpyEngine.shard(self, shards, sharding, device)
    if found.ndim == 3 and found.dtype == np.float32:
        raise ValueError(f"TensorShape({list(found.shape)}) is refused")
    return found
Faulty.shard = shard
"""


@pytest.mark.slow
def test_causes_that_differ_in_numbers_are_one(tmp_path: Path) -> None:
    """Those of kernels, and those that an op ends in behind its kernel, where it is `wrong`."""
    write_faulty(tmp_path, OF_SHAPES)
    asked = ("backends", "check", "faulty", "--level", "smoke", "--json", "-k", "ops/*")
    rows = json.loads(mithril(*asked, path=tmp_path).stdout)["results"]
    bad = [row for row in rows if not row["good"]]
    refused = [row for row in bad if "ValueError: TensorShape([" in row["note"]]
    assert len({row["cause"] for row in refused}) > 1
    assert {row["status"] for row in refused} == {"wrong"}
    lines = mithril(*asked[:-3], *asked[-2:], path=tmp_path).stdout.splitlines()
    causes = lines[lines.index("causes of several") + 1 : -1]
    assert len(causes) == 2, causes
    assert causes[0].startswith(f"  {len(refused)} of {len(bad)} that fail")
    assert causes[1].startswith(f"  2 of {len(bad)} that fail")
    assert causes[1].endswith("of float16")


@pytest.mark.slow
@pytest.mark.parametrize("group", ["ops", "gradients"])
def test_float64_that_is_computed_in_less_is_told(group: str, tmp_path: Path) -> None:
    def list_causes(fault: str) -> set[str | None]:
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        write_faulty(folder, fault)
        asked = ("backends", "check", "faulty", "--level", "basic", "-k", f"{group}/exp*")
        report = json.loads(mithril(*asked, "--json", path=folder).stdout)
        wrong = {row["id"]: row["cause"] for row in report["results"] if not row["good"]}
        assert {f"{group}/exp"} <= wrong.keys()
        return set(wrong.values())

    assert list_causes("wrap('exp', lambda y: y * y.dtype.type(1 + 1e-6))") == {FLOAT64_ALONE}
    assert list_causes("wrap('exp', lambda y: y * y.dtype.type(1.1))") == {None}


def test_numbers_that_differ_are_written_so() -> None:
    found, expected = np.array([1.0]), np.array([1.0 + 2e-7])
    assert describe_difference(found, expected).endswith(": 1, not 1.0000002")
    same = np.array([np.nan]), np.array([1.0])
    assert describe_difference(*same) == "wrong at [0]: nan, not 1"


def test_an_error_names_the_last_line_of_the_backend() -> None:
    package = __name__.partition(".")[0]
    try:
        json.loads("{")
    except ValueError as error:
        assert re.search(r"\((decoder|__init__).py:\d+, called at", describe_error(error))
        assert "called at" not in describe_error(error, "another")
        assert ", called at test_messages.py:" in describe_error(error, package)
    try:
        raise KeyError(package)
    except KeyError as error:
        assert describe_error(error, package).count("test_messages.py:") == 1


PUT_FAILS = """
import json
Faulty.put = lambda self, type, sharding, produce: json.loads("{")
"""


@pytest.mark.slow
def test_the_line_of_a_backend_is_not_one_of_the_core(tmp_path: Path) -> None:
    """With checks on, a class of the core stands before that of the plugin."""
    write_faulty(tmp_path, PUT_FAILS)
    (tmp_path / "acme_faulty.py").rename(tmp_path / "mithril_faulty.py")
    points = tmp_path / "acme_faulty-1.0.dist-info" / "entry_points.txt"
    points.write_text("[mithril.backends]\nfaulty = mithril_faulty\n", encoding="utf-8")
    asked = ("backends", "check", "faulty", "--level", "smoke", "-k", "engine/put*", "--json")
    (row,) = json.loads(mithril(*asked, path=tmp_path).stdout)["results"]
    assert re.search(
        r"^JSONDecodeError: .* \(\w+\.py:\d+, called at mithril_faulty\.py:\d+\)$", row["note"]
    )


@pytest.mark.slow
def test_an_op_without_operands_says_what_is_wrong(tmp_path: Path) -> None:
    write_faulty(tmp_path, "wrap('iota', lambda y: y + y.dtype.type(1))")
    asked = ("backends", "check", "faulty", "--level", "smoke", "-k", "ops/iota", "--json")
    (row,) = json.loads(mithril(*asked, path=tmp_path).stdout)["results"]
    assert row["status"] == "wrong"
    assert re.search(
        r"cases: off by 1 at \[.*smallest failing case: iota\[.*no operands", row["note"]
    )
    (tmp_path / "raises").mkdir()
    write_faulty(tmp_path / "raises", "KERNELS['iota'] = lambda op, types: types[0]")
    (row,) = json.loads(mithril(*asked, path=tmp_path / "raises").stdout)["results"]
    assert "kernel 'iota' of backend 'faulty' raises IndexError: list index" in row["note"]
    assert "acme_faulty.py:" in row["note"]


FOREIGN = """
class TensorShape:
    def __init__(self, sizes): self.sizes = sizes
    def __iter__(self): return iter(self.sizes)
    def __repr__(self): return f"TensorShape({list(self.sizes)})"
class Foreign:
    def __init__(self, x): self.x, self.shape, self.dtype = x, TensorShape(x.shape), f"<{x.dtype}>"
    def __array__(self, dtype=None, copy=None): return self.x
Faulty.put = lambda self, *a: [Foreign(x) for x in NumpyEngine.put(self, *a)]
Faulty.shard = lambda self, shards, s, device: NumpyEngine.shard(self, [x.x for x in shards], s, device)
"""


@pytest.mark.slow
def test_arrays_that_mithril_cannot_read_are_told_by_their_shape_and_dtype(tmp_path: Path) -> None:
    write_faulty(tmp_path, FOREIGN)
    asked = ("backends", "check", "faulty", "--level", "smoke", "-k", "engine/*", "--json")
    rows = {row["id"]: row for row in json.loads(mithril(*asked, path=tmp_path).stdout)["results"]}
    row = rows["engine/put and shard"]
    text = "put of backend 'faulty' returns a Foreign of shape `TensorShape([])`"
    assert row["note"].startswith(text), row
    assert "not a tuple of ints; wrap the library's arrays in a class that has one" in row["note"]
    assert "is no dtype of Mithril; Engine.dtype_name says what it is called" in row["note"]
    assert "of shape `TensorShape([])`" in row["cause"]
    assert "of shape `TensorShape([4, 6])`" in rows["engine/memory"]["note"]


@pytest.mark.slow
def test_a_collective_is_not_blamed_for_a_kernel_that_is_missing(tmp_path: Path) -> None:
    write_faulty(tmp_path, "del KERNELS['transpose'], KERNELS['slice'], KERNELS['subtract']")
    asked = ("backends", "check", "faulty", "--level", "smoke", "-k", "[ec][no][lg]*", "--json")
    rows = {row["id"]: row for row in json.loads(mithril(*asked, path=tmp_path).stdout)["results"]}
    for name, ops in {
        "collectives/all_reduce": "'subtract'",
        "collectives/all_gather": "'slice', 'transpose'",
        "collectives/start and wait": "'subtract'",
        "engine/memory": "'transpose'",
    }.items():
        assert rows[name]["status"] == "missing"
        assert rows[name]["note"] == (
            f"not tried: its programs compute with {ops}, and backend 'faulty' has no kernel for "
            f"that; add one"
        )
    assert rows["collectives/parts of a device"]["good"]
