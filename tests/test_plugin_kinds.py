"""What plugins bring besides backends: each kind from a package that is installed as strangers do."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.cost.profiles.registry import read_profiles
from mithril.errors import MithrilWarning, OptionError
from mithril.ir import op, registry
from mithril.ops.own_kernel import list_kernels
from mithril.plan.serialize import plan_from_json, plan_to_json
from mithril.plugins import register_plugin
from mithril.plugins.discover import Status
from mithril.plugins.extensions import find_plugin, list_plugins

from tests.plugin_helpers import BACKENDS, X, assert_close, forget, open_on, raised
from tests.plugin_packages import installed


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install acme-kinds for this process."""
    monkeypatch.delenv("MITHRIL_PLUGINS", raising=False)
    monkeypatch.syspath_prepend(installed("kinds"))
    read_profiles.cache_clear()
    yield
    forget()


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install those that are broken, and those that claim what acme-kinds has."""
    for folder in ("claims", "halves"):
        monkeypatch.syspath_prepend(installed(folder))
    yield
    forget()


def swish(x: np.ndarray, beta: float) -> np.ndarray:
    return (x / (1 + np.exp(-beta * x.astype(np.float64)))).astype(x.dtype)


@pytest.mark.usefixtures("kinds")
class TestEachKind:
    def test_nothing_is_imported_before_it_is_needed(self) -> None:
        import mithril.plugins.extensions  # noqa: F401

        assert not [name for name in sys.modules if name.startswith("acme_kinds")]
        acme = ml.open_plugin("acme")
        assert dir(acme) == ["Swish", "SwishGlu", "swish"]
        assert {name for name in sys.modules if name.startswith("acme_kinds")} == {
            "acme_kinds",
            "acme_kinds.plugin",
        }
        assert acme.swish.__name__ == "swish"
        assert "acme_kinds.ops" in sys.modules
        assert "acme_kinds.layers" not in sys.modules

    def test_a_plan_that_is_read_brings_the_ops_and_kernels_that_it_names(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = ml.Model()
        model += ml.open_plugin("acme").Swish()
        model += ml.Tanh()
        compiled = ml.compile(model, ml.NumpyBackend(), inference=True)
        plan = compiled.plan_for({"input": (4,)})
        text = plan_to_json(plan)
        for name in [name for name in registry() if name.startswith("acme.")]:
            monkeypatch.delitem(op._REGISTRY, name)
        forget()
        assert str(plan_from_json(text)) == str(plan)
        assert "acme.swish" in registry()
        absent = text.replace("acme.swish", "acme.swosh")
        text = raised(lambda: plan_from_json(absent), OptionError)
        assert "brings no 'acme.swosh' among its ops; did you mean 'acme.swish'?" in text

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_an_op_runs_and_has_a_gradient(self, backend: str) -> None:
        opened = open_on(backend, 2)
        op = ml.open_plugin("acme").swish
        x = opened.array(X, sharding=P("data"))
        assert_close(op(x, beta=2.0).numpy(), swish(X, 2.0))
        slope = ml.grad(lambda x: ml.numpy.sum(op(x, beta=2.0)))(x)
        step = 1e-3
        wide = X.astype(np.float64)
        expected = (swish(wide + step, 2.0) - swish(wide - step, 2.0)) / (2 * step)
        assert_close(slope.numpy(), expected.astype(np.float32))

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_layers_run_in_a_model(self, backend: str) -> None:
        acme = ml.open_plugin("acme")
        model = ml.Model()
        model |= acme.Swish(beta=2.0)(input="x", output="gate")
        model |= acme.SwishGlu()(input="x", gate="gate", output="y")
        opened = open_on(backend, 2)
        compiled = ml.compile(model, opened, outputs=["y"])
        found = compiled.evaluate({}, {"x": opened.array(X, sharding=P("data"))})["y"].numpy()
        assert_close(found, X * swish(swish(X, 2.0), 1.0))

    def test_a_kernel_takes_the_place_of_the_backends_own(self) -> None:
        opened = ml.NumpyBackend((2,))
        compiled = ml.compile(ml.Tanh(), opened)
        x = opened.array(X, sharding=P("data"))
        y = compiled.evaluate({}, {"input": x})["output"]
        assert_close(y.numpy(), np.clip(X, -1, 1))
        (node,) = compiled.plan.stages[0].program.graph.nodes
        assert node.op.name == "acme.tanh"
        assert_close(opened.tanh(x).numpy(), y.numpy())
        assert list_kernels("numpy") == {"tanh": "plugin 'acme' of acme-kinds 1.3.0"}

    def test_other_backends_keep_theirs(self) -> None:
        x = ml.open_backend("jax").array(X)
        assert_close(x.backend.tanh(x).numpy(), np.tanh(X))

    def test_a_user_stands_before_a_plugin(self) -> None:
        ml.define_kernel("tanh", backend="numpy")(lambda x: x + 7)
        opened = ml.NumpyBackend()
        assert_close(opened.tanh(opened.array(X)).numpy(), X + 7)
        ml.remove_kernel("tanh", backend="numpy")

    def test_a_hardware_profile_prices_plans(self) -> None:
        opened = ml.NumpyBackend((2,), hardware="acme-npu")
        assert (opened.hardware.name, opened.hardware.origin) == ("acme-npu", "acme-kinds")

    def test_a_schedule_orders_a_pipeline(self) -> None:
        pipeline = ml.Pipeline([ml.Linear(dimension=8), ml.Linear(dimension=8)])
        opened = ml.NumpyBackend((2,), mesh_axis_names=["pipeline"])
        options = ml.PipelineOptions(schedule="acme.last-first", microbatch_size=2)
        whole = ml.compile(pipeline, opened)
        parameters = whole.randomize_params(0)
        x = np.arange(32, dtype=np.float32).reshape(4, 8)
        seed = {"output": np.ones((4, 8), np.float32)}
        expected = whole.evaluate(parameters, {"input": x}, output_gradients=seed)
        found = ml.compile(pipeline, opened, pipeline=options)
        outputs, gradients = found.evaluate(parameters, {"input": x}, output_gradients=seed)
        assert_close(outputs["output"].numpy(), expected[0]["output"].numpy())
        for name, gradient in gradients.items():
            assert_close(gradient.numpy(), expected[1][name].numpy())
        assert found.plan.timetable.schedule.lines == ["0F0,0F1,0B1,0B0", "1F0,1F1,1B1,1B0"]

    def test_passes_change_the_plan_and_explain_names_them(self) -> None:
        @ml.layer
        def Twice(input):  # noqa: N802 - layers are named as classes are
            return ml.numpy.negative(ml.numpy.negative(input))

        model = ml.Model()
        model |= Twice()(input="x", output="h")
        model |= ml.Relu()(input="h", output="y")
        opened = ml.NumpyBackend((2,))
        x = opened.array(X, sharding=P("data"))
        plain = ml.compile(model, opened, outputs=["y"])
        expected = plain.evaluate({}, {"x": x})["y"].numpy()
        passes = ["acme.fold", "acme.plain-relu"]
        changed = ml.compile(model, opened, outputs=["y"], passes=passes)
        assert_close(changed.evaluate({}, {"x": x})["y"].numpy(), expected)
        names = [node.op.name for node in changed.plan.stages[0].program.graph.nodes]
        assert [node.op.name for node in plain.plan.stages[0].program.graph.nodes] == [
            "negate", "negate", "relu",
        ]  # fmt: skip
        assert "negate" not in names
        assert "relu" not in names
        assert "maximum" in names
        told = str(changed.explain())
        assert "note: pass 'acme.fold' of acme-kinds 1.3.0 ran; nodes: 3 before, 1 after" in told
        assert "note: pass 'acme.plain-relu' of acme-kinds 1.3.0 ran; nodes: 1 before," in told

    def test_a_pass_over_a_graph_is_differentiated(self) -> None:
        @ml.jit(passes=["acme.fold"])
        def loss(x):
            return ml.numpy.sum(ml.numpy.negative(ml.numpy.negative(x)) * 3)

        opened = ml.NumpyBackend()
        assert_close(ml.grad(loss)(opened.array(X)).numpy(), np.full_like(X, 3))

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_observers_hear_of_compile_and_evaluate(self, backend: str) -> None:
        opened = open_on(backend, 2)
        compiled = ml.compile(ml.Relu(), opened)
        x = opened.array(X, sharding=P("data"))
        events = sys.modules["acme_kinds.plugin"].EVENTS
        events.clear()
        for _ in range(2):
            compiled.evaluate({}, {"input": x})
        made, *ran = events
        assert [type(event).__name__ for event in events] == ["Compiled", "Evaluated", "Evaluated"]
        assert (made.caller, made.backend, made.mesh) == ("evaluate()", backend, opened.mesh)
        assert made.plan is compiled.plan
        assert made.planning_seconds > 0
        assert made.lowering_seconds > 0
        assert all(event.caller == "evaluate()" and event.seconds > 0 for event in ran)
        events.clear()
        opened.relu(x)
        assert not events

    def test_the_entry_says_all(self) -> None:
        entry = find_plugin("acme")
        assert entry is not None
        assert entry.status is Status.ready
        assert entry.brings == {
            "ops": ("acme.swish",),
            "layers": ("acme.Swish", "acme.SwishGlu"),
            "schedules": ("acme.last-first",),
            "graph_passes": ("acme.fold",),
            "program_passes": ("acme.plain-relu",),
            "commands": ("acme.count",),
            "kernels": ("tanh on numpy",),
            "hardware": ("acme-npu",),
            "observers": ("compiled", "evaluated"),
        }

    def test_an_installed_one_keeps_its_namespace(self) -> None:
        text = raised(lambda: register_plugin("acme"))
        assert text.startswith("namespace 'acme' is that of the installed plugin of 'acme-kinds'")


@pytest.mark.usefixtures("others", "kinds")
class TestFaults:
    @pytest.mark.slow
    def test_two_claim_a_namespace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = {(e.name, e.package): e.status for e in list_plugins()}
        assert rows == {
            ("acme", "acme-claims"): Status.duplicate,
            ("acme", "acme-kinds"): Status.duplicate,
            ("acme-halves", "acme-halves"): Status.broken,
            ("claims", "acme-claims"): Status.ready,
            ("halves", "acme-halves"): Status.ready,
        }
        assert raised(lambda: ml.open_plugin("acme")) == (
            "plugin 'acme' of acme-claims 2.0.0 is duplicate; name also claimed by 'acme-kinds'; "
            "MITHRIL_PLUGIN_ACME=acme-claims selects this one"
        )
        monkeypatch.setenv("MITHRIL_PLUGIN_ACME", "acme-kinds")
        assert repr(ml.open_plugin("acme")) == "<plugin 'acme' of acme-kinds 1.3.0>"

    def test_two_bring_a_kernel_for_one_op(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MITHRIL_PLUGIN_ACME", "acme-kinds")
        assert raised(ml.NumpyBackend, OptionError) == (
            "op 'tanh' has a kernel on backend 'numpy' by plugin 'acme' of acme-kinds 1.3.0 "
            "already, and plugin 'claims' of acme-claims 2.0.0 brings another; remove one of them, "
            "or name in MITHRIL_PLUGINS all plugins but one of these"
        )
        assert ml.open_backend("jax").name == "jax"
        monkeypatch.setenv("MITHRIL_PLUGINS", "numpy, acme")
        opened = ml.NumpyBackend()
        assert_close(opened.tanh(opened.array(X)).numpy(), np.clip(X, -1, 1))

    def test_a_broken_one_harms_no_other(self) -> None:
        assert raised(lambda: ml.open_plugin("acme-halves")) == (
            "plugin 'acme-halves' of acme-halves 0.2.0 is broken; RuntimeError: no licence found; "
            "mithril plugins info acme-halves"
        )

    def test_what_cannot_be_imported_says_so_when_it_is_asked_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MITHRIL_PLUGINS", "numpy, halves")
        halves = ml.open_plugin("halves")
        assert dir(halves) == ["half"]
        assert raised(lambda: halves.half) == (
            "'halves.half' of acme-halves 0.2.0 cannot be imported from 'acme_halves.ops:half'; "
            "ModuleNotFoundError: No module named 'acme_halves.ops'; it is the plugin's own fault: "
            "tell its author, or remove it"
        )
        opened = ml.NumpyBackend()
        assert_close(opened.tanh(opened.array(X)).numpy(), np.tanh(X))
        text = raised(lambda: opened.erf(opened.array(X)))
        assert text.startswith("kernel of 'erf' on 'numpy' of acme-halves 0.2.0 cannot be imported")

    def test_an_observer_that_raises_is_told_no_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MITHRIL_PLUGINS", "numpy, halves")
        opened = ml.NumpyBackend()
        compiled = ml.compile(ml.Relu(), opened)
        said = (
            r"plugin 'halves' of acme-halves 0.2.0 failed in mithril_evaluated and is told no "
            r"more; RuntimeError: nobody is listening"
        )
        with pytest.warns(MithrilWarning, match=said):
            y = compiled.evaluate({}, {"input": opened.array(X)})["output"]
        assert_close(y.numpy(), np.maximum(X, 0))
        compiled.evaluate({}, {"input": opened.array(X)})
        monkeypatch.setenv("MITHRIL_STRICT", "1")
        again = ml.compile(ml.Relu(), opened)
        with pytest.raises(RuntimeError, match="nobody is listening"):
            again.evaluate({}, {"input": opened.array(X)})
