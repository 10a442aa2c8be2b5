"""Mistakes that authors of backends make: each is found, and said so that it can be mended."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mithril.errors import BackendError
from mithril.testing import check_backend
from mithril.testing.check import Status

from tests.kit.faulty import write_faulty

PROBES = {
    "float64 for float32": (
        "wrap('gelu', lambda y: y.astype(np.float64))",
        "ops/gelu", Status.wrong, "dtype float64",
    ),
    "nothing": ("replace('gelu', lambda x: None)", "ops/gelu", Status.wrong, "gelu"),
    "a tuple": ("wrap('gelu', lambda y: (y, y))", "ops/gelu", Status.wrong, "gelu"),
    "a wrong shape": ("wrap('gelu', lambda y: y.T)", "ops/gelu", Status.wrong, "gelu"),
    "a row is lost": ("wrap('add', lambda y: y[1:])", "ops/add", Status.wrong, "add"),
    "wrong numbers": ("wrap('tanh', lambda y: y * 1.01)", "ops/tanh", Status.wrong, "off by"),
    "no table entry": (
        "Faulty.kernels = property(lambda self: frozenset(NUMPY_KERNELS)); del KERNELS['tanh']",
        "ops/tanh", Status.wrong, "tanh",
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
    "no collectives": (
        "Faulty.capabilities = frozenset()", "collectives/all_reduce", Status.missing, "capabilities",
    ),
}  # fmt: skip


@pytest.mark.parametrize("probe", PROBES)
def test_a_mistake_is_found(probe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, check, status, text = PROBES[probe]
    write_faulty(tmp_path, fault)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "acme_faulty", raising=False)
    report = check_backend("faulty", level="smoke", pattern=check)
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
