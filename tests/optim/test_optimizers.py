"""Every optimiser makes of the same gradients what torch.optim or optax makes, on any mesh."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P, optim
from mithril.trees import flatten, names

from tests.functional.backends import close, every_backend, opened
from tests.optim.training import Values, draw_noise, draw_params, train, train_optax, train_torch
from tests.tolerances import TOLERANCE


def of_torch(name: str, **options: object) -> Callable[[], Values]:
    def run() -> Values:
        torch = pytest.importorskip("torch")
        return train_torch(lambda params: getattr(torch.optim, name)(params, **options))

    return run


def of_optax(make: Callable, *, is_transposed: bool = False) -> Callable[[], Values]:
    def run() -> Values:
        optax = pytest.importorskip("optax")
        pytest.importorskip("optax.contrib")
        return train_optax(make(optax), is_transposed=is_transposed)

    return run


def clipped_by_torch() -> Values:
    torch = pytest.importorskip("torch")

    class Clipped(torch.optim.AdamW):
        def step(self) -> None:
            params = self.param_groups[0]["params"]
            torch.nn.utils.clip_grad_norm_(params, 2.0)
            super().step()

    return train_torch(lambda params: Clipped(params, lr=0.02))


MATRICES = {"wide": True, "tall": True, "bias": False, "stack": False}
CASES = {
    "sgd": (optim.sgd(0.1), of_torch("SGD", lr=0.1)),
    "momentum": (optim.sgd(0.02, 0.9), of_torch("SGD", lr=0.02, momentum=0.9)),
    "nesterov": (
        optim.sgd(0.02, 0.9, nesterov=True),
        of_torch("SGD", lr=0.02, momentum=0.9, nesterov=True),
    ),
    "L2": (
        optim.chain(optim.add_decayed_weights(0.3), optim.sgd(0.05)),
        of_torch("SGD", lr=0.05, weight_decay=0.3),
    ),
    "adam": (optim.adam(0.02), of_torch("Adam", lr=0.02)),
    "adam of optax": (optim.adam(0.02, 0.8, 0.95), of_optax(lambda o: o.adam(0.02, 0.8, 0.95))),
    "adam without momentum": (optim.adam(0.02, 0.0), of_torch("Adam", lr=0.02, betas=(0.0, 0.999))),
    "adamw": (optim.adamw(0.02), of_torch("AdamW", lr=0.02)),
    "adamw of a mask": (
        optim.adamw(0.02, weight_decay=0.2, decay_mask=["wide", "tall"]),
        of_optax(lambda o: o.adamw(0.02, weight_decay=0.2, mask=MATRICES)),
    ),
    "adamw of a schedule": (
        optim.adamw(optim.warmup_cosine_decay_schedule(0.0, 0.05, 10, 90, 0.001)),
        of_optax(
            lambda o: o.adamw(
                o.warmup_cosine_decay_schedule(0.0, 0.05, 10, 90, 0.001), weight_decay=0.01
            )
        ),
    ),
    "clipped": (optim.chain(optim.clip_by_global_norm(2.0), optim.adamw(0.02)), clipped_by_torch),
    "clipped each": (
        optim.chain(optim.clip(0.3), optim.sgd(0.05)),
        of_optax(lambda o: o.chain(o.clip(0.3), o.sgd(0.05))),
    ),
    "adafactor": (
        optim.adafactor(0.05, min_dim_size_to_factor=4),
        of_optax(lambda o: o.adafactor(0.05, min_dim_size_to_factor=4)),
    ),
    "adafactor, plain": (
        optim.adafactor(
            0.05, clipping_threshold=None, multiply_by_parameter_scale=False, weight_decay=0.1
        ),
        of_optax(
            lambda o: o.chain(
                o.scale_by_factored_rms(),
                o.add_decayed_weights(0.1),
                o.scale_by_learning_rate(0.05),
            )
        ),
    ),
    "lion": (optim.lion(0.01), of_optax(lambda o: o.lion(0.01))),
    "adagrad": (optim.adagrad(0.1), of_torch("Adagrad", lr=0.1)),
    "adagrad from a value": (
        optim.adagrad(0.1, 0.5),
        of_torch("Adagrad", lr=0.1, initial_accumulator_value=0.5),
    ),
    "rmsprop": (optim.rmsprop(0.02), of_torch("RMSprop", lr=0.02)),
    "rmsprop centered": (
        optim.rmsprop(0.01, 0.9, momentum=0.5, centered=True),
        of_torch("RMSprop", lr=0.01, alpha=0.9, momentum=0.5, centered=True),
    ),
    "muon": (
        optim.muon(0.02, weight_decay=0.1),
        of_optax(
            lambda o: o.partition(  # its own way with the others has Nesterov's momentum, too
                {True: o.contrib.muon(0.02, weight_decay=0.1), False: o.adam(0.02)}, MATRICES
            ),
            is_transposed=True,
        ),
    ),
    "muon without nesterov": (
        optim.muon(0.02, 0.9, nesterov=False, adam_learning_rate=0.01, adam_b2=0.95),
        of_optax(
            lambda o: o.contrib.muon(
                0.02, beta=0.9, nesterov=False, adam_learning_rate=0.01, adam_b2=0.95
            ),
            is_transposed=True,
        ),
    ),
}


@cache
def expect(case: str) -> Values:
    return CASES[case][1]()


@pytest.mark.parametrize("is_split", [False, True], ids=["one device", "split"])
@pytest.mark.parametrize("case", CASES)
def test_an_optimiser_is_that_of_torch_or_optax(case: str, is_split: bool) -> None:
    found, _ = train(CASES[case][0], is_split=is_split)
    rtol, atol = TOLERANCE["float32"]
    before = draw_params()
    for name, expected in expect(case).items():
        assert not np.allclose(expected, before[name], rtol=1e-2)
        np.testing.assert_allclose(found[name], expected, rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("name", ["AdamW", "SGD", "RMSprop"])
def test_float64_keeps_its_digits(name: str) -> None:
    torch = pytest.importorskip("torch")
    ours = {
        "AdamW": optim.adamw(0.02),
        "SGD": optim.sgd(0.02, 0.9),
        "RMSprop": optim.rmsprop(0.02),
    }
    options = {"momentum": 0.9} if name == "SGD" else {}
    expected = train_torch(
        lambda params: getattr(torch.optim, name)(params, lr=0.02, **options), dtype="float64"
    )
    found, _ = train(ours[name], dtype="float64")
    rtol, atol = TOLERANCE["float64"]
    for parameter, x in expected.items():
        assert found[parameter].dtype == np.float64
        np.testing.assert_allclose(found[parameter], x, rtol=rtol, atol=atol)


EACH = {
    "sgd": optim.sgd(0.1, 0.9, nesterov=True),
    "adamw": optim.chain(
        optim.clip_by_global_norm(1.0), optim.adamw(optim.linear_schedule(0.1, 0.0, 5))
    ),
    "adafactor": optim.adafactor(0.05, min_dim_size_to_factor=4),
    "lion": optim.lion(0.01),
    "muon": optim.muon(0.02),
    "adagrad": optim.adagrad(0.1),
    "rmsprop": optim.rmsprop(0.02, centered=True),
    "average": optim.with_ema(optim.adam(optim.warmup_cosine_decay_schedule(0.0, 0.1, 2, 5))),
}


def take_steps(backend: ml.Backend) -> dict:
    """Return what each optimiser makes in three steps, all in one plan."""

    def step(params: dict, states: dict, noise: dict) -> tuple:
        made = {
            name: optimizer.apply(
                {n: params[name][n] - noise[n] for n in noise}, states[name], params[name]
            )
            for name, optimizer in EACH.items()
        }
        return {n: m[0] for n, m in made.items()}, {n: m[1] for n, m in made.items()}

    spec = {"wide": P("x"), "tall": P(None, "x"), "bias": None}
    start = {n: backend.array(draw_params()[n], sharding=s) for n, s in spec.items()}
    params = dict.fromkeys(EACH, start)
    states = {name: optimizer.init(start) for name, optimizer in EACH.items()}
    run = ml.jit(step, backend=backend)
    for noise in draw_noise()[:3]:
        params, states = run(params, states, {n: noise[n] for n in spec})
    leaves: list = []
    found = names(flatten({"params": params, "states": states}, leaves), "")
    return {n: x.numpy() for n, x in zip(found, leaves, strict=True)}


@pytest.mark.slow
@every_backend
def test_optimisers_are_the_same_on_every_backend(name: str) -> None:
    found, expected = take_steps(opened(name, x=2)), take_steps(ml.NumpyBackend(ml.Mesh(x=1)))
    assert list(found) == list(expected)
    for tensor, x in found.items():
        close(x, expected[tensor])


def test_moments_lie_as_their_parameters_do() -> None:
    _, state = train(optim.adamw(0.02), is_split=True, steps=2)
    assert state[0]["mu"]["wide"].sharding.spec == P("data", "tensor")
    assert state[0]["nu"]["tall"].sharding.spec == P(None, "data")


def test_muon_splits_products() -> None:
    """The partitioner sees products: sums over what is split, and no weight is gathered whole."""
    backend = ml.NumpyBackend(ml.Mesh(data=4))
    optimizer = optim.muon(0.1)
    spec = ml.TensorSpec((256, 64), sharding=P("data"))
    params = {"w": backend.zeros(256, 64, sharding=P("data"))}
    plan = ml.jit(optimizer.apply, backend=backend).plan(
        {"w": spec}, optimizer.init(params), {"w": spec}
    )
    assert {row.kind for row in plan.collectives()} == {"all_reduce"}
    assert max(row.bytes for row in plan.collectives()) <= 64 * 64 * 4


def test_muon_trains_batches_of_matrices() -> None:
    rng = np.random.default_rng(0)
    backend = ml.NumpyBackend()
    x = rng.normal(size=(3, 6, 4)).astype(np.float32)
    stacked = optim.orthogonalize(backend.array(x)).numpy()
    each = [optim.orthogonalize(backend.array(part)).numpy() for part in x]
    np.testing.assert_allclose(stacked, each, rtol=1e-4, atol=5e-5)
    values = np.linalg.svd(stacked, compute_uv=False)
    assert (values > 0.6).all()
    assert (values < 1.3).all()
    optimizer = optim.muon(0.1, matrices="stack")
    params = {"stack": backend.array(x), "head": backend.array(x[0])}
    state = optimizer.init(params)
    assert state["muon"][0]["mu"]["head"] is None
    assert state["adam"][0]["mu"]["stack"] is None
    made, _ = optimizer.update(params, state, params)
    factor = np.sqrt(6 / 4)
    np.testing.assert_allclose(made["stack"].numpy(), -0.1 * factor * stacked, rtol=1e-3, atol=1e-4)


def test_at_once_and_in_a_function_are_the_same() -> None:
    backend = ml.NumpyBackend()
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(lambda s: 0.1 / (s + 1.0)))
    params = {"block": [backend.array([1.0, 2.0]), {"w": backend.array([[3.0]])}], "none": None}
    run = ml.jit(optimizer.apply)
    state = traced_state = optimizer.init(params)
    traced = params
    for _ in range(3):
        params, state = optimizer.apply(params, state, params)
        traced, traced_state = run(traced, traced_state, traced)
    np.testing.assert_allclose(params["block"][0].numpy(), traced["block"][0].numpy(), rtol=1e-6)
    assert params["none"] is traced["none"] is None
    assert state[1][2]["count"].item() == traced_state[1][2]["count"].item() == 3
    rates = optim.find_learning_rates(traced_state)
    assert {name: round(x.item(), 6) for name, x in rates.items()} == {
        "1.2.learning_rate": 0.033333
    }


def test_a_state_is_made_inside_of_a_function_too() -> None:
    optimizer = optim.adam(0.1)

    def once(params: dict) -> tuple:
        return optimizer.apply(params, optimizer.init(params), params)

    params, state = ml.jit(once, backend=ml.NumpyBackend())({"w": np.array([2.0, -2.0])})
    np.testing.assert_allclose(params["w"].numpy(), [1.9, -1.9], rtol=1e-6)
    assert str(state[0]["count"].dtype) == "int32"


def test_values_of_numpy_start_a_state_that_functions_take() -> None:
    params = {"w": np.ones(3, np.float32)}
    optimizer = optim.adamw(optim.linear_schedule(0.1, 0.0, 10))
    state = optimizer.init(params)
    assert isinstance(state[0]["mu"]["w"], np.ndarray)
    params, state = ml.jit(optimizer.apply, backend=ml.NumpyBackend())(params, state, params)
    np.testing.assert_allclose(params["w"].numpy(), 0.899, rtol=1e-4)


def test_a_model_is_trained() -> None:
    model = ml.Model()
    model |= ml.Linear(8, name="up")(input="x", output="h")
    model |= ml.Relu()(input="h", output="a")
    model |= ml.Linear(2, name="down")(input="a", output="y")
    model |= ml.MeanSquaredError()(input="y", target="t", output="loss")
    model.freeze("up.bias")
    rng = np.random.default_rng(0)
    batch = {"x": rng.normal(size=(8, 4)).astype(np.float32), "t": np.ones((8, 2), np.float32)}
    compiled = ml.compile(model, ml.NumpyBackend(ml.Mesh(data=2)))
    params = compiled.randomize_params()
    optimizer = optim.adamw(0.05, decay_mask="*.weight")
    losses = []
    state = None
    frozen = None
    for _ in range(20):
        outputs, gradients = compiled.evaluate(params, batch, {"loss": 1.0})
        if state is None:
            state, frozen = optimizer.init(params), params["up.bias"]
        params, state = optimizer.apply(gradients, state, params)
        losses.append(float(outputs["loss"]))
    assert losses[-1] < 0.2 * losses[0]
    assert params["up.bias"] is frozen  # it has no gradient
    assert type(params) is type(compiled.randomize_params())


def test_one_writes_an_optimiser_the_same_way() -> None:
    def start(params: dict) -> dict:
        return {"total": {name: mnp.zeros_like(x) for name, x in params.items()}}

    def update(gradients: dict, state: dict, params: dict) -> tuple:
        total = {name: state["total"][name] + mnp.abs(g) for name, g in gradients.items()}
        return {name: g / total[name] for name, g in gradients.items()}, {"total": total}

    optimizer = optim.chain(optim.Transformation(start, update), optim.scale_by_learning_rate(0.5))
    w = {"w": ml.NumpyBackend().array([4.0, -1.0])}
    for apply in (optimizer.apply, ml.jit(optimizer.apply)):
        made, state = apply(w, optimizer.init(w), w)
        assert made["w"].numpy().tolist() == [3.5, -0.5]
        assert optim.match_parameters(state, w) == {"0.total.w": "w"}


def test_a_chain_applies_as_its_last_part_does() -> None:
    """An optimiser with a kernel of its own keeps it behind a clip, and behind a mask."""
    called = []
    plain = optim.sgd(0.5)

    def apply(gradients: dict, state: object, params: dict) -> tuple:
        called.append({name for name, p in params.items() if p is not None})
        return plain.apply(gradients, state, params)

    fused = optim.Transformation(plain.init, plain.update, apply)
    backend = ml.NumpyBackend()
    w = {"w": backend.array([3.0]), "b": backend.array([4.0])}
    clipped = optim.chain(optim.clip_by_global_norm(1.0), fused)
    made, _ = clipped.apply(w, clipped.init(w), w)
    np.testing.assert_allclose(made["w"].numpy(), 2.7, rtol=1e-6)
    part = optim.freeze(fused, "b")
    made, _ = part.apply(w, part.init(w), w)
    assert made["b"] is w["b"]
    around = optim.with_ema(fused)
    around.apply(w, around.init(w), w)
    assert called == [{"w", "b"}, {"w"}, {"w", "b"}]
