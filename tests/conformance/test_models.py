"""Layers and random models on every installed backend equal NumPy's on one device."""

from __future__ import annotations

from functools import cache

import mithril as ml
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import P
from mithril.testing.layer_cases import CASES, Case

from tests.conformance.engines import BACKENDS, LOCKSTEP, name_of, opened, options_of
from tests.models.test_every_layer import SPLIT, agree, on, results
from tests.profiles import quick, scaled
from tests.runtime.test_precision import POLICIES, check_training_step, images, transformer
from tests.runtime.test_random_models import compare
from tests.tolerances import TOLERANCE

pytestmark = pytest.mark.parametrize("backend", BACKENDS)
RTOL, ATOL = TOLERANCE["float32"]


DISTINCT = [
    ml.BatchNorm, ml.Conv2d, ml.CrossEntropy, ml.Dropout, ml.Embedding, ml.Linear, ml.MoE,
    ml.MultiHeadAttention, ml.Repeat,
]  # fmt: skip
"""Layers whose plans differ in kind: those of the others are made of the same."""
FIRST = {type(case.layer): case for case in reversed(CASES)}


def in_quick(backend: str, case: Case) -> bool:
    """Return whether a layer is tried on a backend at once; XLA takes a second for each."""
    is_first = case is FIRST[type(case.layer)]
    return is_first and (backend == "mlx" or (backend != LOCKSTEP and type(case.layer) in DISTINCT))


@quick(in_quick)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_batch_over_an_uneven_number_of_devices(backend: str, case: Case) -> None:
    agree(results(case, opened(backend, data=3)), on(case, None))


@quick(lambda backend, spec: backend != "jax" or spec == P("tensor"))
@quick(in_quick)
@pytest.mark.parametrize(("case", "spec"), SPLIT, ids=str)
def test_split_weights(backend: str, case: Case, spec: P) -> None:
    agree(results(case, opened(backend, data=2, tensor=2), spec), on(case, None))


@quick(lambda backend: backend != "jax")
@settings(max_examples=scaled(15))
@given(st.data())
def test_random_models_on_random_meshes(backend: str, data: st.DataObject) -> None:
    is_torch = backend == "torch"  # it shows each collective as it is issued
    compiled, issued = compare(
        data,
        lambda mesh: opened(backend, **mesh.sizes).reorder(mesh.order or mesh.names),
        observed=is_torch,
    )
    assert not is_torch or tuple(issued) == compiled.plan.list_issued()


NARROW = [policy for policy in POLICIES if "float64" not in policy[1]]


@quick(lambda backend, policy: backend != "jax" or policy == NARROW[0])
@quick(lambda backend: backend != LOCKSTEP)
@quick(lambda backend, policy: backend != "jax" or policy in NARROW[::3])
@pytest.mark.parametrize(
    ("policy", "model"),
    [(p, transformer if number % 2 else images) for number, p in enumerate(NARROW)],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_precision(backend: str, policy: tuple, model) -> None:
    options, expected = policy
    given = {**options, **options_of(backend)}
    check_training_step(given, expected, model, (2, 2), name_of(backend))


@cache
def parameters_on_numpy() -> dict[str, np.ndarray]:
    return initial_parameters(ml.NumpyBackend())


def initial_parameters(on: ml.Backend) -> dict[str, np.ndarray]:
    model = transformer()
    model.shard({"*.weight": P(on.mesh.names)} if on.mesh.size > 1 else {})
    ids = ml.TensorSpec((2, 6), "int32")
    params = ml.compile(model, on, shapes={"ids": ids, "target": ids}).randomize_params(7)
    return {name: x.numpy() for name, x in params.items()}


@quick(lambda backend, mesh: backend != LOCKSTEP and mesh == {"a": 3})
@pytest.mark.parametrize("mesh", [{}, {"a": 3}, {"a": 4, "b": 2}], ids=str)
def test_initial_parameters_are_equal_bit_for_bit(backend: str, mesh: dict[str, int]) -> None:
    expected = parameters_on_numpy()
    assert len(expected) > 10
    found = initial_parameters(opened(backend, **mesh))
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, name)


