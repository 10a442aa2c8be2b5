"""Mistakes that authors of backends make: each is found, and said so that it can be mended."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mithril.errors import BackendError
from mithril.testing import check_backend
from mithril.testing.check import Status
from mithril.testing.speed import describe_speed, measure_speed
from mithril.testing.target import Target

from tests.kit.faulty import write_faulty
from tests.profiles import quick

PROBES = {
    "float64 for float32": (
        "wrap('gelu', lambda y: y.astype(np.float64))",
        "ops/gelu", Status.wrong, "returns float64[4, 6] for float32[4, 6]",
    ),
    "nothing": ("replace('gelu', lambda x: None)", "ops/gelu", Status.wrong, "gelu"),
    "a tuple": ("wrap('gelu', lambda y: (y, y))", "ops/gelu", Status.wrong, "gelu"),
    "a wrong shape": ("wrap('gelu', lambda y: y.T)", "ops/gelu", Status.wrong, "gelu"),
    "a row is lost": ("wrap('add', lambda y: y[1:])", "ops/add", Status.wrong, "add"),
    "wrong numbers": ("wrap('tanh', lambda y: y * 1.01)", "ops/tanh", Status.wrong, "off by"),
    "no table entry": (
        "Faulty.kernels = property(lambda self: frozenset(NUMPY_KERNELS)); del KERNELS['tanh']",
        "ops/tanh", None, "kernels that are not those of its table: they differ by",
    ),
    "a kernel raises": (
        "def burn(x): raise ZeroDivisionError('chip on fire')\nreplace('gelu', burn)",
        "ops/gelu", Status.wrong, "chip on fire",
    ),
    "a factory raises": (
        "def burn(*_): raise ZeroDivisionError('chip on fire')\nKERNELS['gelu'] = burn",
        "ops/gelu", Status.wrong, "chip on fire",
    ),
    "constant random bits": (
        "wrap('random_bits', lambda y: np.full_like(y, 7))",
        "ops/random_bits", Status.wrong, "random_bits",
    ),
    "a kernel is missing": (
        "del KERNELS['cholesky']", "ops/cholesky", Status.missing, "no kernel",
    ),
    "a dtype that nobody knows": (
        "Faulty.dtypes = frozenset({'float31', 'float32', 'int32', 'bool', 'uint32'})",
        "engine/what it says of itself", None, "among its dtypes, which is no DType",
    ),
    "an array is changed": (
        "def spoil(x, y): x += y; return x\nreplace('add', spoil)",
        "engine/memory", Status.wrong, "writes into its operand 0, which others read",
    ),
    "shard of another shape": (
        "Faulty.shard = lambda self, shards, sharding, device: np.atleast_1d(shards[device])",
        "engine/put and shard", Status.wrong, "shard of backend 'faulty' returns an array that can be",
    ),
    "put with too few parts": (
        "Faulty.put = lambda self, type, sharding, produce: [np.zeros(3)]",
        "engine/parts", Status.wrong, "",
    ),
    "nothing to run": (
        "Faulty.lower = lambda self, program, donate=(): None",
        "ops/tanh", Status.wrong,
        "lower of backend 'faulty' returns None; return a function that runs what it was given",
    ),
    "a program returns nothing": (
        "Faulty.lower = lambda self, program, donate=(): lambda inputs, observe=None: None",
        "ops/tanh", Status.wrong, "program of backend 'faulty' returns None for 1 outputs; return",
    ),
    "no collectives": (
        "Faulty.capabilities = frozenset()", "collectives/all_reduce", Status.missing, "capabilities",
    ),
}  # fmt: skip


OF_FEATURES = {
    "arrays are kept": (
        "HELD, right = [], Faulty.put\n"
        "def put(self, type, sharding, produce):\n"
        "    HELD.append(right(self, type, sharding, produce))\n"
        "    return HELD[-1]\n"
        "Faulty.put = put",
        "leaks/memory", Status.wrong, "arrays of 4 MiB behind",
    ),
    "files are kept open": (
        "import os\n"
        "right = Faulty.lower\n"
        "def lower(self, program, donate=()):\n"
        "    os.open(__file__, os.O_RDONLY)\n"
        "    return right(self, program, donate)\n"
        "Faulty.lower = lower",
        "leaks/file handles", Status.wrong, "files open",
    ),
    "nobody is told": (
        "right = Faulty.lower\n"
        "def lower(self, program, donate=()):\n"
        "    run = right(self, program, donate)\n"
        "    return lambda inputs, observe=None: run(inputs)\n"
        "Faulty.lower = lower",
        "engine/what it tells", Status.wrong, "observe is told of []; the plan lists",
    ),
    "no parts of a mesh": (
        "from mithril.engine import Engine\nFaulty.part = Engine.part",
        "stages/two", Status.missing, "knows no parts of its mesh",
    ),
    "no bfloat16": (
        "Faulty.dtypes = frozenset(DType) - {DType.bfloat16}",
        "precision/bfloat16", Status.missing, "bfloat16 is not among the engine's dtypes",
    ),
    "host arrays that can be written to": (
        "Faulty.shard = lambda self, shards, sharding, device: np.asarray(shards[device]).copy()",
        "engine/memory", Status.wrong, "can be written to",
    ),
    "constant bits are seen by Dropout": (
        "wrap('random_bits', lambda y: np.full_like(y, 7))",
        "random/Dropout", Status.wrong, "1 distinct values of 70, where NumPy has 2",
    ),
    "matrices without an inverse are refused": (
        "replace('inv', np.linalg.inv)",
        "values/singular matrices", Status.wrong, "kernel 'inv' of backend 'faulty' raises LinAlgError",
    ),
    "matrices without an inverse have one": (
        "wrap('inv', np.nan_to_num)",
        "values/singular matrices", Status.wrong, "inv of a matrix without a result is finite: [[",
    ),
    "results are computed when they are read": (
        "from functools import cache\n"
        "def lower(self, program, donate=()):\n"
        "    run = LockstepExecutable(program, self.kernel_table, np, checks=self.kernel_checks)\n"
        "    def later(inputs, observe=None):\n"
        "        made = cache(lambda: run(inputs))\n"
        "        return [lambda at=at: made()[at] for at, _ in enumerate(program.outputs)]\n"
        "    return later\n"
        "right = Faulty.shard\n"
        "Faulty.shard = lambda self, x, *where: right(self, x() if callable(x) else x, *where)\n"
        "Faulty.lower = lower",
        "engine/wait_for", Status.wrong, "it computes when it is read; have Engine.wait_for",
    ),
    "no bool": (
        "Faulty.dtypes = frozenset(DType) - {DType.bool_}",
        "engine/what it says of itself", Status.wrong, "dtypes lacks bool, without which no model",
    ),
    "a kernel that an expansion needs raises": (
        "def burn(*_): raise ZeroDivisionError('chip on fire')\n"
        "replace('erf', burn); del KERNELS['gelu']",
        "ops/gelu", Status.wrong, "kernel 'erf' of backend 'faulty' raises ZeroDivisionError",
    ),
}  # fmt: skip


@quick(lambda probe: " are kept" not in probe)  # which is seen after many runs
@pytest.mark.parametrize("probe", [*PROBES, *OF_FEATURES])
def test_a_mistake_is_found(probe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, check, status, text = {**PROBES, **OF_FEATURES}[probe]
    write_faulty(tmp_path, fault)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "acme_faulty", raising=False)
    level = "smoke" if probe in PROBES else "basic"
    if status is None:  # it is not opened
        with pytest.raises(BackendError, match=text):
            check_backend("faulty", level=level, pattern=check)
        return
    report = check_backend("faulty", level=level, pattern=check)
    (result,) = [result for result in report.results if result.check.id == check]
    assert result.outcome.status is status, result
    assert text in result.outcome.note
    assert not report.is_good


def test_a_backend_that_opens_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_faulty(tmp_path, "open_faulty = lambda mesh, options: 42")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "acme_faulty", raising=False)
    with pytest.raises(BackendError, match="opens an int, which is no engine"):
        check_backend("faulty", level="smoke")


@pytest.mark.slow
def test_numpy_is_good_and_its_speed_is_told() -> None:
    report = check_backend("numpy", level="basic", mesh={"data": 2})
    assert report.is_good, report.faults
    lines = report.describe_speed()
    assert lines[0].split() == ["speed", "devices", "ms", "numpy", "ms", "ratio"]
    assert {(row.name, row.devices) for row in report.speed} >= {("GPT training step", 2)}
    assert all(row.milliseconds > 0 and row.numpy > 0 for row in report.speed)
    assert str(report).endswith(report.summary())


def test_a_slow_table_says_what_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_faulty(tmp_path, "def burn(*_): raise ZeroDivisionError\nreplace('softmax', burn)")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "acme_faulty", raising=False)
    rows = measure_speed(Target("faulty", {"a": 1}))
    (row,) = [row for row in rows if row.error]
    assert (row.name, row.error) == ("softmax 512", "FaultyBackendError")
    assert describe_speed([row])[1].split() == ["softmax", "512", "1", "FaultyBackendError"]
