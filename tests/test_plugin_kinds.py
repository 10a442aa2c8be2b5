"""What plugins bring besides backends: each kind from a package that is installed as strangers do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import mithril as ml
import numpy as np
import pluggy
import pytest
from mithril import P
from mithril.cost.profiles import list_profiles
from mithril.errors import BackendError, MithrilWarning, OptionError, PlanError, ShapeError
from mithril.ir import Graph
from mithril.ops.own_kernel import list_kernels
from mithril.partition.schedule import make
from mithril.plan.serialize import plan_from_json, plan_to_json
from mithril.plugins import PluginKernel, hookimpl, register_plugin, unregister_plugin
from mithril.plugins.discover import Status
from mithril.plugins.extensions import find_plugin, list_plugins
from mithril.plugins.manager import open_manager

from tests.plugin_packages import installed
from tests.tolerances import TOLERANCE

BACKENDS = ("numpy", "jax", "torch", "mlx")
X = np.linspace(-2, 3, 8, dtype=np.float32)


def forget() -> None:
    """Forget what plugins have brought into this process."""
    for backend in BACKENDS:
        for op in list_kernels(backend):
            ml.remove_kernel(op, backend=backend)
    list_profiles.cache_clear()
    for name in [name for name in sys.modules if name.startswith("acme_")]:
        del sys.modules[name]


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install acme-kinds for this process."""
    monkeypatch.delenv("MITHRIL_PLUGINS", raising=False)
    monkeypatch.syspath_prepend(installed("kinds"))
    list_profiles.cache_clear()
    yield
    forget()


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install those that are broken, and those that claim what acme-kinds has."""
    for folder in ("claims", "halves"):
        monkeypatch.syspath_prepend(installed(folder))
    yield
    forget()


def open_on(name: str, *mesh: int) -> ml.Backend:
    options = {"executor": "lockstep"} if name == "torch" and mesh else {}
    return ml.open_backend(name, mesh or None, **options)


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(found, expected, rtol, atol)


def swish(x: np.ndarray, beta: float) -> np.ndarray:
    return (x / (1 + np.exp(-beta * x.astype(np.float64)))).astype(x.dtype)


@pytest.mark.usefixtures("kinds")
class TestEachKind:
    def test_nothing_is_imported_before_it_is_needed(self) -> None:
        import mithril.plugins.extensions  # noqa: F401

        assert not [name for name in sys.modules if name.startswith("acme_")]
        acme = ml.open_plugin("acme")
        assert dir(acme) == ["Swish", "SwishGlu", "swish"]
        assert {name for name in sys.modules if name.startswith("acme_")} == {
            "acme_kinds",
            "acme_kinds.plugin",
        }
        assert acme.swish.__name__ == "swish"
        assert "acme_kinds.ops" in sys.modules
        assert "acme_kinds.layers" not in sys.modules

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


def raised(call, kind: type[Exception] = BackendError) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


@pytest.mark.usefixtures("others", "kinds")
class TestFaults:
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


def register(**offered) -> None:
    """Register the plugin `mine`, which offers things by hook."""
    hooks = []
    for name, value in offered.items():

        def hook(value=value):
            return value

        hook.__name__ = f"mithril_{name}"
        hooks.append(hookimpl(hook))
    register_plugin("mine", *hooks)


@pytest.fixture
def mine() -> Iterator[None]:
    """Forget the plugin `mine` afterwards."""
    yield
    unregister_plugin("mine")
    forget()


@pytest.mark.usefixtures("mine")
class TestRegistered:
    def test_one_that_is_not_installed_is_used_as_others_are(self) -> None:
        register(kernels=[PluginKernel("relu", "numpy", lambda x: x + 1)])
        opened = ml.NumpyBackend()
        assert_close(opened.relu(opened.array(X)).numpy(), X + 1)
        entry = find_plugin("mine")
        assert entry is not None
        assert (entry.distribution, entry.brings) == (
            "this process",
            {"kernels": ("relu on numpy",)},
        )
        unregister_plugin("mine")
        opened = ml.NumpyBackend()
        assert_close(opened.relu(opened.array(X)).numpy(), np.maximum(X, 0))

    @pytest.mark.usefixtures("kinds")
    def test_an_installed_one_keeps_its_namespace(self) -> None:
        text = raised(lambda: register_plugin("acme"))
        assert text.startswith("namespace 'acme' is that of the installed plugin of 'acme-kinds'")

    @pytest.mark.parametrize(
        ("offered", "text"),
        [
            ({"ops": ["x"]}, "mithril_ops returned a list; return a dict of things by name"),
            ({"layers": {"a b": 1}}, "mithril_layers offers the name 'a b'; give letters, digits"),
            ({"schedules": {"x": "no module"}}, "offers 'x' as 'no module'; give 'module:attr"),
            ({"kernels": 3}, "mithril_kernels returned an int; return a list of PluginKernel"),
            ({"kernels": [3]}, "mithril_kernels offers an int; return a list of PluginKernel"),
        ],
    )
    def test_what_is_offered_is_checked(self, offered: dict, text: str) -> None:
        assert text in raised(lambda: register(**offered))
        assert find_plugin("mine") is None

    def test_a_hook_that_does_not_exist_is_refused(self) -> None:
        with pytest.raises(pluggy.PluginValidationError, match="unknown hook 'mithril_opps'"):
            register(opps={})
        assert not [p for p in open_manager().get_plugins() if type(p).__name__ == "_Hooks"]

    def test_a_name_that_is_not_there(self) -> None:
        register(schedules={"serial": serial}, ops={"other": serial}, layers={"Other": serial})
        assert raised(lambda: check_schedule("mine.seriel"), OptionError) == (
            "plugin 'mine' of this process brings no 'mine.seriel' among its schedules; did you "
            "mean 'mine.serial'?; it brings 'mine.serial'"
        )
        assert raised(lambda: ml.open_plugin("mien")) == (
            "plugin 'mien' does not exist; installed: 'mine'; did you mean 'mine'?"
        )
        assert raised(lambda: ml.open_plugin(3)) == (
            "plugin name 3 is not a string; give one, such as 'acme'"
        )
        mine = ml.open_plugin("mine")
        assert raised(lambda: mine.othr, AttributeError) == (
            "plugin 'mine' of this process has no op or layer 'othr'; did you mean 'other'?; it "
            "has 'other', 'Other'"
        )
        assert raised(lambda: mine.other).startswith(
            "op 'mine.other' of this process is a function that no op of this name belongs to; the "
            "plugin has to return what ml.define_op('mine.other', …) does"
        )
        assert raised(lambda: mine.Other) == (
            "layer 'mine.Other' of this process is a function; the plugin has to return a "
            "function, or a class, under ml.layer"
        )
        with pytest.raises(AttributeError, match=r"^_hidden$"):
            mine._hidden  # noqa: B018

    @pytest.mark.parametrize(
        ("made", "text"),
        [
            (lambda *_: 1 / 0, "failed for 2 devices, 3 micro-batches and 1 chunks; ZeroDivision"),
            (lambda *_: "0F0", "returned a str; it has to be a list of texts, a line for each"),
            (lambda *_: ["0F0,0X0"], "'0X0' is no action of a schedule; write stage, work and"),
        ],
    )
    def test_a_schedule_that_is_wrong(self, made, text: str) -> None:
        register(schedules={"wrong": made})
        assert text in raised(lambda: make("mine.wrong", 2, 3), PlanError)

    @pytest.mark.parametrize(
        ("kind", "function", "text"),
        [
            ("graph", lambda g, t: 1 / 0, "raised ZeroDivisionError: division by zero; leave it"),
            ("graph", lambda g, t: None, "returned None; return a Graph; leave it out of passes="),
            ("program", lambda p, t: p.graph, "returned a Graph; return a Program; leave it out"),
            ("graph", lambda g, t: replace(g, nodes=()), "a graph that is not well formed: output"),
            (
                "graph",
                lambda g, t: replace(g, outputs={"z": g.inputs[0]}),
                "changed the inputs or outputs of the graph; leave their names and types as they",
            ),
            (
                "program",
                lambda p, t: replace(p, outputs=p.inputs),
                "changed how inputs or outputs lie; leave the ports as they are; leave it out",
            ),
            (
                "program",
                lambda p, t: replace(p, graph=without_causes(p.graph)),
                "added a collective without a cause; give the node one; leave it out of passes=",
            ),
        ],
    )
    def test_a_pass_that_is_wrong(self, kind: str, function, text: str) -> None:
        register(**{f"{kind}_passes": {"wrong": function}})
        opened = ml.NumpyBackend((2,))
        x = opened.array(X, sharding=P("data"))
        compiled = ml.compile(
            ml.Relu(), opened, passes=["mine.wrong"], out_shardings=P(), inference=True
        )
        found = raised(lambda: compiled.evaluate({}, {"input": x}), PlanError)
        assert found.startswith("pass 'mine.wrong' of this process ")
        assert text in found

    def test_an_error_of_mithril_in_a_pass_stays_what_it_is(self) -> None:
        def refuse(graph, target):
            raise OptionError("this graph is not for this pass; choose another")

        register(graph_passes={"picky": refuse})
        opened = ml.NumpyBackend()
        compiled = ml.compile(ml.Relu(), opened, passes=["mine.picky"])
        with pytest.raises(OptionError, match=r"^this graph is not for this pass"):
            compiled.evaluate({}, {"input": opened.array(X)})

    def test_a_pass_that_changes_nothing_says_so(self) -> None:
        register(graph_passes={"keep": lambda graph, target: graph})
        opened = ml.NumpyBackend()
        compiled = ml.compile(ml.Relu(), opened, passes=["mine.keep"])
        compiled.evaluate({}, {"input": opened.array(X)})
        note = "pass 'mine.keep' of this process ran; it changed nothing"
        assert note in compiled.plan.notes

    @pytest.mark.parametrize(
        ("passes", "text"),
        [
            ("mine.x", "passes='mine.x' is no list of passes; give names, such as passes=["),
            ([3], "passes= names 3; give the name of a pass of a plugin, such as"),
            (["fold"], "passes= names 'fold'; give the name of a pass of a plugin, such as"),
        ],
    )
    def test_passes_that_are_no_names(self, passes, text: str) -> None:
        opened = ml.NumpyBackend()
        found = raised(lambda: ml.compile(ml.Relu(), opened, passes=passes), OptionError)
        assert found.startswith(text)


class TestKernels:
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_a_kernel_of_ones_own_with_the_ops_gradient(self, backend: str) -> None:
        calls = []

        @ml.define_kernel("relu", backend=backend)
        def select(x):
            calls.append(x.shape)
            return x * (x > 0)

        opened = open_on(backend, 2)
        compiled = ml.compile(ml.Relu(), opened, differentiable=["input"])
        x = opened.array(X, sharding=P("data"))
        ones = {"output": np.ones_like(X)}
        outputs, slopes = compiled.evaluate({}, {"input": x}, output_gradients=ones)
        ml.remove_kernel("relu", backend=backend)
        assert {tuple(shape) for shape in calls} == {(4,)}
        assert_close(outputs["output"].numpy(), np.maximum(X, 0))
        assert_close(slopes["input"].numpy(), (X > 0).astype(np.float32))

    def test_it_gets_the_attributes(self) -> None:
        seen = []

        @ml.define_kernel("softmax", backend="numpy")
        def record(x, **attributes):
            seen.append(attributes)
            return x

        opened = ml.NumpyBackend()
        opened.softmax(opened.array(X), axis=0)
        ml.remove_kernel("softmax", backend="numpy")
        assert seen == [{"axis": 0}]

    def test_loops_run_it_too(self) -> None:
        ml.define_kernel("relu", backend="numpy")(lambda x: np.maximum(x, 0) + 1)
        opened = ml.NumpyBackend()
        compiled = ml.compile(ml.Repeat(ml.Relu(), 3), opened)
        y = compiled.evaluate({}, {"input": opened.array(X)})["output"].numpy()
        ml.remove_kernel("relu", backend="numpy")
        assert_close(y, np.maximum(X, 0) + 3)

    def test_a_kernel_that_breaks_its_promise_is_refused(self) -> None:
        ml.define_kernel("relu", backend="numpy")(lambda x: x[:1])
        opened = ml.NumpyBackend()
        text = raised(lambda: opened.relu(opened.array(X)), ShapeError)
        ml.remove_kernel("relu", backend="numpy")
        assert text.startswith("op 'own.relu': its numpy kernel returned float32[1] for float32[8]")

    def test_a_plan_is_written_and_read_back(self) -> None:
        ml.define_kernel("softmax", backend="numpy")(lambda x, axis: x)
        compiled = ml.compile(ml.Softmax(), ml.NumpyBackend(), inference=True)
        plan = compiled.plan_for({"input": (2, 4)})
        again = plan_from_json(plan_to_json(plan))
        ml.remove_kernel("softmax", backend="numpy")
        assert str(again.stages[0].program.graph) == str(plan.stages[0].program.graph)
        assert "own.softmax[axis=1](input)" in str(again.stages[0].program.graph)

    @pytest.mark.parametrize(
        ("op", "text"),
        [
            ("rleu", "op 'rleu' does not exist; did you mean 'relu'?; plans print the names of"),
            ("all_reduce", "op 'all_reduce' cannot have another kernel: it exchanges data, runs"),
            ("repeat", "op 'repeat' cannot have another kernel: it exchanges data, runs other ops"),
            ("kinds_own", "op 'kinds_own' is defined by tests.test_plugin_kinds, in "),
        ],
    )
    def test_ops_that_have_none(self, op: str, text: str) -> None:
        define_one()
        found = raised(lambda: ml.define_kernel(op, backend="numpy")(np.abs), OptionError)
        assert found.startswith(text)

    def test_other_slips(self) -> None:
        assert raised(lambda: ml.define_kernel("relu", backend="numpy")(3), OptionError) == (
            "kernel of op 'relu' on backend 'numpy' is an int; give a function"
        )
        assert raised(lambda: ml.remove_kernel("relu", backend="numpy"), OptionError) == (
            "op 'relu' has no kernel on backend 'numpy' that is not the backend's own; there is "
            "nothing to take back"
        )


def define_one():
    return ml.define_op(
        "kinds_own", shapes=lambda x: x, rule="elementwise", kernels={"numpy": np.abs}
    )


def serial(devices, microbatches, chunks):
    return ["0F0,0B0"]


def check_schedule(name: str) -> None:
    ml.compile(ml.Relu(), ml.NumpyBackend(), pipeline_schedule=name)


def without_causes(graph: Graph) -> Graph:
    return replace(graph, nodes=tuple(replace(node, cause=None) for node in graph.nodes))