def test_an_empty_batch_has_outputs_and_gradients_of_zero(backend: str) -> None:
    x = np.ones((0, 3, 8), np.float32)
    for mesh in ({}, {"data": 2}):
        device = opened(backend, **mesh)
        compiled = ml.compile(ml.FeedForward(6), device)
        given = {"input": device.array(x, sharding=P(*mesh))}
        compiled_params = compiled.randomize_params()
        outputs, slopes = compiled.evaluate(compiled_params, given, {"output": x})
        assert outputs["output"].shape == (0, 3, 8)
        assert slopes
        for slope in slopes.values():
            assert not slope.numpy().any()


def test_an_empty_batch_of_sequences_has_gradients_of_zero(backend: str) -> None:
    compiled = ml.compile(ml.LSTM(3), opened(backend))
    x, g = np.ones((0, 4, 5), np.float32), np.ones((0, 4, 3), np.float32)
    slopes = compiled.evaluate(compiled.randomize_params(), {"input": x}, {"output": g})[1]
    assert len(slopes) == 4
    assert not any(slope.numpy().any() for slope in slopes.values())


def test_running_statistics_are_those_of_the_whole_batch(backend: str) -> None:
    """Over three steps, the state handed back each time, the batch in uneven parts."""

    def trained(on: ml.Backend) -> dict[str, np.ndarray]:
        compiled = ml.compile(ml.BatchNorm(), on)
        state = {"running_mean": on.zeros(4), "running_variance": on.ones(4)}
        params = None
        for step in range(3):
            host = np.random.default_rng(step).standard_normal((5, 4, 3, 2)).astype(np.float32)
            x = on.array(host, sharding=P(*on.mesh.names[:1]))
            made = compiled.evaluate(params or compiled.randomize_params(), {"input": x, **state})
            state = {"running_mean": made["new_mean"], "running_variance": made["new_variance"]}
        return {name: value.numpy() for name, value in {**state, **made}.items()}

    expected = trained(ml.NumpyBackend())
    assert np.abs(expected["running_mean"]).max() > 0.01
    found = trained(opened(backend, data=3))
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, RTOL, ATOL, err_msg=name)


@quick(lambda backend, spec: backend == LOCKSTEP)
@pytest.mark.parametrize("spec", [P("data"), P(None, "data")], ids=str)
def test_a_loop_at_rest_is_one_device(backend: str, spec: P) -> None:
    """Parameters gathered, and gradients scattered, in flat buffers layer by layer."""
    block = ml.Model()
    block |= ml.Linear(12, name="up")(input="input", output="h")
    block += ml.Gelu()(input="h", output="g")
    block += ml.Linear(6, name="down")(input="g", output="output")
    model = ml.Model()
    model |= ml.Linear(6, name="first")(input="x", output="h")
    model |= ml.Repeat(block, 3, name="blocks")(input="h", output="y")
    model.at_rest({"first.*": P("data"), "blocks.*": spec})
    rng = np.random.default_rng(0)
    x, slope = (rng.standard_normal((8, 6)).astype(np.float32) for _ in range(2))
    made = []
    for device in (opened(backend, data=2), ml.NumpyBackend()):
        compiled = ml.compile(model, device, in_shardings={"x": P(*device.mesh.names)})
        outputs, gradients = compiled.evaluate(compiled.randomize_params(3), {"x": x}, {"y": slope})
        made.append({name: value.numpy() for name, value in {**outputs, **gradients}.items()})
        kinds = {(row.kind, row.times) for row in compiled.plan.collectives()}
        assert not device.mesh.names or {("all_gather", 3), ("reduce_scatter", 3)} <= kinds
    for name, value in made[1].items():
        np.testing.assert_allclose(made[0][name], value, RTOL, ATOL, err_msg=name)
