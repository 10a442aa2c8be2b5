"""Plugins that are not installed, and what is said where one of them is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import mithril as ml
import numpy as np
import pluggy
import pytest
from mithril import P
from mithril.errors import MithrilWarning, OptionError, PlanError, ShapeError
from mithril.ir import Graph
from mithril.partition.schedule import make
from mithril.plan.serialize import plan_from_json, plan_to_json
from mithril.plugins import PluginKernel, hookimpl, register_plugin, unregister_plugin
from mithril.plugins.extensions import find_plugin
from mithril.plugins.manager import open_manager

from tests.plugin_helpers import BACKENDS, X, assert_close, forget, open_on, raised


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

    def test_one_whose_hook_raises_is_not_kept(self) -> None:
        def mithril_ops():
            raise RuntimeError("no licence found")

        with pytest.raises(RuntimeError, match="no licence found"):
            register_plugin("mine", hookimpl(mithril_ops))
        assert find_plugin("mine") is None
        assert not [p for p in open_manager().get_plugins() if type(p).__name__ == "_Hooks"]

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
            ("kinds_own", "op 'kinds_own' is defined by tests.test_registered_plugins, in "),
        ],
    )
    def test_ops_that_have_none(self, op: str, text: str) -> None:
        define_one()
        found = raised(lambda: ml.define_kernel(op, backend="numpy")(np.abs), OptionError)
        assert found.startswith(text)

    def test_one_of_a_plugin_is_left_out_with_a_warning(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        register(
            kernels=[
                PluginKernel(op, "numpy", lambda x: x + 1) for op in ("rleu", "repeat", "relu")
            ]
        )
        said = "plugin 'mine' of this process brings a kernel that is not used; op '{}' ".format
        with pytest.warns(MithrilWarning) as warned:
            opened = ml.NumpyBackend()
        first, second = (str(one.message) for one in warned)
        assert first.startswith(said("rleu") + "does not exist; did you mean 'relu'?")
        assert second.startswith(said("repeat") + "cannot have another kernel")
        assert_close(opened.relu(opened.array(X)).numpy(), X + 1)
        monkeypatch.setenv("MITHRIL_STRICT", "1")
        assert raised(ml.NumpyBackend, OptionError).startswith("op 'rleu' does not exist")
        unregister_plugin("mine")

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
