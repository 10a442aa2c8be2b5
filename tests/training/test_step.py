"""A step of training as one plan: the same numbers as by hand, however it is split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P
from mithril.errors import OptionError

from tests.conformance.engines import BACKENDS, LOCKSTEP, exact, name_of, opened, options_of
from tests.profiles import quick
from tests.tolerances import TOLERANCE

BATCH, WIDTH, HIDDEN, OUT, STEPS = 16, 12, 24, 6, 4
RATE, MOMENTUM = 0.1, 0.9
RTOL, ATOL = TOLERANCE["float32"]
SPLIT = {"up.weight": P("tensor", None), "down.weight": P(None, "tensor")}


class Momentum:
    """Gradient descent with momentum, as a user would write it."""

    def init(self, params: Mapping[str, Any]) -> dict[str, Any]:
        still = {name: mnp.zeros_like(x) for name, x in params.items()}
        return {"trace": still, "learning_rate": mnp.full((), RATE)}

    def apply(
        self, gradients: Mapping[str, Any], state: dict[str, Any], params: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        trace = {n: state["trace"][n] * MOMENTUM + g for n, g in gradients.items()}
        rate = state["learning_rate"]
        after = type(params)({n: params[n] - rate * x for n, x in trace.items()})
        return after, {"trace": trace, "learning_rate": rate}


def model(dropout: float = 0.0, stages: bool = False) -> ml.Model:
    made = ml.Model()
    made |= ml.Linear(HIDDEN, name="up")(input="x", output="h")
    made += ml.Gelu(name="act")
    made += ml.Dropout(dropout, name="drop")
    made += ml.Linear(OUT, name="down")(output="y")
    made += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    for name, stage in {"up": 0, "act": 0, "drop": 1, "down": 1, "end": 1}.items():
        if stages:
            made.stage(name, stage)
    return made


def batches(count: int = STEPS) -> list[dict[str, np.ndarray]]:
    draw = np.random.default_rng(3).standard_normal
    sizes = {"x": (BATCH, WIDTH), "t": (BATCH, OUT)}
    return [{n: draw(size).astype(np.float32) for n, size in sizes.items()} for _ in range(count)]


def shapes(spec: P | None = None) -> dict[str, ml.TensorSpec]:
    return {name: ml.TensorSpec(x.shape, "float32", spec) for name, x in batches(1)[0].items()}


def train(step: ml.TrainStep) -> tuple[list[float], dict[str, np.ndarray]]:
    """Return the losses of a few steps, and the parameters after them."""
    state, losses = step.init(seed=0), []
    for batch in batches():
        state, metrics = step(state, batch)
        losses.append(metrics["loss"].item())
    return losses, {name: x.numpy() for name, x in state.params.items()}


def by_hand() -> tuple[list[float], dict[str, np.ndarray]]:
    """Return the same of a loop around `evaluate`, on one device of NumPy."""
    compiled = ml.compile(model(), ml.NumpyBackend(), shapes=shapes())
    params = {name: x.numpy() for name, x in compiled.randomize_params(seed=0).items()}
    trace, losses = {name: np.zeros_like(x) for name, x in params.items()}, []
    for batch in batches():
        outputs, gradients = compiled.evaluate(
            {n: compiled.backend.array(x) for n, x in params.items()}, batch, {"loss": 1.0}
        )
        losses.append(outputs["loss"].item())
        for name, slope in gradients.items():
            trace[name] = trace[name] * np.float32(MOMENTUM) + slope.numpy()
            params[name] = params[name] - np.float32(RATE) * trace[name]
    return losses, params


def agree(found: tuple[list[float], dict[str, np.ndarray]]) -> None:
    losses, params = by_hand()
    np.testing.assert_allclose(found[0], losses, RTOL, ATOL)
    for name, x in params.items():
        np.testing.assert_allclose(found[1][name], x, RTOL, ATOL, err_msg=name)


def kinds(step: ml.TrainStep, phase: str) -> list[tuple[str, tuple[str, ...]]]:
    rows = (row for row in step.plan.collectives() if row.phase == phase)
    return sorted({(row.kind, row.axes) for row in rows if row.bytes > 8})


# ------------------------------------------------------------------ strategies

STRATEGIES: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "one device": ({}, {}),
    "data": ({"data": 4}, {}),
    "tensor": ({"tensor": 2}, {}),
    "data, tensor": ({"data": 2, "tensor": 2}, {}),
    "zero 1": ({"data": 4}, {"zero": 1}),
    "zero 2": ({"data": 4}, {"zero": 2}),
    "zero 3": ({"data": 4}, {"zero": 3}),
    "zero 3, tensor": ({"data": 2, "tensor": 2}, {"zero": 3}),
    "zero 3 over a part": ({"node": 2, "data": 2}, {"zero": 3}),
    "accumulate 4": ({}, {"accumulate": 4}),
    "zero 2, accumulate 2": ({"data": 2}, {"zero": 2, "accumulate": 2}),
    "pipeline": (
        {"pipeline": 2},
        {"pipeline": ml.PipelineOptions(schedule="1f1b", microbatch_size=4)},
    ),
    "pipeline, zero 1": (
        {"data": 2, "pipeline": 2},
        {"zero": 1, "pipeline": ml.PipelineOptions(schedule="1f1b", microbatch_size=4)},
    ),
    "loss scale": ({"data": 2}, {"loss_scale": "dynamic"}),
}


def make_step(backend: ml.Backend, options: Mapping[str, Any]) -> ml.TrainStep:
    names = backend.mesh.names
    rows = tuple(name for name in ("node", "data") if name in names)
    spec = P(rows if len(rows) > 1 else rows[0]) if rows else None
    made = model(stages="pipeline" in names)
    if "tensor" in names:
        made.shard(SPLIT)
    return ml.train_step(made, backend, Momentum(), shapes=shapes(spec), **options)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_learns_the_same(strategy: str) -> None:
    axes, options = STRATEGIES[strategy]
    agree(train(make_step(ml.NumpyBackend(ml.Mesh(**axes)), options)))


@quick(lambda backend, strategy: strategy in ("zero 3, tensor", "pipeline, zero 1"))
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_strategy_learns_the_same_everywhere(backend: str, strategy: str) -> None:
    axes, options = STRATEGIES[strategy]
    agree(train(make_step(opened(backend, **axes), options)))


# ------------------------------------------------------------------ what is exchanged


def test_data_parallel_sums_gradients_in_a_bucket() -> None:
    step = make_step(ml.NumpyBackend(ml.Mesh(data=4)), {})
    assert kinds(step, "forward") == []
    assert kinds(step, "backward") == [("all_reduce", ("data",))]
    assert kinds(step, "update") == []


@pytest.mark.parametrize("stage", [1, 2])
def test_the_state_is_split_by_zero_1_and_2(stage: int) -> None:
    step = make_step(ml.NumpyBackend(ml.Mesh(data=4)), {"zero": stage})
    assert kinds(step, "forward") == [("all_gather", ("data",))]  # once, for both phases
    assert kinds(step, "backward") == [("reduce_scatter", ("data",))]
    assert kinds(step, "update") == []
    assert step.shardings["up.weight"].spec == P("data", None)
    assert step.shardings["optimizer.trace.up.weight"].spec == P("data", None)


def test_parameters_are_split_by_zero_3() -> None:
    step = make_step(ml.NumpyBackend(ml.Mesh(data=4)), {"zero": 3})
    assert kinds(step, "forward") == [("all_gather", ("data",))]
    assert kinds(step, "backward") == [("all_gather", ("data",)), ("reduce_scatter", ("data",))]
    assert kinds(step, "update") == []
    assert step.shardings["up.weight"].spec == P("data", None)
    assert step.shardings["optimizer.trace.up.weight"].spec == P("data", None)


def test_what_tensor_splits_data_splits_again() -> None:
    step = make_step(ml.NumpyBackend(ml.Mesh(data=2, tensor=2)), {"zero": 3})
    assert step.shardings["up.weight"].spec == P(("tensor", "data"), None)
    assert step.shardings["down.weight"].spec == P("data", "tensor")
    assert {axes for _, axes in kinds(step, "update")} == set()
    moved = {kind for phase in ("forward", "backward", "update") for kind, _ in kinds(step, phase)}
    assert moved == {"all_gather", "reduce_scatter", "all_reduce"}


def test_micro_batches_exchange_their_gradients_once() -> None:
    step = make_step(ml.NumpyBackend(ml.Mesh(data=2)), {"accumulate": 4})
    assert [(row.kind, row.times) for row in step.plan.collectives() if row.bytes > 8] == [
        ("all_reduce", 1)
    ]


def test_state_takes_its_part_of_the_memory() -> None:
    whole, split = (
        make_step(ml.NumpyBackend(ml.Mesh(data=4)), {"zero": stage}).memory().of(0).parts
        for stage in (0, 3)
    )
    sizes = sum(x.size * 4 for x in by_hand()[1].values())
    assert whole["optimizer"] >= sizes > 2 * split["parameters"]
    assert split["optimizer"] <= 0.6 * whole["optimizer"]


# ------------------------------------------------------------------ state and metrics


def test_metrics_are_those_of_the_step() -> None:
    step = make_step(ml.NumpyBackend(), {})
    _, metrics = step(step.init(), batches(1)[0])
    assert list(metrics) == ["loss", "gradient_norm", "learning_rate"]
    compiled = ml.compile(model(), ml.NumpyBackend(), shapes=shapes())
    params = compiled.randomize_params(seed=0)
    _, gradients = compiled.evaluate(params, batches(1)[0], {"loss": 1.0})
    norm = np.sqrt(sum((x.numpy() ** 2).sum() for x in gradients.values()))
    np.testing.assert_allclose(metrics["gradient_norm"].item(), norm, RTOL)
    assert metrics.numbers()["learning_rate"] == pytest.approx(RATE)
    assert repr(metrics) == "Metrics(loss, gradient_norm, learning_rate)"


@pytest.mark.parametrize("asked", [(), ("learning_rate",), "gradient_norm"])
def test_what_is_not_asked_for_is_not_computed(asked: Sequence[str]) -> None:
    step = make_step(ml.NumpyBackend(), {"metrics": asked})
    _, metrics = step(step.init(), batches(1)[0])
    assert list(metrics) == ["loss", *([asked] if isinstance(asked, str) else asked)]
    has_norm = any(node.op.name == "sqrt" for node in step.plan.stages[0].program.graph.nodes)
    assert has_norm == ("gradient_norm" in metrics)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (
            ["gradient_norms"],
            "metrics='gradient_norms' does not exist; did you mean 'gradient_norm'?; known: "
            "'gradient_norm', 'learning_rate'",
        ),
        (1, "metrics=1 names none; give some of 'gradient_norm', 'learning_rate', or ()"),
    ],
)
def test_metrics_that_a_step_does_not_have_are_refused(asked: Any, text: str) -> None:
    with pytest.raises(OptionError) as caught:
        make_step(ml.NumpyBackend(), {"metrics": asked})
    assert str(caught.value) == text


def test_parameters_of_a_state_are_what_evaluate_takes() -> None:
    step = make_step(ml.NumpyBackend(ml.Mesh(data=4)), {"zero": 3})
    state, metrics = step(step.init(), batches(1)[0])
    outputs = step.compiled.evaluate(state.params, batches(1)[0])
    assert outputs["loss"].item() < metrics["loss"].item()
    assert state.step.item() == 1


def test_a_state_is_given_up() -> None:
    step = make_step(ml.NumpyBackend(), {})
    state = step.init()
    step(state, batches(1)[0])
    with pytest.raises(ml.BackendError, match="was donated to step"):
        step(state, batches(1)[0])


def test_a_step_begins_with_given_parameters() -> None:
    step = make_step(ml.NumpyBackend(), {})
    _, params = by_hand()
    state = step.init(params=params)
    for name, x in params.items():
        np.testing.assert_array_equal(state.params[name].numpy(), x)


def test_other_batches_are_planned_for() -> None:
    step = make_step(ml.NumpyBackend(), {})
    state, half = step.init(), {name: x[:4] for name, x in batches(1)[0].items()}
    state, _ = step(state, batches(1)[0])
    before = step.plan
    state, _ = step(state, half)
    assert step.plan is not before
    step(state, batches(1)[0])
    assert step.plan is before


def test_masks_differ_from_step_to_step() -> None:
    def losses(seed: int) -> list[float]:
        step = ml.train_step(model(0.5), ml.NumpyBackend(), Momentum(), shapes=shapes())
        state, found = step.init(seed), []
        state = state._replace(optimizer=stop(state.optimizer))
        for _ in range(3):
            state, metrics = step(state, batches(1)[0])
            found.append(metrics["loss"].item())
        return found

    assert len(set(losses(0))) == 3
    assert losses(0) == losses(0)


def stop(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "learning_rate": state["learning_rate"] * 0.0}


@pytest.mark.parametrize("name", ["numpy", "jax", LOCKSTEP])
def test_a_loss_scale_takes_no_digits_from_float64(name: str) -> None:
    with exact(name):
        on = ml.open_backend(name_of(name), dtype="float64", **options_of(name))
        kinds = {n: ml.TensorSpec(x.shape, "float64") for n, x in batches(1)[0].items()}
        found = []
        for scale in (None, 3.0):
            step = ml.train_step(model(), on, Momentum(), shapes=kinds, loss_scale=scale)
            state = step.init(seed=0)
            for batch in batches():
                state, _ = step(state, {n: x.astype(np.float64) for n, x in batch.items()})
            found.append({n: x.numpy() for n, x in state.params.items()})
    for key, x in found[0].items():
        np.testing.assert_allclose(found[1][key], x, rtol=1e-12, atol=1e-14)


def test_frozen_parameters_have_neither_gradient_nor_state() -> None:
    made = model()
    made.freeze("up.*")
    step = ml.train_step(made, ml.NumpyBackend(), Momentum(), shapes=shapes())
    state = step.init()
    before = state.params["up.weight"].numpy()
    state, _ = step(state, batches(1)[0])
    np.testing.assert_array_equal(state.params["up.weight"].numpy(), before)
    assert sorted(state.optimizer["trace"]) == ["down.bias", "down.weight"]


def test_a_step_that_overflows_is_left_out() -> None:
    step = make_step(ml.NumpyBackend(ml.Mesh(data=2)), {"loss_scale": "dynamic", "zero": 3})
    state = step.init()
    params = {name: x.numpy() for name, x in state.params.items()}
    first = state.loss_scale["loss_scale.scale"].item()
    far = {name: x * np.float32(1e30) for name, x in batches(1)[0].items()}
    state, _ = step(state, far)
    assert state.step.item() == 0
    assert state.loss_scale["loss_scale.skipped_steps"].item() == 1
    assert state.loss_scale["loss_scale.scale"].item() == first / 2
    for name, x in params.items():
        np.testing.assert_array_equal(state.params[name].numpy(), x)
    state, _ = step(state, batches(1)[0])
    assert (state.step.item(), state.loss_scale["loss_scale.good_steps"].item()) == (1, 1)


# ------------------------------------------------------------------ bad input


def test_what_a_step_refuses() -> None:
    backend, given = ml.NumpyBackend(ml.Mesh(data=2)), shapes()

    def refusal(error: type[Exception], optimizer: object = None, **options: Any) -> str:
        options = {"shapes": given, **options}
        with pytest.raises(error) as raised:
            ml.train_step(model(), backend, optimizer or Momentum(), **options)  # type: ignore[arg-type]
        return str(raised.value)

    assert (
        refusal(ml.OptionError, zero=4)
        == "zero=4 is no stage of ZeRO; give 0, 1, 2 or 3, or 'auto' to train_step()"
    )
    assert (
        refusal(ml.OptionError, zero=1.0)
        == "zero=1.0 is no stage of ZeRO; give 0, 1, 2 or 3, or 'auto' to train_step()"
    )
    assert refusal(ml.MeshError, zero=1, zero_axis="dat").startswith(
        "zero_axis: mesh Mesh(data=2) has no axis 'dat'; axes: 'data'; did you mean 'data'?"
    )
    with pytest.raises(ml.MeshError) as raised:
        other = ml.NumpyBackend(ml.Mesh(batch=2))
        ml.train_step(model(), other, Momentum(), shapes={"x": (16, 6)}, zero=1)
    assert str(raised.value) == (
        "zero_axis: mesh Mesh(batch=2) has no axis 'data'; axes: 'batch'; give zero_axis=, the axis "
        "that splits the batch"
    )
    assert refusal(ml.OptionError, accumulate=0) == (
        "accumulate=0 is no number of micro-batches; give 1 or more"
    )
    assert refusal(ml.PlanError, accumulate=5) == (
        "accumulate=5 cuts a batch of 16, which does not divide into 5 micro-batches; use a batch "
        "that is a multiple of 5"
    )
    assert refusal(ml.OptionError, loss_scale="dynamical") == (
        "loss_scale='dynamical' is neither 'dynamic' nor a positive number"
    )
    assert refusal(ml.OptionError, loss_scale=-1.0) == (
        "loss_scale=-1.0 is neither 'dynamic' nor a positive number"
    )
    assert refusal(ml.GraphError, loss="los") == (
        "train_step() minimises output 'los', which the model does not have; did you mean 'loss'?; "
        "outputs: 'loss'; say which by loss="
    )
    assert refusal(ml.OptionError, inference=True) == (
        "option 'inference' makes no sense for train_step(); leave it out"
    )
    assert refusal(ml.OptionError, optimizer=0.1).startswith(
        "train_step() takes an optimiser, not "
    )
    made = model(stages=True)
    with pytest.raises(ml.OptionError, match=r"^accumulate=2 is given for a model with stages or"):
        ml.train_step(made, backend, Momentum(), shapes=given, accumulate=2)


def test_a_loss_is_a_scalar() -> None:
    with pytest.raises(ml.GraphError) as raised:
        ml.train_step(
            ml.Linear(3), ml.NumpyBackend(), Momentum(), loss="output", shapes={"input": (2, 4)}
        )
    assert str(raised.value) == (
        "train_step() minimises 'output', which is float32[2, 3]; give a scalar of floats, such as "
        "what a loss returns"
    )


class Wrong(Momentum):
    """An optimiser that returns something else than it should."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def apply(self, gradients: Any, state: Any, params: Any) -> Any:
        after, kept = super().apply(gradients, state, params)
        if self.kind == "nothing":
            return after
        if self.kind == "less":
            return type(params)({n: x for n, x in after.items() if n != "up.bias"}), kept
        if self.kind == "state":
            return after, {**kept, "count": mnp.zeros(())}
        if self.kind == "captured":
            one = (kept["learning_rate"] * np.ones(1, np.float32)).sum()
            return after, {**kept, "learning_rate": one}
        return type(params)({n: x.sum() for n, x in after.items()}), kept


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        ("nothing", ml.GraphError, "optimiser returned .* from apply\\(\\); return the parameters"),
        ("less", ml.GraphError, "optimiser returned parameters of another form .*'up.bias' is mis"),
        ("state", ml.GraphError, "optimiser returned state of another form .*'optimizer.count' is"),
        (
            "shape",
            ml.ShapeError,
            "optimiser returned 'up.weight' as float32\\[\\], and it was float",
        ),
        ("captured", ml.GraphError, "optimiser uses an array from around it .*; make it in init"),
    ],
)
def test_an_optimiser_that_is_none(kind: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"^{text}"):
        ml.train_step(model(), ml.NumpyBackend(), Wrong(kind), shapes=shapes())


