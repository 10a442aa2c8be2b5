"""The mixture of experts against plain loops, and on any mesh against one device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.models.evaluate import random, run
from tests.profiles import quick
from tests.tolerances import TOLERANCE

RTOL, ATOL = TOLERANCE["float32"]
E, FEATURES, HIDDEN = 4, 6, 8
STATISTICS = (
    "load_balancing_loss", "router_z_loss", "tokens_per_expert", "dropped_fraction",
    "router_entropy",
)  # fmt: skip


def close(found: np.ndarray, expected: np.ndarray | float) -> None:
    np.testing.assert_allclose(found, expected, rtol=RTOL, atol=ATOL)


# ------------------------------------------------------------------ the formula, in loops


def seated(logits: np.ndarray, top_k: int, capacity: int, reroute: bool) -> list[list[int]]:
    """Return the experts that serve each token of a group, by the words of the documentation."""
    tokens, experts = logits.shape
    order = np.argsort(-logits, axis=1, kind="stable")
    room, served = [capacity] * experts, [[] for _ in range(tokens)]
    for step in range(experts if reroute else top_k):
        for token in range(tokens):
            expert = int(order[token, step])
            if len(served[token]) < top_k and room[expert]:
                room[expert] -= 1
                served[token].append(expert)
    return served


def expected(x, p, top_k, factor, reroute=False, groups=None) -> dict[str, np.ndarray | float]:
    """Return outputs of a mixture of relu experts with biases, token by token."""
    if groups is None:
        groups = x.shape[0] if x.ndim == 3 else math.gcd(len(x), E)
    tokens = x.reshape(groups, -1, FEATURES).astype(np.float64)
    count = tokens.shape[1]
    capacity = (
        count
        if factor is None
        else min(count, math.ceil(Fraction(str(factor)) * top_k * count / E))
    )
    output, load, asked = np.zeros_like(tokens), np.zeros(E, int), np.zeros(E)
    total_p, z, entropy = np.zeros(E), 0.0, 0.0
    for g, group in enumerate(tokens):
        logits = group @ p["router.weight"].T.astype(np.float64)
        served = seated(logits, top_k, capacity, reroute)
        for t, row in enumerate(logits):
            odds = np.exp(row - row.max())
            odds /= odds.sum()
            best = np.argsort(-row, kind="stable")[:top_k]
            asked[best] += 1
            total_p += odds
            z += np.log(np.exp(row).sum()) ** 2
            entropy -= (odds * np.log(odds)).sum()
            mine = list(served[t] if reroute else best)
            weights = odds[mine]
            if top_k > 1 and mine:  # their odds among all may be 0
                weights = np.exp(row[mine] - row[mine].max())
                weights /= weights.sum()
            for expert in served[t]:
                load[expert] += 1
                up = p["experts.in.weight"][expert] @ group[t] + p["experts.in.bias"][expert]
                down = p["experts.out.weight"][expert] @ np.maximum(up, 0)
                down = down + p["experts.out.bias"][expert]
                output[g, t] += weights[mine.index(expert)] * down
    number = groups * count
    return {
        "output": output.reshape(x.shape),
        "load_balancing_loss": E * (asked / (number * top_k) * total_p / number).sum(),
        "router_z_loss": z / number,
        "tokens_per_expert": load,
        "dropped_fraction": 1 - load.sum() / (number * top_k),
        "router_entropy": entropy / number,
    }


@pytest.mark.parametrize("shape", [(3, 8, FEATURES), (12, FEATURES), (7, FEATURES)], ids=str)
@pytest.mark.parametrize(
    ("top_k", "factor", "reroute"),
    [
        (2, 1.25, False), (1, 1.25, False), (2, 0.5, False), (3, None, False), (E, 1.0, False),
        (2, 1.0, True), (1, 0.7, True),
    ],
)  # fmt: skip
def test_outputs_and_statistics(shape, top_k: int, factor: float | None, reroute: bool) -> None:
    x = random(*shape)
    layer = ml.MoE(
        E, HIDDEN, top_k, factor, activation="relu", overflow="reroute" if reroute else "drop"
    )
    out, p = run(layer, input=x)
    assert tuple(out) == ("output", *STATISTICS)
    for name, value in expected(x, p, top_k, factor, reroute).items():
        close(out[name], value)
    assert out["tokens_per_expert"].dtype == np.int32


def test_tokens_rerouted_to_experts_that_nobody_expects() -> None:
    """Their probabilities are all 0 in float32, and their weights are not."""
    x = np.ones((1, 8, FEATURES), np.float32)
    layer = ml.MoE(E, HIDDEN, 2, 0.5, overflow="reroute", activation="relu")
    compiled = ml.compile(layer, ml.NumpyBackend(), shapes={"input": x.shape})
    params = {name: value.numpy() for name, value in compiled.randomize_params().items()}
    logits = np.array([200.0, 190.0, *np.linspace(-100, -101, E - 2)], np.float32)
    params["router.weight"] = np.repeat(logits[:, None], FEATURES, 1) / FEATURES
    out, slopes = compiled.evaluate(params, {"input": x}, {"output": np.ones_like(x)})
    served = expected(x, params, 2, 0.5, reroute=True)
    close(out["tokens_per_expert"].numpy(), served["tokens_per_expert"])
    close(out["output"].numpy(), served["output"])
    assert all(np.isfinite(slope.numpy()).all() for slope in slopes.values())


@pytest.mark.parametrize("factor", [1.1, 0.7, 2.3])
def test_room_is_what_the_factor_says_in_decimals(factor: float) -> None:
    x = np.ones((1, 100, 3), np.float32)
    compiled = ml.compile(ml.MoE(2, 3, 1, factor), ml.NumpyBackend(), shapes={"input": x.shape})
    params = {name: 0 * value.numpy() for name, value in compiled.randomize_params().items()}
    out = compiled.evaluate(params, {"input": x})
    room = {1.1: 55, 0.7: 35, 2.3: 100}[factor]  # floats make 55.00000000000001 of the first
    assert out["tokens_per_expert"].numpy().tolist() == [room, 0]


def test_groups_are_a_sequence_or_as_many_as_asked() -> None:
    x = random(2, 12, FEATURES)
    found = {}
    for groups in (None, 1, 4, 8):
        out, p = run(ml.MoE(E, HIDDEN, 2, 0.6, activation="relu", groups=groups), input=x)
        wanted = expected(x, p, 2, 0.6, groups=groups)
        close(out["output"], wanted["output"])
        found[groups] = out["output"]
    assert not np.allclose(found[None], found[1]), "the groups share a queue"


def check_all_to_one(backend: ml.Backend, options: Mapping[str, object], spec: P) -> None:
    """Check that two experts serve all tokens without a limit, and half of them with one."""
    x = np.abs(random(4, 16, FEATURES)) + 0.1
    weight = np.zeros((E, FEATURES), np.float32)
    weight[2], weight[0] = 3.0, 2.0
    given = {"input": backend.array(x, sharding=spec)}
    found = {}
    for factor in (None, 1.0):
        layer = ml.MoE(E, HIDDEN, 2, factor, activation="relu", **options)
        compiled = ml.compile(layer, backend, shapes=given)
        params = {**compiled.randomize_params(), "router.weight": weight}
        found[factor] = {name: y.numpy() for name, y in compiled.evaluate(params, given).items()}
    assert found[None]["tokens_per_expert"].tolist() == [64, 0, 64, 0]
    assert found[None]["dropped_fraction"] == 0
    assert np.abs(found[None]["output"]).min(-1).all(), "every token has an output"
    assert found[1.0]["tokens_per_expert"].tolist() == [32, 0, 32, 0]
    assert found[1.0]["dropped_fraction"] == 0.5
    assert not found[1.0]["output"][:, 8:].any(), "the later half found no room"


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_the_dropless_mode_drops_nothing_even_if_all_want_one_expert(devices: int) -> None:
    backend, spec = ml.NumpyBackend(ml.Mesh(data=devices)), P("data")
    check_all_to_one(backend, {"device_mesh": (devices,)}, spec)
    check_all_to_one(backend, {}, spec)


def test_jitter_is_noise_in_training_alone() -> None:
    x = random(3, 8, FEATURES)
    plain, jitters = ml.MoE(E, HIDDEN, 1), ml.MoE(E, HIDDEN, 1, jitter=0.5)
    still = run(plain, input=x)[0]["router_z_loss"]
    moved = [run(jitters, input=x, seed=seed)[0]["router_z_loss"] for seed in (0, 0, 1)]
    assert moved[0] == moved[1] != moved[2]
    assert still not in moved
    assert run(jitters, input=x, inference=True)[0]["router_z_loss"] == still


def test_a_model_goes_on_from_the_output_and_shows_the_rest() -> None:
    model = ml.Model()
    model += ml.Linear(FEATURES, name="first")
    model += ml.MoE(E, HIDDEN, name="moe")
    model += ml.Linear(3, name="last")
    out, _ = run(model, input=random(8, 5))
    assert set(out) == {*STATISTICS, "output"}
    assert out["output"].shape == (8, 3)
    inner = ml.Model(name="block")
    inner += ml.Linear(FEATURES)
    inner += ml.MoE(E, HIDDEN)
    outer = ml.Model()
    outer += inner
    outer += ml.Linear(3)
    out, _ = run(outer, input=random(8, 5))
    assert out["output"].shape == (8, 3)


def test_parameters() -> None:
    made = ml.compile(ml.MoE(E, HIDDEN, activation="swiglu"), ml.NumpyBackend(),
                      shapes={"input": (2, 3, FEATURES)}).randomize_params()  # fmt: skip
    assert {name: value.shape for name, value in made.items()} == {
        "router.weight": (E, FEATURES),
        "experts.in.weight": (E, HIDDEN, FEATURES),
        "experts.in.bias": (E, HIDDEN),
        "experts.gate.weight": (E, HIDDEN, FEATURES),
        "experts.gate.bias": (E, HIDDEN),
        "experts.out.weight": (E, FEATURES, HIDDEN),
        "experts.out.bias": (E, FEATURES),
    }
    assert ml.MoE(E, HIDDEN, bias=False).parameters == (
        "router.weight", "experts.in.weight", "experts.out.weight",
    )  # fmt: skip


def test_an_empty_batch() -> None:
    for shape in ((0, 3, FEATURES), (0, FEATURES), (2, 0, FEATURES)):
        for factor in (1.25, None):
            x = np.zeros(shape, np.float32)
            compiled = ml.compile(ml.MoE(E, HIDDEN, 2, factor), ml.NumpyBackend())
            out, slopes = compiled.evaluate(
                compiled.randomize_params(), {"input": x}, {"output": x}
            )
            assert out["output"].shape == shape
            assert not any(out[name].numpy().any() for name in STATISTICS)
            assert not any(slope.numpy().any() for slope in slopes.values())


# ------------------------------------------------------------------ on several devices


def trained(
    layer: ml.Layer, backend: ml.Backend, spec: P, shape: tuple[int, ...] = (8, 8, FEATURES)
) -> tuple[dict[str, np.ndarray], ml.CompiledModel]:
    """Return outputs and gradients of output, losses and input, and the model."""
    model = ml.Model()
    model |= layer(input="input", **{name: name for name in layer.output_ports})
    x, dy = random(*shape), random(*shape, seed=1)
    compiled = ml.compile(model, backend, shapes={"input": x}, differentiable=["input"])
    slopes = {
        "output": backend.array(dy, sharding=spec),
        "load_balancing_loss": np.float32(0.5),
        "router_z_loss": np.float32(0.25),
    }
    outputs, gradients = compiled.evaluate(
        compiled.randomize_params(), {"input": backend.array(x, sharding=spec)}, slopes
    )
    found = {name: value.numpy() for name, value in outputs.items()}
    return found | {f"d {name}": value.numpy() for name, value in gradients.items()}, compiled


COUNTS = 4 * 8 * 8
"""Bytes of how many tokens each expert gets from each group, which travel in the dropless mode."""
MODES: dict[str, Mapping[str, object]] = {
    "capacity": {},
    "dropless": {"capacity_factor": None},
    "reroute": {"capacity_factor": 0.8, "overflow": "reroute"},
}


@quick(lambda devices, shape: devices == 4 or (len(shape) == 2 and devices == 8))
@quick(lambda devices, shape: devices == 4 or len(shape) == 2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize("shape", [(8, 8, FEATURES), (32, FEATURES), (6, 8, FEATURES)], ids=str)
def test_any_number_of_devices_equals_one(mode: str, devices: int, shape) -> None:
    def layer(**options) -> ml.Layer:
        return ml.MoE(8, HIDDEN, **MODES[mode], **options)

    one, _ = trained(layer(), ml.NumpyBackend(), P(), shape)
    mesh = ml.Mesh(data=devices)
    found, compiled = trained(
        layer(device_mesh=(devices,)), ml.NumpyBackend(mesh), P("data"), shape
    )
    assert set(found) == set(one)
    for name, value in one.items():
        np.testing.assert_allclose(found[name], value, rtol=RTOL, atol=ATOL, err_msg=name)
    rows = compiled.plan.collectives()
    least = COUNTS if mode == "dropless" else 0
    moved = [row.bytes for row in rows if row.kind == "all_to_all" and row.bytes > least]
    if devices > 1 and shape[0] % devices == 0:
        assert len(moved) == 4


@quick(lambda mode, spec: mode == "capacity" or spec == P(("data", "expert")))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("spec", [P(("data", "expert")), P("data"), P("expert"), P()], ids=str)
def test_experts_on_an_axis_of_their_own(mode: str, spec: P) -> None:
    one, _ = trained(ml.MoE(4, HIDDEN, **MODES[mode]), ml.NumpyBackend(), P())
    for options in (
        {"device_mesh": (2, 4), "device_mesh_partition": (False, True)},
        {"sharding": {"experts.in.weight": P("expert"), "experts.out.weight": P("expert")}},
        {"weight_shard_spec": [(1, None, None), (1, None, None)]},
    ):
        layer = ml.MoE(4, HIDDEN, **MODES[mode], **options)
        found, compiled = trained(layer, ml.NumpyBackend(ml.Mesh(data=2, expert=4)), spec)
        for name, value in one.items():
            np.testing.assert_allclose(found[name], value, rtol=RTOL, atol=ATOL, err_msg=name)
        moved = {row.kind for row in compiled.plan.collectives()}
        assert ("all_to_all" in moved) == ("expert" in str(spec)), "tokens travel if they are split"


def test_tensor_parallel_experts() -> None:
    """Experts over one axis, the features inside each over another."""
    one, _ = trained(ml.MoE(4, HIDDEN), ml.NumpyBackend(), P())
    layer = ml.MoE(4, HIDDEN, sharding={
        "experts.in.weight": P("data", "tensor"), "experts.out.weight": P("data", None, "tensor"),
    })  # fmt: skip
    found, compiled = trained(layer, ml.NumpyBackend(ml.Mesh(data=2, tensor=2)), P("data"))
    for name, value in one.items():
        np.testing.assert_allclose(found[name], value, rtol=RTOL, atol=ATOL, err_msg=name)
    kinds = [row.kind for row in compiled.plan.collectives() if row.axes == ("data",)]
    assert kinds.count("all_to_all") == 4


def test_a_mapping_says_which_device_holds_which_expert() -> None:
    where = {0: 1, 1: 0, 2: 1, 3: 0}
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    plain, _ = trained(ml.MoE(E, HIDDEN, device_mesh=(2,)), backend, P("data"))
    layer = ml.MoE(E, HIDDEN, device_mesh=(2,), expert_distribution=where)
    mapped, compiled = trained(layer, backend, P("data"))
    one, _ = trained(ml.MoE(E, HIDDEN, expert_distribution=where), ml.NumpyBackend(), P())
    for name, value in one.items():
        np.testing.assert_allclose(mapped[name], value, rtol=RTOL, atol=ATOL, err_msg=name)
    for name in STATISTICS:  # the router knows the experts by their own numbers
        close(mapped[name], plain[name])
    assert not np.allclose(mapped["output"], plain["output"]), "the stacks are in another order"
    params = {name: value.numpy() for name, value in compiled.randomize_params().items()}
    order = [1, 3, 0, 2]
    x = random(8, 8, FEATURES)
    by_number = {
        name: value[np.argsort(order)] if ".experts." in name else value
        for name, value in params.items()
    }
    model = ml.Model()
    model |= ml.MoE(E, HIDDEN)(input="input", output="output")
    again = ml.compile(model, ml.NumpyBackend()).evaluate(by_number, {"input": x})
    close(again["output"].numpy(), mapped["output"])


@pytest.mark.parametrize(
    "options",
    [
        {"device_mesh": (2,)}, {"expert_distribution": "balanced"},
        {"expert_distribution": {0: 0, 1: 1, 2: 0, 3: 1}},
        {"expert_distribution": "one_per_device", "device_mesh": (2, 4)},
        {"device_mesh": (2, 2), "device_mesh_partition": (True, False)},
    ],
    ids=str,
)  # fmt: skip
def test_experts_lie_on_the_last_dimension_that_may_be_used(options) -> None:
    mesh = {"device_mesh": options.get("device_mesh", (4, 2))}
    where = "data" if mesh["device_mesh"] in ((2,), (2, 2)) else "model"
    layer = ml.MoE(E, HIDDEN, **options)
    compiled = ml.compile(layer, ml.NumpyBackend(**mesh), shapes={"input": (4, 4, FEATURES)})
    made = compiled.randomize_params()
    assert made["router.weight"].sharding.spec == P()
    for name, value in made.items():
        if name.startswith("experts."):
            assert value.sharding.spec == P(where), name


def test_without_a_dimension_to_split_over_nothing_is_split() -> None:
    layer = ml.MoE(E, HIDDEN, device_mesh=(1,), expert_distribution="balanced")
    assert not layer.annotations
    shown = repr(ml.MoE(E, HIDDEN, device_mesh=(2,), expert_distribution="balanced"))
    assert "device_mesh=(2,)" in shown
    assert "expert_distribution='balanced'" in shown


def test_narrow_floats_route_in_float32() -> None:
    backend = ml.NumpyBackend(dtype="bfloat16")
    compiled = ml.compile(ml.MoE(E, HIDDEN), backend, shapes={"input": (2, 8, FEATURES)})
    out = compiled.evaluate(compiled.randomize_params(), {"input": backend.randn(2, 8, FEATURES)})
    assert str(out["output"].dtype) == "bfloat16"
    assert str(out["router_z_loss"].dtype) == "float32"
