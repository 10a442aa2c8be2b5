"""Masks say by patterns, trees or functions which parameters a transformation is about."""

from __future__ import annotations

from collections.abc import Callable

import mithril as ml
import numpy as np
import pytest
from mithril import optim
from mithril.trees import flatten, names

BACKEND = ml.NumpyBackend()


def flat() -> dict:
    return {
        name: BACKEND.ones(*shape)
        for name, shape in {"up.weight": (2, 3), "up.bias": (3,), "down.weight": (3, 2)}.items()
    }


def nested() -> dict:
    return {
        "up": {"weight": BACKEND.ones(2, 3), "bias": BACKEND.ones(3)},
        "norms": [BACKEND.ones(3), BACKEND.ones(3)],
    }


def changed(tree: dict) -> list[str]:
    """Return the names of what is no longer one."""
    leaves: list = []
    structure = flatten(tree, leaves)
    pairs = zip(names(structure, ""), leaves, strict=True)
    return [name for name, x in pairs if not np.allclose(x.numpy(), 1.0)]


MASKS = {
    "pattern": (flat, "*.weight", ["up.weight", "down.weight"]),
    "patterns": (flat, ["up.*", "down.w?ight"], ["up.weight", "up.bias", "down.weight"]),
    "rules": (flat, {"*": True, "up.*": False, "up.bias": True}, ["up.bias", "down.weight"]),
    "tree": (flat, {"up.weight": True, "up.bias": False, "down.weight": np.False_}, ["up.weight"]),
    "function": (flat, lambda p: {n: x.ndim == 1 for n, x in p.items()}, ["up.bias"]),
    "function of patterns": (flat, lambda p: "down.*", ["down.weight"]),
    "names of a tree": (nested, "up.*", ["up.weight", "up.bias"]),
    "upper part of a tree": (nested, {"up": False, "norms": [True, False]}, ["norms.0"]),
    "everything": (nested, True, ["up.weight", "up.bias", "norms.0", "norms.1"]),
}


@pytest.mark.parametrize("case", MASKS)
def test_a_mask_chooses_parameters(case: str) -> None:
    make, mask, chosen = MASKS[case]
    params = make()
    half = optim.scale(0.5, mask=mask)
    for update in (half.update, ml.jit(half.update)):
        updates, _ = update(params, half.init(params), params)
        assert changed(updates) == chosen
    optimizer = optim.adamw(0.1, mask=mask)  # others stay
    state = optimizer.init(params)
    trained, state = optimizer.apply(params, state, params)
    assert changed(trained) == chosen
    assert sorted(set(optim.match_parameters(state, params).values())) == sorted(chosen)


PARTS: dict[str, Callable[[], optim.Transformation]] = {
    "clip": lambda: optim.clip(0.25, mask="up.bias"),
    "clip_by_global_norm": lambda: optim.clip_by_global_norm(0.25, mask="up.bias"),
    "clip_by_block_rms": lambda: optim.clip_by_block_rms(0.25, mask="up.bias"),
    "add_decayed_weights": lambda: optim.add_decayed_weights(0.25, mask="up.bias"),
    "scale_by_momentum": lambda: optim.chain(
        optim.scale_by_momentum(0.5, nesterov=True, mask="up.bias")
    ),
    "scale_by_adam": lambda: optim.scale_by_adam(b1=0.0, b2=0.0, eps=1.0, mask="up.bias"),
    "scale_by_rms": lambda: optim.scale_by_rms(mask="up.bias"),
    "scale_by_sum_of_squares": lambda: optim.scale_by_sum_of_squares(1.0, mask="up.bias"),
    "scale_by_factored_rms": lambda: optim.scale_by_factored_rms(eps=1.0, mask="up.bias"),
    "scale_by_parameter_scale": lambda: optim.scale_by_parameter_scale(2.0, mask="up.bias"),
    "scale_by_learning_rate": lambda: optim.scale_by_learning_rate(0.5, mask="up.bias"),
    "masked": lambda: optim.masked(optim.chain(optim.scale(2.0), optim.clip(0.5)), "up.bias"),
}


@pytest.mark.parametrize("part", PARTS)
def test_every_part_takes_a_mask_and_passes_other_updates_on(part: str) -> None:
    params = flat()
    transformation = PARTS[part]()
    updates, state = transformation.update(params, transformation.init(params), params)
    assert changed(updates) == ["up.bias"]
    assert updates["up.weight"] is params["up.weight"]
    assert set(optim.match_parameters(state, params).values()) <= {"up.bias"}


