"""Running statistics, which steps give back, and inputs, in any precision of what computes."""

from __future__ import annotations

from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P

from tests.conformance.engines import BACKENDS, opened
from tests.profiles import quick
from tests.tolerances import TOLERANCE
from tests.training.test_step import HIDDEN, OUT, WIDTH, Momentum, batches, shapes


def model() -> ml.Model:
    made = ml.Model()
    made |= ml.BatchNorm(name="norm")(
        input="x", running_mean="mean", running_variance="variance", output="h"
    )
    made += ml.Linear(OUT, name="down")(output="y")
    made += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    return made


def make(backend: ml.Backend, **options: Any) -> ml.TrainStep:
    given = {**shapes(P("data")), "mean": (WIDTH,), "variance": (WIDTH,)}
    return ml.train_step(model(), backend, Momentum(), shapes=given, **options)


def follow(step: ml.TrainStep) -> dict[str, np.ndarray]:
    """Return the statistics after a few steps, which are checked to begin at 0 and 1."""
    assert step.inputs == ("x", "t")
    state = step.init()
    assert state.statistics["mean"].numpy().tolist() == [0.0] * WIDTH
    assert state.statistics["variance"].numpy().tolist() == [1.0] * WIDTH
    for batch in batches():
        state, _ = step(state, batch)
    return {name: x.numpy() for name, x in state.statistics.items()}


def nested(depth: int) -> ml.Model:
    made = model()
    for _ in range(depth):
        outer = ml.Model()
        outer |= made(x="x", t="t", loss="loss", mean="mean", variance="variance")
        made = outer
    return made


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("options", [{}, {"mixed_precision_policy": {"compute": "bfloat16"}}])
@pytest.mark.parametrize("left_out", [("mean",), ("mean", "variance")])
def test_layers_know_the_shapes_of_statistics(
    depth: int, options: Any, left_out: tuple[str, ...]
) -> None:
    backend, optimizer = ml.NumpyBackend(ml.Mesh(data=2)), Momentum()
    every = {**shapes(P("data")), "mean": (WIDTH,), "variance": (WIDTH,)}
    some = {name: shape for name, shape in every.items() if name not in left_out}
    plans = [
        str(ml.train_step(nested(depth), backend, optimizer, shapes=given, **options).plan)
        for given in (every, some)
    ]
    assert plans[0] == plans[1]


def test_a_lone_layer_knows_the_shapes_of_its_statistics() -> None:
    compiled = ml.compile(ml.BatchNorm(), ml.NumpyBackend(), shapes={"input": (4, 6, 3)})
    found = {port.name: port.type.shape for port in compiled.plan.inputs}
    assert found["running_mean"] == found["running_variance"] == (6,)


def test_shapes_of_statistics_that_no_layer_knows_alone_are_given() -> None:
    shared = ml.Model()
    for name in ("one", "two"):
        shared |= ml.BatchNorm(name=name)(input="x", running_mean="mean", running_variance="v")
    own = ml.Model()
    own |= Center(name="center")(input="x", mean="mean", output="y")
    for made, why in (
        (shared, "'one' .* reads it and no layer makes it"),
        (own, "begins with 0.0"),
    ):
        with pytest.raises(ml.GraphError, match=f"'mean'.* missing; .*{why}"):
            ml.compile(made, ml.NumpyBackend(), shapes={"x": (4, 6)})


def by_hand(dtype: str) -> dict[str, np.ndarray]:
    """Return the same of batches in the dtype that layers compute in."""
    mean, variance = np.zeros(WIDTH), np.ones(WIDTH)
    for batch in batches():
        x = ml.NumpyBackend().array(batch["x"]).astype(dtype).astype("float32").numpy()
        mean = 0.9 * mean + 0.1 * x.mean(0)
        variance = 0.9 * variance + 0.1 * x.var(0, ddof=1)
    return {"mean": mean, "variance": variance}


def test_running_statistics_are_fed_back() -> None:
    found = follow(make(ml.NumpyBackend(ml.Mesh(data=2))))
    for name, expected in by_hand("float32").items():
        np.testing.assert_allclose(found[name], expected, *TOLERANCE["float32"])


@quick(lambda backend, dtype, zero: dtype == "bfloat16" and zero == 0)
@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_running_statistics_stay_in_float32(backend: str, dtype: str, zero: int) -> None:
    policy = {"params": "float32", "compute": dtype}
    found = follow(make(opened(backend, data=2), mixed_precision_policy=policy, zero=zero))
    for name, expected in by_hand(dtype).items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], expected, *TOLERANCE["float32"])


@pytest.mark.parametrize("inference", [False, True])
def test_statistics_of_a_model_in_16_bits_come_and_go_in_float32(inference: bool) -> None:
    backend = ml.NumpyBackend()
    batch = {**batches(1)[0], "mean": np.full(WIDTH, 1e-5, np.float32)}
    batch["variance"] = np.full(WIDTH, 1 + 1e-5, np.float32)
    policy = {"params": "bfloat16", "compute": "bfloat16"}
    compiled = ml.compile(model(), backend, mixed_precision_policy=policy, inference=inference)
    made = compiled.evaluate(compiled.randomize_params(), batch)
    for name in ("mean", "variance"):
        after = made[f"new_{name}"].numpy()
        assert after.dtype == np.float32
        assert (after == batch[name]).all() == inference


