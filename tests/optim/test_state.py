"""States: names, dtypes, what belongs to which parameter; averages, master copies, checkpoints."""

from __future__ import annotations

from pathlib import Path

import mithril as ml
import numpy as np
import pytest
from mithril import P, optim
from mithril.trees import flatten, names
from mithril.types import DType, TensorType

from tests.optim.training import draw_noise, draw_params, open_backend, train
from tests.tolerances import TOLERANCE

BACKEND = ml.NumpyBackend()


def name_tensors(state: object) -> list[str]:
    return list(names(flatten(state, []), ""))


def params() -> dict:
    return {"up.weight": BACKEND.ones(4, 6), "up.bias": BACKEND.ones(4)}


STATES = {
    "sgd": (optim.sgd(0.1), ["0.count", "0.learning_rate"]),
    "momentum": (
        optim.sgd(0.1, 0.9),
        ["0.momentum.up.weight", "0.momentum.up.bias", "1.count", "1.learning_rate"],
    ),
    "adam": (
        optim.adam(0.1),
        [
            "0.count", "0.mu.up.weight", "0.mu.up.bias", "0.nu.up.weight", "0.nu.up.bias",
            "1.count", "1.learning_rate",
        ],
    ),
    "adamw of weights": (
        optim.adamw(0.1, mask="*.weight"),
        ["0.count", "0.mu.up.weight", "0.nu.up.weight", "2.count", "2.learning_rate"],
    ),
    "adafactor": (
        optim.adafactor(0.1, min_dim_size_to_factor=4),
        ["0.count", "0.v_row.up.weight", "0.v_col.up.weight", "0.v.up.bias", "3.count", "3.learning_rate"],
    ),
    "muon": (
        optim.muon(0.1),
        [
            "muon.0.count", "muon.0.mu.up.weight", "muon.2.count", "muon.2.learning_rate",
            "adam.0.count", "adam.0.mu.up.bias", "adam.0.nu.up.bias", "adam.2.count",
            "adam.2.learning_rate",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STATES)
def test_tensors_of_a_state_have_stable_names(case: str) -> None:
    optimizer, expected = STATES[case]
    state = optimizer.init(params())
    assert name_tensors(state) == expected
    run = ml.jit(optimizer.apply)
    _, after = run(params(), state, params())
    assert name_tensors(after) == expected
    before: list = []
    later: list = []
    flatten(state, before)
    flatten(after, later)
    assert [(x.shape, x.dtype) for x in before] == [(x.shape, x.dtype) for x in later]
    for name, x in zip(expected, later, strict=True):
        if name.endswith("count"):
            assert (str(x.dtype), x.item()) == ("int32", 1)


@pytest.mark.parametrize("case", STATES)
def test_moments_belong_to_their_parameters(case: str) -> None:
    state = STATES[case][0].init(params())
    found = optim.match_parameters(state, params())
    like = [n for n in name_tensors(state) if ".up." in n and ".v_" not in n]
    assert found == {name: name[name.index("up.") :] for name in like}


def test_types_are_matched_without_arrays() -> None:
    """A planner has the names and types of a state, and no array."""
    wide, bias = TensorType((4, 6), DType.float32), TensorType((4,), DType.float32)
    state = {"optimizer.0.mu.up.weight": wide, "optimizer.0.v_row.up.weight": bias}
    assert optim.match_parameters(state, {"up.weight": wide, "up.bias": bias}) == {
        "optimizer.0.mu.up.weight": "up.weight"
    }


def test_the_parameter_of_a_tensor_is_told_from_others_that_are_called_alike() -> None:
    alike = {"w": BACKEND.ones(2), "mu.w": BACKEND.ones(2), "deep": {"mu": {"w": BACKEND.ones(2)}}}
    state = optim.chain(optim.adam(0.1), optim.scale_by_momentum(0.5)).init(alike)
    assert optim.match_parameters(state, alike) == {
        f"{at}.{name}": name
        for at in ("0.0.mu", "0.0.nu", "1.momentum")
        for name in ("w", "mu.w", "deep.mu.w")
    }
    lone = BACKEND.ones(3)
    assert optim.match_parameters(optim.adam(0.1).init(lone), lone) == {"0.mu": "", "0.nu": ""}


def test_parameters_that_are_not_of_floats_have_no_moments() -> None:
    given = {"w": BACKEND.ones(2), "ids": BACKEND.arange(3)}
    optimizer = optim.with_ema(optim.with_master_copies(optim.adam(0.1)))
    state = optimizer.init(given)
    made, state = optimizer.apply({"w": given["w"]}, state, given)
    assert state["ema"]["ids"] is None
    assert made["ids"].numpy().tolist() == [0, 1, 2]
    assert str(made["ids"].dtype) == "int32"


@pytest.mark.parametrize("is_split", [False, True])
def test_an_average_follows_the_parameters(is_split: bool) -> None:
    found, state = train(optim.with_ema(optim.adam(0.05), 0.9), is_split=is_split, steps=20)
    expected = draw_params()
    backend, optimizer = open_backend(False), optim.adam(0.05)
    now = {name: backend.array(x) for name, x in draw_params().items()}
    inner = optimizer.init(now)
    run = ml.jit(lambda p, s, n: optimizer.apply({k: p[k] - n[k] for k in p}, s, p))
    for noise in draw_noise()[:20]:
        now, inner = run(now, inner, noise)
        expected = {n: 0.9 * e + 0.1 * now[n].numpy() for n, e in expected.items()}
    rtol, atol = TOLERANCE["float32"]
    for name, x in expected.items():
        np.testing.assert_allclose(state["ema"][name].numpy(), x, rtol=rtol, atol=atol)
        np.testing.assert_allclose(found[name], now[name].numpy(), rtol=rtol, atol=atol)


def test_update_and_apply_of_what_is_around_an_optimiser_agree() -> None:
    optimizer = optim.with_ema(optim.with_master_copies(optim.adam(0.01)), 0.5)
    given = {"w": BACKEND.array([1.0, -3.0], dtype="bfloat16"), "v": BACKEND.array([2.0])}
    state = other = optimizer.init(given)
    now = given
    for _ in range(10):
        updates, state = optimizer.update(now, state, now)
        now = optim.apply_updates(now, updates)
        given, other = optimizer.apply(given, other, given)
    for name in given:
        assert now[name].numpy().tolist() == given[name].numpy().tolist()
        assert state["ema"][name].numpy().tolist() == other["ema"][name].numpy().tolist()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_master_copies_are_trained_as_float32(dtype: str) -> None:
    """The parameters are those of a float32 run, rounded; without copies small steps are lost."""
    gradient = {"w": np.full(4, 1e-3, np.float32)}
    start = np.array([1.0, 2.0, -3.0, 0.5], np.float32)
    optimizer = optim.sgd(0.1)

    def run(around: optim.Transformation, kind: str) -> tuple:
        step = ml.jit(around.apply)
        now = {"w": BACKEND.array(start, dtype=kind)}
        state = around.init(now)
        for _ in range(50):
            given = {"w": BACKEND.array(gradient["w"], dtype=kind)}
            now, state = step(given, state, now)
        return now["w"], state

    exact, _ = run(optimizer, "float32")
    rounded = np.asarray(BACKEND.array(gradient["w"], dtype=dtype).astype("float32").numpy())
    found, state = run(optim.with_master_copies(optimizer), dtype)
    master = state["master"]["w"]
    assert (str(found.dtype), str(master.dtype)) == (dtype, "float32")
    np.testing.assert_allclose(master.numpy(), start - 50 * 0.1 * rounded, rtol=1e-5)
    np.testing.assert_allclose(master.numpy(), exact.numpy(), rtol=1e-4)
    assert found.numpy().tolist() == master.astype(dtype).numpy().tolist()
    without, _ = run(optimizer, dtype)
    assert without.astype("float32").numpy()[1] == 2.0  # the steps are smaller than its last digit
    assert master.numpy()[1] < 1.996


def test_moments_behind_master_copies_are_float32() -> None:
    given = {"w": BACKEND.array([1.0], dtype="bfloat16"), "v": BACKEND.array([1.0])}
    state = optim.with_master_copies(optim.adam(0.1)).init(given)
    assert str(state["optimizer"][0]["mu"]["w"].dtype) == "float32"
    assert state["master"]["v"] is None
    assert str(optim.adam(0.1).init(given)[0]["mu"]["w"].dtype) == "bfloat16"
    matched = optim.match_parameters(state, given)
    assert matched["master.w"] == matched["optimizer.0.mu.w"] == "w"


def test_gradients_of_16_bits_are_computed_with_in_float32() -> None:
    """The squares of these gradients are smaller than any float16."""
    g = {"w": BACKEND.array([1e-4, -1e-4], dtype="float16")}
    w = {"w": BACKEND.array([1.0, 1.0])}
    optimizer = optim.adam(0.5)
    made, _ = optimizer.apply(g, optimizer.init(w), w)
    np.testing.assert_allclose(made["w"].numpy(), [0.5, 1.5], rtol=1e-3)
    large = {"w": BACKEND.array([60000.0, 60000.0], dtype="float16")}
    np.testing.assert_allclose(optim.global_norm(large).item(), 84853, rtol=1e-3)
    clip = optim.clip_by_global_norm(1.0)
    assert str(clip.update(large, {}, w)[0]["w"].dtype) == "float32"


def test_a_state_is_given_up_and_kept_split() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=4))
    optimizer = optim.adamw(0.1)
    run = ml.jit(
        optimizer.apply,
        backend=backend,
        donate=("state", "params"),
        at_rest={"state.*.mu.*": P("data"), "state.*.nu.*": P("data")},
    )
    w = {"w": backend.array(np.ones((8, 2), np.float32))}
    state = optimizer.init(w)
    made, after = run({"w": np.ones((8, 2), np.float32)}, state, w)
    np.testing.assert_allclose(made["w"].numpy(), 0.899, rtol=1e-4)
    with pytest.raises(ml.BackendError, match="was donated"):
        w["w"].numpy()
    assert after[0]["count"].item() == 1


