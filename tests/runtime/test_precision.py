"""Precision of a backend: every option has its effect, and results agree with exact ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P, ops
from mithril.engine.numpy_engine import NumpyEngine
from mithril.ir.rewrite import all_nodes
from mithril.mesh import Mesh
from mithril.plan import Plan
from mithril.types import DType

from tests.tolerances import DIFFERENCES, TOLERANCE

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
    model: Callable[[], ml.Model], mesh: tuple[int, ...] = (), on: str = "numpy", **options: Any
) -> tuple[ml.CompiledModel, Mapping[str, ml.Array], dict[str, ml.Array], dict[str, ml.Array]]:
    """Return a compiled model, its parameters, outputs and gradients of one training step."""
    backend = ml.open_backend(on, device_mesh=mesh or None, **options)
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
        if node.op.contracts(types, results):
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
        if node.op.contracts(types, results):
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
    check_training_step(options, expected, model, mesh, "numpy")


def check_training_step(
    options: dict[str, str],
    expected: tuple[str, str, str],
    model: Callable[[], ml.Model],
    mesh: tuple[int, ...],
    on: str,
) -> None:
    """Compare a step on a backend with one in float64 on a simulated device."""
    _, exact_parameters, exact, exact_gradients = step(model, dtype="float64")
    _, parameters, outputs, gradients = step(model, mesh, on, **options)
    rtol, atol = TOLERANCE[next(dtype for dtype in FLOATS if dtype in expected)]

    def check(found: ml.Array, wanted: ml.Array, name: str) -> None:
        values, exact = found.numpy().astype(np.float64), wanted.numpy()
        np.testing.assert_allclose(values, exact, rtol=rtol, atol=atol, err_msg=name)
        # Gradients may be smaller than atol; as a whole they are right to rtol all the same.
        error = np.linalg.norm(values - exact) / max(np.linalg.norm(exact), 1e-3)
        assert error < rtol, name

    check(outputs["loss"], exact["loss"], "loss")
    for name, wanted in exact_gradients.items():
        check(parameters[name], exact_parameters[name], name)
        check(gradients[name], wanted, name)


# ------------------------------------------------------------------ what follows from the rules


def test_float64_gradients_are_slopes() -> None:
    backend = ml.NumpyBackend(device_mesh=(2,), dtype="float64")
    compiled = ml.compile(transformer(), backend)
    inputs = inputs_of(transformer)
    parameters = compiled.randomize_params(seed=5)
    _, gradients = compiled.evaluate(parameters, inputs, {"loss": backend.ones()})
    rng, h = np.random.default_rng(0), 1e-5
    rtol, atol = DIFFERENCES
    for name, gradient in gradients.items():
        direction = rng.standard_normal(gradient.shape)

        def loss(step: float, name: str = name, direction: np.ndarray = direction) -> float:
            moved = {**parameters, name: parameters[name] + step * backend.array(direction)}
            return float(compiled.evaluate(moved, inputs)["loss"])

        slope = (8 * (loss(h) - loss(-h)) - (loss(2 * h) - loss(-2 * h))) / (12 * h)
        found = float(np.sum(gradient.numpy() * direction))
        np.testing.assert_allclose(found, slope, rtol=rtol, atol=atol, err_msg=name)


def test_parameters_in_16_bits_are_the_rounded_ones() -> None:
    exact = step(images)[1]
    for dtype in ("bfloat16", "float16"):
        rounded = step(images, (2,), param_dtype=dtype)[1]
        for name, x in exact.items():
            expected = x.numpy().astype(DType(dtype).numpy)
            np.testing.assert_array_equal(rounded[name].numpy(), expected)


def test_a_parameter_reaches_the_compute_dtype_unrounded() -> None:
    backend = ml.NumpyBackend(activation_dtype="bfloat16", compute_dtype="float32")
    compiled = ml.compile(ml.Linear(8, bias=False), backend)
    x = backend.ones(2, 16)
    parameters = compiled.randomize_params()
    found = compiled.evaluate(parameters, {"input": x})["output"]
    exact = parameters["weight"].numpy().sum(-1)
    np.testing.assert_array_equal(found.numpy()[0], exact.astype(found.dtype.numpy))


def test_output_gradients_may_be_of_any_float_dtype() -> None:
    backend = ml.NumpyBackend(compute_dtype="bfloat16")
    compiled = ml.compile(ml.Linear(8), backend)
    parameters, x = compiled.randomize_params(), backend.ones(2, 16)
    found = [
        compiled.evaluate(parameters, {"input": x}, {"output": backend.ones(2, 8, dtype=dtype)})[1]
        for dtype in FLOATS
    ]
    for gradients in found:
        np.testing.assert_array_equal(gradients["weight"].numpy(), found[0]["weight"].numpy())
    with pytest.raises(ml.ShapeError, match=r"gradient of output 'output' is int32\[2, 8\]"):
        wrong = backend.ones(2, 8, dtype="int32")
        compiled.evaluate(parameters, {"input": x}, {"output": wrong})


def test_inputs_of_any_float_dtype_enter_as_activations() -> None:
    backend = ml.NumpyBackend(dtype="float64")
    compiled = ml.compile(ml.Linear(8), backend)
    parameters = compiled.randomize_params()
    for dtype in FLOATS:
        outputs = compiled.evaluate(parameters, {"input": backend.ones(2, 16, dtype=dtype)})
        assert outputs["output"].dtype == "float64"


def test_without_options_values_keep_the_dtypes_they_come_with() -> None:
    backend = ml.NumpyBackend()
    compiled = ml.compile(ml.Linear(8), backend)
    parameters = compiled.randomize_params()
    outputs = compiled.evaluate(parameters, {"input": backend.ones(2, 16, dtype="float64")})
    assert (parameters["weight"].dtype, outputs["output"].dtype) == ("float32", "float64")
    assert ml.Precision() == backend.precision
    assert not backend.precision.is_given


def test_a_compiled_model_may_have_a_precision_of_its_own() -> None:
    backend = ml.NumpyBackend(dtype="float64")
    own = ml.compile(ml.Linear(8), backend, precision=ml.Precision(param_dtype="float16"))
    plain = ml.compile(ml.Linear(8), backend)
    x = backend.ones(2, 16)
    dtypes = []
    for compiled in (own, plain):
        parameters = compiled.randomize_params()
        outputs = compiled.evaluate(parameters, {"input": x})
        dtypes.append((str(parameters["weight"].dtype), str(outputs["output"].dtype)))
    assert dtypes == [("float16", "float32"), ("float64", "float64")]


def test_a_typed_precision_is_the_flat_options() -> None:
    flat = ml.NumpyBackend(weight_dtype="bfloat16", compute_dtype=np.float32).precision
    typed = ml.Precision(param_dtype="bfloat16", compute_dtype="float32")
    assert flat == typed == ml.NumpyBackend(precision=typed).precision
    assert ml.NumpyBackend(weight_dtype="float16", param_dtype="float16").precision == ml.Precision(
        param_dtype="float16"
    )
    assert repr(typed) == "Precision(param_dtype='bfloat16', compute_dtype='float32')"


def test_an_engine_must_have_the_dtypes() -> None:
    class Narrow(NumpyEngine):
        """An engine without 8-byte floats."""

        __slots__ = ()

        @property
        def dtypes(self) -> frozenset[DType]:
            return frozenset(DType) - {DType.float64}

    with pytest.raises(ml.BackendError, match="backend 'numpy' has no dtype float64"):
        ml.Backend(Narrow(Mesh()), precision=ml.Precision(compute_dtype="float64"))


def test_what_a_layer_casts_itself_stays() -> None:
    @ml.layer(parameters=("weight", "table"))
    def careful(x: Any) -> Any:
        weight = ml.parameter("weight", (16, 16), ml.Constant(1.0))
        table = ml.parameter("table", (16, 16), ml.Constant(1.0), dtype="float32")
        wide = ops.cast(x, "float32") @ ops.cast(weight, "float32")
        return wide + table

    backend = ml.NumpyBackend(dtype="bfloat16")
    compiled = ml.compile(careful(), backend)
    parameters = compiled.randomize_params()
    outputs = compiled.evaluate(parameters, {"x": backend.ones(16, 16)})
    assert (parameters["weight"].dtype, parameters["table"].dtype) == ("bfloat16", "float32")
    assert outputs["output"].dtype == "float32"
    assert operand_dtypes(compiled.plan)[True] == {"float32"}


def test_annotations_hold_under_a_precision() -> None:
    model = transformer()
    model.shard({"x": P("data"), "logits": P(None, None, "data")})
    backend = ml.NumpyBackend(device_mesh=(2,), activation_dtype="bfloat16")
    compiled = ml.compile(model, backend)
    compiled.evaluate(compiled.randomize_params(), inputs_of(transformer))
    specs = compiled.plan.specs
    assert str(specs["x"].type.dtype) == "bfloat16"
    assert specs["x"].sharding.dims[0] == ("data",)
    assert specs["logits"].sharding.dims[2] == ("data",)
    assert specs["logits"].decided_by == specs["x"].decided_by == "the user"


def test_a_plan_for_shapes_is_that_of_the_evaluation() -> None:
    backend = ml.NumpyBackend(dtype="float64")
    compiled = ml.compile(ml.Linear(8), backend, shapes={"input": (2, 16)}, inference=True)
    compiled.evaluate(compiled.randomize_params(), {"input": backend.ones(2, 16)})
    assert compiled.recompiles == 1


def test_repeated_layers_are_mixed_too() -> None:
    def run(**options: str) -> tuple[ml.CompiledModel, dict[str, ml.Array], dict[str, ml.Array]]:
        backend = ml.NumpyBackend(device_mesh=(2,), **options)
        compiled = ml.compile(ml.Repeat(ml.Linear(16, bias=False), 3), backend)
        x = backend.randn(4, 16, seed=1, tensor_split=(0,))
        gradient = {"output": np.ones((4, 16), np.float32)}
        return compiled, *compiled.evaluate(compiled.randomize_params(), {"input": x}, gradient)

    _, exact, exact_gradients = run()
    compiled, outputs, gradients = run(activation_dtype="bfloat16", compute_dtype="float32")
    nodes = list(all_nodes(compiled.plan.stages[0].program.graph))
    products = [node for node in nodes if node.op.name == "einsum"]
    assert {v.type.dtype for node in products for v in node.inputs} == {"float32"}
    forward = [n for n in nodes if n.op.name == "cast" and n.phase == "forward"]
    rounded = [n for n in forward if n.outputs[0].type.dtype == "bfloat16"]
    assert {node.inputs[0].type.shape[0] for node in rounded} <= {2, 4}, "no weight is rounded"
    rtol, atol = TOLERANCE["bfloat16"]
    for found, wanted in zip(
        (outputs["output"], *gradients.values()),
        (exact["output"], *exact_gradients.values()),
        strict=True,
    ):
        values = found.numpy().astype(np.float32)
        np.testing.assert_allclose(values, wanted.numpy(), rtol=rtol, atol=atol)
    assert dtypes_of(gradients) == {"float32"}


def test_loops_of_a_layer_are_mixed_too() -> None:
    @ml.layer(parameters=("weight",))
    def loop(x: Any) -> Any:
        weights = ml.parameter("weight", (3, 16, 16), ml.Uniform(0.3))
        return ops.repeat(lambda h, w: ops.tanh(h @ w), x, stacked=[weights])

    def run(**options: str) -> tuple[ml.CompiledModel, dict[str, ml.Array], dict[str, ml.Array]]:
        backend = ml.NumpyBackend(device_mesh=(2,), **options)
        compiled = ml.compile(loop(), backend)
        x = backend.randn(4, 16, seed=1, tensor_split=(0,))
        gradient = {"output": np.ones((4, 16), np.float32)}
        return compiled, *compiled.evaluate(compiled.randomize_params(), {"x": x}, gradient)

    _, exact, exact_gradients = run()
    compiled, outputs, gradients = run(activation_dtype="bfloat16", compute_dtype="float32")
    nodes = all_nodes(compiled.plan.stages[0].program.graph)
    products = [node for node in nodes if node.op.name == "einsum"]
    assert products
    assert {v.type.dtype for node in products for v in node.inputs} == {"float32"}
    assert (outputs["output"].dtype, gradients["weight"].dtype) == ("bfloat16", "float32")
    rtol, atol = TOLERANCE["bfloat16"]
    for found, wanted in (
        (outputs["output"], exact["output"]),
        (gradients["weight"], exact_gradients["weight"]),
    ):
        np.testing.assert_allclose(
            found.numpy().astype(np.float32), wanted.numpy(), rtol=rtol, atol=atol
        )
