"""States, names and options that do not fit a step: refused, or brought to where they belong."""

from __future__ import annotations

from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P

from tests.training.test_step import (
    BATCH,
    OUT,
    WIDTH,
    Momentum,
    agree,
    batches,
    make_step,
    model,
    shapes,
)


def linear(input: str = "x", name: str = "line") -> ml.Model:
    made = ml.Model()
    made |= ml.Linear(OUT, name=name)(input=input, output="y")
    made += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    return made


def refusal(error: type[Exception], **options: Any) -> str:
    with pytest.raises(error) as raised:
        ml.train_step(
            **{
                "model": model(),
                "backend": ml.NumpyBackend(),
                "optimizer": Momentum(),
                "shapes": shapes(),
                **options,
            }
        )
    return str(raised.value)


def test_options_without_an_effect_are_refused() -> None:
    assert refusal(ml.OptionError, zero_axis="data") == (
        "zero_axis='data' has no effect without zero=; say which stage, too"
    )
    assert refusal(ml.OptionError, out_shardings=P()) == (
        "option 'out_shardings' makes no sense for train_step(); leave it out"
    )
    assert refusal(ml.OptionError, offload_optimiser=True).startswith(
        "train_step() has no option 'offload_optimiser'; did you mean 'offload_optimizer'?; options: "
    )
    assert refusal(ml.BackendError, backend="numpy") == (
        "train_step() takes a backend, not 'numpy'; open one, such as ml.NumpyBackend()"
    )


@pytest.mark.parametrize(
    ("axis", "said"),
    [
        (3, "zero_axis=3 names no mesh axes; give one, such as 'data', or several"),
        (("data", 0), "zero_axis=('data', 0) names no mesh axes; give one, such as 'data', or several"),
        ((), "zero_axis=() names no axis, or one twice; give each once"),
        (("data", "data"), "zero_axis=('data', 'data') names no axis, or one twice; give each once"),
    ],
)  # fmt: skip
def test_an_axis_to_split_over_is_a_name(axis: object, said: str) -> None:
    assert refusal(ml.OptionError, zero=1, zero_axis=axis) == said


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_one_device_splits_nothing(stage: int) -> None:
    block = ml.Model()
    block |= ml.Linear(WIDTH, name="up")(input="x", output="y")
    made = ml.Model()
    made |= ml.Repeat(block, 2, name="blocks")(input="x", output="h")
    made += ml.Linear(OUT, name="line")(output="y")
    made += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    losses = []
    for zero in (0, stage):
        step = ml.train_step(made, ml.NumpyBackend(), Momentum(), shapes=shapes(), zero=zero)
        losses.append(step(step.init(), batches(1)[0])[1]["loss"].item())
    assert losses[0] == losses[1]


@pytest.mark.parametrize("name", ["step", "seed", "learning_rate"])
def test_inputs_may_be_called_as_entries_of_the_state(name: str) -> None:
    given = {name: (BATCH, WIDTH), "t": (BATCH, OUT)}
    step = ml.train_step(linear(name), ml.NumpyBackend(), Momentum(), shapes=given)
    plain = ml.train_step(linear(), ml.NumpyBackend(), Momentum(), shapes=shapes())
    batch = batches(1)[0]
    _, found = step(step.init(), {name: batch["x"], "t": batch["t"]})
    _, expected = plain(plain.init(), batch)
    assert found["loss"].item() == expected["loss"].item()


class Clashing(Momentum):
    """An optimiser whose state has an entry that is called as a parameter of the model is."""

    def init(self, params: Any) -> Any:
        return {**super().init(params), "weight": mnp.zeros(())}


def test_names_that_mean_two_things_are_refused() -> None:
    text = refusal(ml.GraphError, model=linear(name="optimizer"), optimizer=Clashing())
    assert text.startswith("optimiser returned state of another form")

    class Keeping(Clashing):
        def apply(self, gradients: Any, state: Any, params: Any) -> Any:
            after, kept = super().apply(gradients, state, params)
            return after, {**kept, "weight": state["weight"]}

    text = refusal(ml.GraphError, model=linear(name="optimizer"), optimizer=Keeping())
    assert text == (
        "train_step() keeps 'optimizer.weight', which is the name of an input or parameter of the "
        "model, too; rename that, or the entry of the optimiser's state"
    )


def test_a_state_of_another_size() -> None:
    step = make_step(ml.NumpyBackend(), {})
    narrow = {"x": np.zeros((4, 5), np.float32), "t": np.zeros((4, OUT), np.float32)}
    with pytest.raises(ml.ShapeError) as raised:
        step(step.init(), narrow)
    assert str(raised.value) == (
        "state has 'up.weight' as float32[24, 12]; with these inputs the step needs float32[24, 5];"
        " pass inputs of the size that the state was made for, or make another step"
    )
    wrong = {name: np.zeros((3, 3), np.float32) for name in step.compiled.parameters}
    with pytest.raises(ml.ShapeError, match=r"^params has 'up.weight' as float32\[3, 3\]; with"):
        step.init(params=wrong)


def test_a_state_of_another_backend() -> None:
    step, other = make_step(ml.NumpyBackend(), {}), make_step(ml.NumpyBackend(), {})
    with pytest.raises(ml.BackendError, match=r"^'up.weight' of the state belongs to another"):
        step(other.init(), batches(1)[0])


@pytest.mark.parametrize("stage", [0, 3])
def test_a_state_that_lies_otherwise_is_brought_to_its_place(stage: int) -> None:
    step = make_step(ml.NumpyBackend(ml.Mesh(data=2)), {"zero": stage})
    state, losses = step.init(), []
    for batch in batches():
        moved = {n: ml.reshard(x, P() if stage else P("data")) for n, x in state.params.items()}
        state = state._replace(params=type(state.params)(moved))
        state, metrics = step(state, batch)
        losses.append(metrics["loss"].item())
    agree((losses, {name: x.numpy() for name, x in state.params.items()}))


def test_shardings_of_inputs_are_said_once() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2, tensor=2))
    for given in (None, {}, {"x": P("data")}, {"t": None}, P("data")):
        step = ml.train_step(
            model(), backend, Momentum(), shapes=shapes(P("data")), in_shardings=given
        )
        step(step.init(), batches(1)[0])
        lies = {port.name: port.sharding.spec for port in step.plan.inputs}
        assert (lies["x"], lies["t"]) == (P("data"), P("data"))
    for given in ({"x": P("tensor")}, P("tensor")):
        text = refusal(
            ml.OptionError, backend=backend, shapes=shapes(P("data")), in_shardings=given
        )
        assert (
            text == "input 'x' lies as P('data') by shapes, and as P('tensor') by in_shardings; "
            "give one of them"
        )


@pytest.mark.parametrize("zero", [1, 2])
def test_nothing_to_split_is_noted(zero: int) -> None:
    backend, rows = ml.NumpyBackend(ml.Mesh(data=2)), shapes(P("data"))
    plain = ml.train_step(model(), backend, ml.optim.sgd(0.1), shapes=rows, zero=zero)
    assert plain.plan.notes == (f"zero={zero} splits no state: the optimiser keeps no moments",)
    adam = ml.train_step(model(), backend, ml.optim.adam(0.1), shapes=rows, zero=zero)
    assert adam.plan.notes == ()