@ml.layer(outputs=("output", "new_mean"), statistics={"new_mean": ("mean", 0.0)})
def Center(input: Any, mean: Any, *, narrows: bool = False) -> Any:  # noqa: N802
    """Take the running mean off, which a user may give back in the dtype of the input."""
    after = mean * 0.9 + mnp.mean(input, 0) * 0.1
    return {"output": input - mean, "new_mean": after.astype(input.dtype) if narrows else after}


@pytest.mark.parametrize("narrows", [False, True])
@pytest.mark.parametrize("inputs", ["float32", "float64"])
@pytest.mark.parametrize("compute", ["bfloat16", "float32", "float64"])
def test_layers_of_users_keep_statistics(compute: str, inputs: str, narrows: bool) -> None:
    made = ml.Model()
    made |= Center(narrows, name="center")(input="x", mean="mean", output="h")
    made += ml.Linear(OUT, name="down")(output="y")
    made += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    policy = {"params": "float32", "compute": compute}
    given = {n: ml.TensorSpec(x.shape, inputs) for n, x in batches(1)[0].items()}
    given["mean"] = ml.TensorSpec((WIDTH,), inputs)
    backend = ml.NumpyBackend()
    compiled = ml.compile(made, backend, shapes=given, mixed_precision_policy=policy)
    zeros = {name: backend.zeros(*spec.shape, dtype=inputs) for name, spec in given.items()}
    outputs = compiled.evaluate(compiled.randomize_params(), zeros)
    assert str(outputs["new_mean"].dtype) == inputs
    step = ml.train_step(
        made, backend, ml.optim.sgd(0.1), shapes=given, mixed_precision_policy=policy
    )
    assert step.inputs == ("x", "t")
    state, mean = step.init(), np.zeros(WIDTH)
    for batch in batches():
        state, _ = step(state, {n: backend.array(x, dtype=inputs) for n, x in batch.items()})
        mean = 0.9 * mean + 0.1 * batch["x"].mean(0)
    dtype = "bfloat16" if compute == "bfloat16" else "float32"
    assert str(state.statistics["mean"].dtype) == inputs
    np.testing.assert_allclose(state.statistics["mean"].numpy(), mean, *TOLERANCE[dtype])


def test_what_comes_after_statistics_is_computed_in_16_bits() -> None:
    made = ml.Model()
    made |= Center(name="center")(input="x", mean="mean", output="h")
    made += ml.Linear(OUT, name="down")(input="h", output="y")
    backend, policy = ml.NumpyBackend(), {"params": "float32", "compute": "bfloat16"}
    compiled = ml.compile(made, backend, mixed_precision_policy=policy)
    x = {"x": np.ones((4, WIDTH), np.float32), "mean": np.zeros(WIDTH, np.float32)}
    assert str(compiled.evaluate(compiled.randomize_params(), x)["y"].dtype) == "bfloat16"


@pytest.mark.parametrize("precision", [None, {"params": "float32", "compute": "bfloat16"}])
def test_ports_of_inner_models_are_split_in_any_precision(precision: Any) -> None:
    """What an input is cast to has no name; the split of one such value was that of all."""
    inner = ml.Model()
    inner |= ml.Linear(HIDDEN, name="up")(input="a", output="b")
    made = ml.Model()
    made |= inner(a="x", b="h")
    made += ml.Linear(OUT, name="down")(input="h", output="y")
    made.shard({"model_0.a": P("data", None)})
    options = {} if precision is None else {"mixed_precision_policy": precision}
    compiled = ml.compile(made, ml.NumpyBackend(ml.Mesh(data=2)), **options)
    outputs = compiled.evaluate(compiled.randomize_params(), {"x": np.ones((4, WIDTH), np.float32)})
    assert outputs["y"].sharding.spec == P("data", None)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (("mean", 0.0, (4,)), "give the input, the number it begins with, and a function from"),
        (("mean",), "layer Kept has statistics \\('mean',\\); give the input, the number"),
        (
            ("mean", 0.0, lambda input: input.shape[1]),
            "is given the shape 6 by its layer, and a shape",
        ),
    ],
)
def test_statistics_that_are_said_wrongly(said: Any, text: str) -> None:
    with pytest.raises(ml.GraphError, match=text):

        @ml.layer(outputs=("output", "new"), statistics={"new": said})
        def Kept(mean: Any, input: Any) -> Any:  # noqa: N802
            """Keep a mean."""
            return {"output": input - mean, "new": mean}

        ml.compile(Kept(), ml.NumpyBackend(), shapes={"input": (4, 6)})


def test_tuning_knows_the_shapes_of_statistics() -> None:
    rows = {name: shape for name, shape in shapes().items() if name in "xt"}
    found = ml.auto_tune(
        model(), "simulated", input_shapes=rows, devices=2, strategy_space="data",
        optimizer=ml.optim.adamw(0.1),
    )  # fmt: skip
    assert {"x", "t"} <= set(found.in_shardings) <= {"x", "mean", "variance", "t"}
