"""Ops that users define, and kernels that they bring: models with them are tuned as others are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mithril as ml
import pytest
from mithril.errors import MithrilWarning
from mithril.plan.serialize import plan_to_json
from mithril.runtime.planned import plan_backend
from mithril.tuning.measure import Worker

from tests.plugin_helpers import forget
from tests.tuning.models import H100, make_mlp

SHAPES = {"x": (16, 8)}


def make_own() -> ml.Model:
    """Return two linear layers with an op of a user's between, which NumPy has a kernel for."""
    square = ml.define_op(
        "square_of_mine",
        shapes=lambda x: x,
        rule="elementwise",
        kernels={"numpy": lambda x: x * x},
        gradient=lambda operands, results, cotangents: [cotangents[0] * operands[0] * 2],
    )

    @ml.layer
    def Square(input):  # noqa: N802
        return square(input)

    model = ml.Model()
    model |= ml.Linear(64, name="up")(input="x", output="h")
    model += Square(name="act")
    model += ml.Linear(8, name="down")(output="y")
    return model


PLUGIN = """
from mithril.spi import PluginKernel, hookimpl


@hookimpl
def mithril_kernels():
    return [PluginKernel(op="relu", backend="numpy", function="acme_quick:clip")]


def clip(x):
    return x.clip(0)
"""


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a plugin that brings a kernel, and forget it afterwards."""
    about = tmp_path / "acme_quick-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-quick\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[mithril.plugins]\nquick = acme_quick\n")
    (tmp_path / "acme_quick.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    forget()


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_plans_with_a_kernel_of_a_plugin_are_measured() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    text = plan_to_json(ml.compile(make_mlp(), backend, shapes=SHAPES).plan)
    assert "quick.relu" in text
    worker = Worker(backend)
    assert worker.ask({"key": "a", "plan": text}, 60.0) == {"ready": True}
    worker.end()


@pytest.mark.slow
def test_that_nothing_is_measured_with_ops_of_a_script_is_said() -> None:
    asked = {"input_shapes": SHAPES, "strategy_space": "data"}
    with pytest.warns(MithrilWarning, match="op 'square_of_mine' is not known here.* of a script;"):
        found = ml.auto_tune(make_own(), ml.NumpyBackend(ml.Mesh(data=2)), **asked)
    assert found.findings.measured is None


def test_an_op_that_some_backend_has_a_kernel_for_is_planned() -> None:
    backend = ml.NumpyBackend(ml.Mesh(pipeline=2))
    asked = {"input_shapes": SHAPES, "strategy_space": "pipeline", "measure": False}
    assert ml.auto_tune(make_own(), backend, **asked).findings.planned
    balanced = ml.compile(make_own(), backend, shapes=SHAPES, load_balancing=True)
    assert len({stage.devices for stage in balanced.plan.stages}) == 2
    there = ml.compile(make_own(), plan_backend(ml.Mesh(data=2), H100), shapes=SHAPES)
    assert there.plan.timeline().seconds > 0