def test_lion_and_muon_take_masks() -> None:
    params = {name: 2 * x for name, x in flat().items()}
    lion = optim.scale_by_lion(mask="up.*")
    updates, _ = lion.update(params, lion.init(params), params)
    assert updates["up.bias"].numpy().tolist() == [1, 1, 1]
    assert updates["down.weight"] is params["down.weight"]
    muon = optim.scale_by_muon(mask="up.weight")
    updates, state = muon.update(params, muon.init(params), params)
    assert updates["up.bias"] is params["up.bias"]
    assert 0.6 < np.linalg.norm(updates["up.weight"].numpy()) < 1.3  # it is of rank one
    assert set(optim.match_parameters(state, params).values()) == {"up.weight"}


@pytest.mark.parametrize(
    "optimizer",
    [
        optim.sgd(0.1, 0.9, mask="up.bias"),
        optim.adam(0.1, mask="up.bias"),
        optim.adamw(0.1, mask="up.bias"),
        optim.lion(0.1, mask="up.bias"),
        optim.rmsprop(0.1, mask="up.bias"),
        optim.adagrad(0.1, mask="up.bias"),
        optim.adafactor(0.1, mask="up.bias"),
        optim.freeze(optim.adam(0.1), "*.weight"),
        optim.freeze(optim.with_ema(optim.adam(0.1)), ["up.w*", "down.*"]),
    ],
)
def test_an_optimiser_leaves_other_parameters_as_they_are(
    optimizer: optim.Transformation,
) -> None:
    params = flat()
    state = optimizer.init(params)
    assert set(optim.match_parameters(state, params).values()) == {"up.bias"}
    updates, _ = optimizer.update(params, state, params)
    assert updates["up.weight"] is None
    made, _ = optimizer.apply(params, state, params)
    assert changed(made) == ["up.bias"]
    assert made["up.weight"] is params["up.weight"]
    added = optim.apply_updates(params, updates)
    assert np.allclose(added["up.bias"].numpy(), made["up.bias"].numpy())


@pytest.mark.parametrize(
    "optimizer",
    [
        optim.adamw(1.0, b1=0.0, b2=0.0, weight_decay=0.5, decay_mask="*.bias"),
        optim.lion(1.0, weight_decay=0.5, decay_mask="*.bias"),
        optim.adafactor(
            1.0, weight_decay=0.5, decay_mask="*.bias", multiply_by_parameter_scale=False
        ),
    ],
)
def test_what_is_decayed_is_said_by_a_mask(optimizer: optim.Transformation) -> None:
    params = flat()
    made, _ = optimizer.apply(params, optimizer.init(params), params)
    assert np.allclose(made["up.weight"].numpy(), 0.0, atol=1e-6)
    assert np.allclose(made["up.bias"].numpy(), -0.5, atol=1e-6)


LABELS = [
    {"*": "slow", "down.*": "fast"},
    lambda params: {name: "fast" if name == "down.weight" else "slow" for name in params},
]


@pytest.mark.parametrize("labels", LABELS)
def test_parameters_go_to_optimisers_by_label(labels: object) -> None:
    optimizer = optim.partition({"slow": optim.adam(0.01), "fast": optim.sgd(0.5, 0.9)}, labels)
    params = flat()
    state = optimizer.init(params)
    assert state["slow"][0]["mu"]["down.weight"] is None
    assert state["fast"][0]["momentum"]["up.bias"] is None
    made, state = optimizer.apply(params, state, params)
    for name, value in {"up.weight": 0.99, "up.bias": 0.99, "down.weight": 0.5}.items():
        assert np.allclose(made[name].numpy(), value)
    assert set(optim.find_learning_rates(state)) == {"slow.1.learning_rate", "fast.1.learning_rate"}
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    assert np.allclose(updates["down.weight"].numpy(), -0.5)


def test_what_has_no_gradient_is_left_alone() -> None:
    params = flat()
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(0.1))
    state = optimizer.init(params)
    for gradients in (
        {"up.bias": params["up.bias"]},
        {**dict.fromkeys(params), "up.bias": params["up.bias"]},
    ):
        made, after = optimizer.apply(gradients, state, params)
        assert changed(made) == ["up.bias"]
        assert after[1][0]["mu"]["up.weight"] is state[1][0]["mu"]["up.weight"]
    same, _ = optimizer.apply(dict.fromkeys(params), state, params)
    assert all(same[name] is x for name, x in params.items())