def test_a_state_is_saved_and_goes_on(tmp_path: Path) -> None:
    optimizer = optim.chain(
        optim.clip_by_global_norm(1.0),
        optim.with_ema(optim.adamw(optim.linear_schedule(0.1, 0.0, 10), mask="*.weight")),
    )
    given = params()
    now, state = optimizer.apply(given, optimizer.init(given), given)
    ml.save(tmp_path / "state", {"params": now, "state": state})
    expected, expected_state = optimizer.apply(given, state, now)

    large = ml.NumpyBackend(ml.Mesh(data=2))
    split = {name: large.ones(*x.shape, sharding=P("data")) for name, x in given.items()}
    like = {"params": split, "state": optimizer.init(split)}
    run = ml.jit(optimizer.apply, backend=large)
    for loaded in (ml.load(tmp_path / "state"), ml.load(tmp_path / "state", like=like)):
        again, after = run(split, loaded["state"], loaded["params"])
        for name, x in expected.items():
            np.testing.assert_allclose(again[name].numpy(), x.numpy(), rtol=1e-6)
        assert name_tensors(after) == name_tensors(expected_state)
    mu = loaded["state"][1]["optimizer"][0]["mu"]
    assert mu["up.weight"].sharding.spec == P("data", None)
    assert mu["up.bias"] is None
