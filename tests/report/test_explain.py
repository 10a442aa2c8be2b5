"""What a plan moves is explained, with times where they are of the devices that it runs on."""

from __future__ import annotations

from collections.abc import Callable

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P
from mithril.engine.numpy_engine import NumpyEngine
from mithril.ir import Alternative
from mithril.plan import Plan
from mithril.plan.serialize import plan_from_json, plan_to_json
from mithril.report import explain
from mithril.runtime.backend import Backend

from tests.conformance.engines import IN_ONE_PROCESS, opened

MESH = ml.Mesh(x=2)
X = np.ones((8, 8), np.float32)


def product(backend: ml.Backend) -> ml.Function:
    """Return what multiplies rows by columns: one of them moves, and either would do."""
    return ml.jit(lambda a, b: a * b, backend=backend, in_shardings=(P("x"), P(None, "x")))


class OfNobody(NumpyEngine):
    """Simulated devices that claim to be of a platform without a profile."""

    __slots__ = ()

    @property
    def platform(self) -> str:
        return "npu"


def without_profile(monkeypatch: pytest.MonkeyPatch) -> ml.Backend:
    with monkeypatch.context() as patch:
        patch.setattr("mithril.engine.numpy_engine.NumpyEngine", OfNobody)
        return ml.NumpyBackend(MESH)


def test_a_move_is_explained_with_what_else_was_possible() -> None:
    f = product(ml.NumpyBackend(MESH))
    assert f.explain(X, X).splitlines() == [
        "Mesh(x=2): 1 collectives",
        "priced with profile 'simulated'",
        "1. all_to_all over x, 128 bytes, 0.2 us predicted, forward",
        "     value     b from lambda.multiply",
        "     produced  P(None, 'x')",
        "     required  P('x', None) by lambda.multiply",
        "     instead   multiply on P(None, 'x'), P(None, 'x'): 0.2 us more",
        "     instead   multiply on P(None, None), P(None, None): 0.3 us more",
    ]


def test_no_times_are_shown_of_devices_without_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    f = product(without_profile(monkeypatch))
    assert f.explain(X, X).splitlines() == [
        "Mesh(x=2): 1 collectives",
        "priced with profile 'simulated', since none describes 'npu'; no times are predicted",
        "1. all_to_all over x, 128 bytes, forward",
        "     value     b from lambda.multiply",
        "     produced  P(None, 'x')",
        "     required  P('x', None) by lambda.multiply",
        "     instead   multiply on P(None, 'x'), P(None, 'x')",
        "     instead   multiply on P(None, None), P(None, None)",
    ]


def test_a_plan_is_the_same_with_and_without_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    known = product(ml.NumpyBackend(MESH)).plan(X, X)
    unknown = product(without_profile(monkeypatch)).plan(X, X)
    assert str(known) == str(unknown)


def test_a_plan_that_is_read_says_what_it_was_priced_with(monkeypatch: pytest.MonkeyPatch) -> None:
    for backend in (ml.NumpyBackend(MESH), without_profile(monkeypatch)):
        plan = product(backend).plan(X, X)
        (row,) = plan.collectives()
        assert isinstance(row.cause.instead[0], Alternative)
        again = plan_from_json(plan_to_json(plan))
        assert again.pricing == plan.pricing
        assert explain(again) == explain(plan)


def test_a_plan_in_which_nothing_was_chosen_has_no_prices() -> None:
    """What only brings an array elsewhere has one way to do it."""
    plan = product(ml.NumpyBackend(MESH)).plan(X, X)
    unpriced = Plan.of_program(MESH, plan.stages[0].program)
    assert "us predicted" in explain(plan)
    assert "us " not in explain(unpriced)
    assert "priced" not in explain(unpriced)
    assert explain(plan_from_json(plan_to_json(unpriced))) == explain(unpriced)


@pytest.mark.parametrize("name", IN_ONE_PROCESS)
def test_times_are_those_of_the_profile_that_describes_the_devices(name: str) -> None:
    text = product(opened(name, x=2)).explain(X, X)
    assert "priced with profile 'cpu'" in text
    assert "us predicted" in text


class Unknown(NumpyEngine):
    """An engine of devices that no profile describes."""

    __slots__ = ()

    @property
    def platform(self) -> str:
        return "npu"


def test_no_times_are_shown_for_devices_that_no_profile_describes() -> None:
    text = product(Backend(Unknown(ml.Mesh(x=2)))).explain(X, X)
    assert "none describes 'npu'; no times are predicted" in text
    assert "all_to_all over x, 128 bytes, forward" in text
    assert " us " not in text


def test_what_is_no_name_of_a_tensor() -> None:
    model = ml.Model()
    model |= ml.Linear(2, name="out")(input="x", output="y")
    model += ml.MeanSquaredError()(input="y", output="loss")
    shapes = {"x": (1, 2), "target": (1, 2)}
    step = ml.train_step(model, ml.NumpyBackend(), ml.optim.sgd(0.1), shapes=shapes)
    with pytest.raises(
        ml.OptionError, match=r"explain\(\) takes the name of a tensor, not 3; give one"
    ):
        step.explain(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: mnp.flip(x, 1), "flip needs dimension 1 whole; split another dimension"),
        (lambda x: mnp.sort(x[0]), "sort needs dimension 0 whole"),
    ],
)
def test_a_dimension_that_an_op_needs_whole_is_said(
    function: Callable[..., object], reason: str
) -> None:
    """The shardings alone are not to blame."""
    f = ml.jit(function, backend=ml.NumpyBackend(MESH))
    x = ml.TensorSpec((8, 8), sharding=P(None, "x"))
    assert f.explain(x).splitlines()[-1] == f"     instead   nothing: {reason}"
    plan = f.plan(x)
    assert explain(plan_from_json(plan_to_json(plan))) == explain(plan)