def test_a_state_of_another_step() -> None:
    step = make_step(ml.NumpyBackend(), {})
    with pytest.raises(ml.GraphError, match=r"^step is called with .* as its state; give what"):
        step({"params": {}}, batches(1)[0])  # type: ignore[arg-type]
    state = step.init()
    less = type(state.params)({n: x for n, x in state.params.items() if n != "up.bias"})
    with pytest.raises(ml.GraphError, match=r"^state lacks 'up.bias', which this step keeps; it"):
        step(state._replace(params=less), batches(1)[0])
    more = {**state.optimizer, "other": state.step}
    with pytest.raises(
        ml.GraphError, match=r"^state has 'optimizer.other', which this step does not keep"
    ):
        step(state._replace(optimizer=more), batches(1)[0])
    with pytest.raises(ml.GraphError, match=r"^input 't' is missing; inputs: 'x', 't'"):
        step(step.init(), {"x": batches(1)[0]["x"]})


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_of_a_state_that_begin_alike_are_apart(backend: str) -> None:
    step = ml.train_step(model(), opened(backend), ml.optim.adamw(RATE), shapes=shapes())
    state = step.init()
    for batch in batches(2):
        state, _ = step(state, batch)
    assert [state.optimizer[n]["count"].item() for n in (0, 2)] == [2, 2]
