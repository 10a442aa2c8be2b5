"""Experts under ZeRO's stage 3: tokens travel where they are fewer bytes than the experts are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.tolerances import TOLERANCE

EXPERTS, WIDTH, HIDDEN = 4, 8, 64
STACKS = [f"moe.experts.{part}.{kind}" for part in ("in", "out") for kind in ("weight", "bias")]


def make_model(**options: Any) -> ml.Model:
    """Return a mixture of experts between two layers, with its loss."""
    model = ml.Model()
    model |= ml.Linear(WIDTH, name="first")(input="x", output="h")
    options = {"num_experts": EXPERTS, "expert_dim": HIDDEN, "top_k": 1, **options}
    model += ml.MoE(**options, name="moe")(input="h", output="y", load_balancing_loss="balance")
    model += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    return model


def make_step(backend: ml.Backend, tokens: int = 6, zero: int = 3, **options: Any) -> Any:
    """Return a step of that model for 8 groups of tokens, split over `data` if there is one."""
    split = P("data") if "data" in backend.mesh.names else None
    shapes = {name: ml.TensorSpec((8, tokens, WIDTH), sharding=split) for name in "xt"}
    model, rule = make_model(**options), ml.optim.adamw(1e-2)
    return ml.train_step(model, backend, rule, loss="loss", shapes=shapes, zero=zero)


def train(step: Any, tokens: int = 6) -> dict[str, np.ndarray]:
    """Return losses and parameters of three steps."""
    rng, state, losses = np.random.default_rng(0), step.init(seed=0), []
    for _ in range(3):
        batch = {name: rng.standard_normal((8, tokens, WIDTH), np.float32) for name in "xt"}
        state, metrics = step(state, batch)
        losses.append(metrics.numbers()["loss"])
    return {"loss": np.array(losses), **{n: x.numpy() for n, x in state.params.items()}}


@pytest.mark.parametrize("mesh", [{"data": 2}, {"data": 4}, {"pod": 2, "data": 2}])
def test_tokens_travel_to_experts_that_are_larger(mesh: dict[str, int]) -> None:
    step = make_step(ml.NumpyBackend(ml.Mesh(**mesh)))
    kinds = Counter(x.kind for x in step.plan.collectives())
    assert kinds["all_to_all"] >= 4
    for name in STACKS:
        report = step.plan.specs[name]
        assert report.sharding.spec == P("data")
        assert "zero=3: a step sends" in report.decided_by
    expected = train(make_step(ml.NumpyBackend(), zero=0))
    for name, value in train(step).items():
        np.testing.assert_allclose(value, expected[name], *TOLERANCE["float32"], err_msg=name)


def test_experts_that_are_smaller_are_gathered() -> None:
    step = make_step(ml.NumpyBackend(ml.Mesh(data=2)), tokens=600)
    for name in STACKS:
        assert step.plan.specs[name].decided_by.endswith("of zero=3"), name


def test_no_remark_says_that_experts_should_rest_instead() -> None:
    assert make_step(ml.NumpyBackend(ml.Mesh(data=2))).plan.notes == ()


def test_a_compiled_model_takes_what_a_step_has_trained() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    step = make_step(backend)
    state = step.init(seed=0)
    for tokens in (6, 600):  # where gathering costs less, arrays stay as they lie
        split = ml.TensorSpec((8, tokens, WIDTH), sharding=P("data"))
        compiled = ml.compile(make_model(), backend, zero=3, shapes=dict.fromkeys("xt", split))
        x = np.random.default_rng(1).standard_normal((8, tokens, WIDTH), np.float32)
        found = compiled.evaluate(state.params, {"x": x, "t": x})["loss"].numpy()
        plain = ml.compile(make_model(), ml.NumpyBackend())
        whole = {n: p.numpy() for n, p in state.params.items()}
        expected = plain.evaluate(whole, {"x": x, "t": x})
        np.testing.assert_allclose(found, expected["loss"].numpy(), *TOLERANCE["float32"])


@pytest.mark.parametrize(
    ("count", "factor", "hidden"), [(3, 1.25, HIDDEN), (4, None, HIDDEN), (5, 1.25, 65)]
)
def test_what_does_not_divide_or_has_no_queues_is_gathered(
    count: int, factor: float | None, hidden: int
) -> None:
    options = {"num_experts": count, "capacity_factor": factor, "expert_dim": hidden}
    step = make_step(ml.NumpyBackend(ml.Mesh(data=2)), **options)
    assert all(step.plan.specs[name].decided_by.endswith("of zero=3") for name in STACKS)
    expected = train(make_step(ml.NumpyBackend(), zero=0, **options))
    for name, value in train(step).items():
        np.testing.assert_allclose(value, expected[name], *TOLERANCE["float32"], err_msg=name)


@pytest.mark.parametrize("spec", [P("tensor"), P(None, "tensor")])
def test_what_is_annotated_is_gathered_to_be_so(spec: P) -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2, tensor=2))
    sharding = {f"experts.{part}.weight": spec for part in ("in", "out")}
    step = make_step(backend, sharding=sharding)
    for name in STACKS:
        assert step.plan.specs[name].decided_by.endswith("of zero=3"), name
    expected = train(make_step(ml.NumpyBackend(), zero=0))
    for name, value in train(step).items():
        np.testing.assert_allclose(value, expected[name], *TOLERANCE["float32"], err_msg=name)
    shapes = dict.fromkeys("xt", ml.TensorSpec((8, 6, WIDTH), sharding=P("data")))
    compiled = ml.compile(make_model(sharding=sharding), backend, zero=3, shapes=shapes)
    assert {compiled.plan.specs[name].decided_by for name in STACKS} == {"zero=3"}


def test_experts_in_a_loop_stay_where_they_rest() -> None:
    def make(backend: ml.Backend, **options: Any) -> Any:
        block = ml.Model(name="block")
        block |= ml.MoE(EXPERTS, HIDDEN, top_k=1, name="moe")(input="h", output="y")
        model = ml.Model()
        model |= ml.Repeat(block, 3, carry={"h": "y"}, name="blocks")(h="x", y="z")
        model += ml.MeanSquaredError(name="end")(input="z", target="t", output="loss")
        split = P("data") if "data" in backend.mesh.names else None
        shapes = {name: ml.TensorSpec((8, 6, WIDTH), sharding=split) for name in "xt"}
        rule = ml.optim.adamw(1e-2)
        return ml.train_step(model, backend, rule, loss="loss", shapes=shapes, **options)

    step = make(ml.NumpyBackend(ml.Mesh(data=2)), zero=3)
    for name in STACKS:
        assert step.plan.specs[f"blocks.{name}"].sharding.spec == P(None, "data"), name
    expected = train(make(ml.NumpyBackend()))
    for name, value in train(step).items():
        np.testing.assert_allclose(value, expected[name], *TOLERANCE["float32"], err_msg=name)
