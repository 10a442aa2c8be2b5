"""Every layer: gradients against finite differences, and any mesh against one device."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril import P, models
from mithril.testing.layer_cases import CASES, Case, is_first_of_its_layer

from tests.profiles import quick
from tests.tolerances import DIFFERENCES, TOLERANCE

Arrays = dict[str, np.ndarray]
STEP = 1e-6


def random(shape: tuple[int, ...], seed: int, dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def compiled_for(case: Case, backend: ml.Backend, model: ml.Model | None = None):
    return ml.compile(
        case.model() if model is None else model,
        backend,
        shapes=case.arrays("float32"),
        inference=case.inference,
        differentiable=list(case.inputs),
    )


def cotangents(case: Case, outputs: Arrays, dtype: str) -> Arrays:
    names = case.outputs or tuple(outputs)
    return {n: random(outputs[n].shape, 10 + i, dtype) for i, n in enumerate(names)}


def parameters(compiled: ml.CompiledModel, dtype: str) -> Arrays:
    made = compiled.randomize_params(0)
    return {n: random(v.shape, 20 + i, dtype) / 2 for i, (n, v) in enumerate(made.items())}


def test_every_layer_has_a_case() -> None:
    public = {
        value
        for value in vars(models).values()
        if isinstance(value, type) and issubclass(value, ml.Layer) and value is not ml.Layer
    }
    assert len(public) > 30
    assert {type(case.layer) for case in CASES} == public


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_agree_with_finite_differences(case: Case) -> None:
    backend = ml.NumpyBackend(dtype="float64")
    compiled = compiled_for(case, backend)
    inputs = case.arrays("float64")
    params = parameters(compiled, "float64")

    def evaluate(at: Arrays, *more: object):
        given = {n: backend.array(at[n], dtype="float64") for n in params}
        return compiled.evaluate(given, {n: at[n] for n in inputs}, *more, seed=0)

    here = {**inputs, **params}
    outputs = {n: v.numpy() for n, v in evaluate(here).items()}
    slopes = cotangents(case, outputs, "float64")
    _, gradients = evaluate(here, slopes)
    assert set(gradients) == {*params, *case.inputs}
    for name in gradients:
        direction = random(here[name].shape, 30)
        moved = []
        for sign in (1, -1):
            found = evaluate({**here, name: here[name] + sign * STEP * direction})
            moved.append(sum((found[n].numpy() * g).sum() for n, g in slopes.items()))
        expected = (moved[0] - moved[1]) / (2 * STEP)
        rtol, atol = DIFFERENCES
        slope = (gradients[name].numpy() * direction).sum()
        np.testing.assert_allclose(slope, expected, rtol=rtol, atol=atol, err_msg=name)


def on(case: Case, mesh: ml.Mesh | None, weights: P | None = None) -> Arrays:
    return results(case, ml.NumpyBackend(mesh), weights)


def results(case: Case, backend: ml.Backend, weights: P | None = None) -> Arrays:
    """Return outputs and gradients, the batch split over `data`, weights as they are told."""
    model, over_data = case.model(), backend.mesh.size > 1
    if weights is not None:
        model.shard({"*weight": weights})
    compiled = compiled_for(case, backend, model)
    params = {  # a plain array would lie whole, and its own sharding beats what the model says
        name: backend.array(value, sharding=weights if weights and is_weight(name) else P())
        for name, value in parameters(compiled, "float32").items()
    }
    given = {
        name: backend.array(
            value, sharding=P("data") if over_data and name not in case.whole else P()
        )
        for name, value in case.arrays("float32").items()
    }
    shapes = {n: v.shape for n, v in compiled.evaluate(params, given, seed=0).items()}
    wanted = cotangents(case, {n: np.empty(shape) for n, shape in shapes.items()}, "float32")
    outputs, gradients = compiled.evaluate(params, given, wanted, seed=0)
    for name in gradients:
        if weights and is_weight(name):
            assert gradients[name].sharding.spec == weights, "the weight was not split at all"
    found = {**outputs, **{f"gradient of {n}": v for n, v in gradients.items()}}
    return {name: value.numpy() for name, value in found.items()}


def is_weight(name: str) -> bool:
    return name.endswith("weight")


def agree(found: Arrays, expected: Arrays) -> None:
    rtol, atol = TOLERANCE["float32"]
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=atol, err_msg=name)


@quick(is_first_of_its_layer)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_batch_over_devices_equals_one_device(case: Case) -> None:
    expected = on(case, None)
    for count in (2, 3):
        agree(on(case, ml.Mesh(data=count)), expected)


NORMS = (ml.LayerNorm, ml.RMSNorm, ml.BatchNorm, ml.GroupNorm, ml.InstanceNorm)


def has_vectors(layer: ml.Layer) -> bool:
    """Whether a weight of a layer has one dimension only."""
    return isinstance(layer, NORMS) or bool(layer.config.get("qk_norm"))


SPLIT = [
    (case, spec)
    for case in CASES
    for spec in (P("tensor"), P(None, "tensor"))
    if case.layer.parameters and (len(spec) == 1 or not has_vectors(case.layer))
]


@quick(is_first_of_its_layer)
@pytest.mark.parametrize(("case", "spec"), SPLIT, ids=str)
def test_split_weights_equal_one_device(case: Case, spec: P) -> None:
    agree(on(case, ml.Mesh(data=2, tensor=2), spec), on(case, None))
