"""Precision of a backend: every option has its effect, and results agree with exact ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril.ir import Plan
from mithril.transform.precision import contracts

from tests.tolerances import TOLERANCE

B, S, V = 4, 6, 32
FLOATS = ("bfloat16", "float16", "float32", "float64")


def transformer() -> ml.Model:
    model = ml.Model()
    model += ml.Embedding(V, 16)(input="ids", output="x")
    model += ml.MultiHeadAttention(num_heads=2, head_dim=8, causal=True)(input="x", output="a")
    model += ml.Add()(inputs=["x", "a"], output="r")
    model += ml.LayerNorm()(input="r", output="n")
    model += ml.FeedForward(hidden_dim=32)(input="n", output="f")
    model += ml.Linear(V)(input="f", output="logits")
    model += ml.CrossEntropy()(input="logits", target="target", output="loss")
    return model


def images() -> ml.Model:
    model = ml.Model()
    model += ml.Conv2d(4, 3)(input="image", output="c")
    model += ml.Relu()
    model += ml.Flatten()
    model += ml.Linear(V)(output="logits")
    model += ml.CrossEntropy()(input="logits", target="target", output="loss")
    return model


def inputs_of(model: Callable[[], ml.Model]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    if model is images:
        pixels = rng.standard_normal((B, 1, 6, 6)).astype(np.float32)
        return {"image": pixels, "target": rng.integers(0, V, B).astype(np.int32)}
    ids, target = rng.integers(0, V, (2, B, S)).astype(np.int32)
    return {"ids": ids, "target": target}


def step(
    model: Callable[[], ml.Model], mesh: tuple[int, ...] = (), **options: Any
) -> tuple[ml.CompiledModel, Mapping[str, ml.Array], dict[str, ml.Array], dict[str, ml.Array]]:
    """Return a compiled model, its parameters, outputs and gradients of one training step."""
    backend = ml.NumpyBackend(device_mesh=mesh or None, **options)
    compiled = ml.compile(model(), backend)
    split = {"tensor_split": (0,)} if mesh else {}
    inputs = {name: backend.array(x, **split) for name, x in inputs_of(model).items()}
    parameters = compiled.randomize_params(seed=3)
    outputs, gradients = compiled.evaluate(parameters, inputs, {"loss": np.float32(1)})
    return compiled, parameters, outputs, gradients


def dtypes_of(arrays: Mapping[str, ml.Array]) -> set[str]:
    return {str(x.dtype) for x in arrays.values()}


def operand_dtypes(plan: Plan) -> dict[bool, set[str]]:
    """Return the float dtypes that linear algebra, and elementwise ops, of the plan read."""
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for node in plan.stages[0].program.graph.nodes:
        types, results = [v.type for v in node.inputs], [v.type for v in node.outputs]
        floats = {str(t.dtype) for t in types if t.dtype.is_float}
        if contracts(node.op, types, results):
            found[True] |= floats
        elif node.op.name in ("relu", "gelu", "add") and node.phase == "forward":
            found[False] |= floats
    return found


POLICIES: list[tuple[dict[str, str], tuple[str, str, str]]] = [
    ({"dtype": "float64"}, ("float64", "float64", "float64")),
    ({"dtype": "bfloat16"}, ("bfloat16", "bfloat16", "bfloat16")),
    ({"compute_dtype": "bfloat16"}, ("float32", "bfloat16", "bfloat16")),
    ({"compute_dtype": "float16", "param_dtype": "float32"}, ("float32", "float16", "float16")),
    ({"param_dtype": "bfloat16"}, ("bfloat16", "float32", "float32")),
    ({"weight_dtype": "float16"}, ("float16", "float32", "float32")),
    ({"activation_dtype": "bfloat16"}, ("float32", "float32", "bfloat16")),
    (
        {"weight_dtype": "bfloat16", "activation_dtype": "float32", "compute_dtype": "float32"},
        ("bfloat16", "float32", "float32"),
    ),
    (
        {"dtype": "float64", "compute_dtype": "float32", "activation_dtype": "bfloat16"},
        ("float64", "float32", "bfloat16"),
    ),
    (
        {"dtype": "bfloat16", "compute_dtype": "bfloat16", "activation_dtype": "float32"},
        ("bfloat16", "bfloat16", "float32"),
    ),
]


@pytest.mark.parametrize("model", [transformer, images], ids=lambda m: m.__name__)
@pytest.mark.parametrize(("options", "expected"), POLICIES, ids=str)
def test_every_option_has_its_effect(
    options: dict[str, str], expected: tuple[str, str, str], model: Callable[[], ml.Model]
) -> None:
    kept, computed, passed = expected
    compiled, parameters, outputs, gradients = step(model, **options)
    assert dtypes_of(parameters) == dtypes_of(gradients) == {kept}
    read = operand_dtypes(compiled.plan)
    assert read[True] >= {computed}
    assert read[False] == {passed}
    forward = [n for n in compiled.plan.stages[0].program.graph.nodes if n.phase == "forward"]
    for node in forward:
        types, results = [v.type for v in node.inputs], [v.type for v in node.outputs]
        if contracts(node.op, types, results):
            assert {t.dtype for t in types if t.dtype.is_float} == {computed}
    assert outputs["loss"].dtype == ("float64" if passed == "float64" else "float32")


@pytest.mark.parametrize("mesh", [(), (2,), (2, 2)], ids=str)
@pytest.mark.parametrize("model", [transformer, images], ids=lambda m: m.__name__)
@pytest.mark.parametrize(("options", "expected"), POLICIES, ids=str)
def test_a_training_step_agrees_with_the_exact_one(
    options: dict[str, str],
    expected: tuple[str, str, str],
    model: Callable[[], ml.Model],
    mesh: tuple[int, ...],
) -> None:
    _, exact_parameters, exact, exact_gradients = step(model, dtype="float64")
    _, parameters, outputs, gradients = step(model, mesh, **options)
    rtol, atol = TOLERANCE[next(dtype for dtype in FLOATS if dtype in expected)]

    def check(found: ml.Array, wanted: ml.Array, name: str) -> None:
        values, exact = found.numpy().astype(np.float64), wanted.numpy()
        np.testing.assert_allclose(values, exact, rtol=rtol, atol=atol, err_msg=name)
        # Gradients may be smaller than atol; as a whole they are right to rtol all the same.
        error = np.linalg.norm(values - exact) / max(np.linalg.norm(exact), 1e-3)
        print(name, error/rtol)
        assert error < rtol, name

    check(outputs["loss"], exact["loss"], "loss")
    for name, wanted in exact_gradients.items():
        check(parameters[name], exact_parameters[name], name)
        check(gradients[name], wanted, name)
