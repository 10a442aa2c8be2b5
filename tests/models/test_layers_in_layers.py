"""Layers call layers: names, sharing, shardings, initial values, and what cannot be."""

from __future__ import annotations

import inspect
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P
from mithril.errors import GraphError
from mithril.ir import Tensor
from mithril.models.trace import trace
from mithril.testing.layer_cases import CASES, Case, is_first_of_its_layer

from tests.models.evaluate import floats, random
from tests.profiles import quick
from tests.tolerances import TOLERANCE

RTOL, ATOL = TOLERANCE["float32"]
X = random(4, 6, 8)
G = random(4, 6, 8, seed=1)


@ml.layer(parameters=("scale",))
def Block(x: Tensor, *, heads: int = 2) -> Tensor:  # noqa: N802
    batch, _, features = x.shape
    assert batch > 0 and x.ndim == 3
    if features % heads:
        raise ValueError
    x = x + ml.MultiHeadAttention(num_heads=heads, name="attn")(ml.LayerNorm()(x))
    hidden = ml.Linear(4 * features, name="up", sharding={"weight": P("tensor")})(ml.LayerNorm()(x))
    hidden = mnp.tanh(hidden).reshape(*x.shape[:-1], 4 * x.shape[-1])
    scale = ml.parameter("scale", (features,), ml.Constant(0.5))
    return x + ml.Linear(features, at_rest={"weight": P("data")})(hidden) * scale


NAMES = (
    "scale", "layer_norm_0.weight", "layer_norm_0.bias",
    *(f"attn.{part}.{kind}" for part in "qkvo" for kind in ("weight", "bias")),
    "layer_norm_1.weight", "layer_norm_1.bias", "up.weight", "up.bias", "linear_0.weight",
    "linear_0.bias",
)  # fmt: skip


def composed() -> ml.Model:
    """Return the model that the block stands for."""
    model = ml.Model()
    model |= ml.LayerNorm()(input="x", output="n")
    model |= ml.MultiHeadAttention(num_heads=2, name="attn")(input="n", output="a")
    model |= ml.Add()(inputs=["x", "a"], output="h")
    model |= ml.LayerNorm()(input="h", output="m")
    model |= ml.Linear(32, name="up")(input="m", output="u")
    model |= ml.Tanh()(input="u", output="t")
    model |= ml.Linear(8)(input="t", output="d")
    model |= Scale(name="s")(x="d", output="e")
    model |= ml.Add()(inputs=["h", "e"], output="y")
    return model


@ml.layer(parameters=("scale",))
def Scale(x: Tensor) -> Tensor:  # noqa: N802
    return x * ml.parameter("scale", x.shape[-1:], ml.Constant(0.5))


def in_model(layer: ml.Layer) -> ml.Model:
    model = ml.Model()
    model |= layer(x="x", output="y")
    return model


def close(found, expected) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=RTOL, atol=ATOL)


# ------------------------------------------------------------------ names, without shapes


def test_names_are_known_without_shapes() -> None:
    assert Block().parameters == NAMES
    model = in_model(Block(name="b"))
    compiled = ml.compile(model, ml.NumpyBackend())
    assert compiled.parameters == tuple(f"b.{name}" for name in NAMES)
    assert tuple(compiled.randomize_params()) == compiled.parameters
    assert "linear_0.weight at rest P('data')" in model.summary()
    assert "up.weight P('tensor')" in model.summary()
    count = sum(p.size for p in traced_parameters(model).values())
    assert f"{count} numbers to learn" in model.summary({"x": X.shape})


def traced_parameters(model: ml.Model) -> dict[str, Tensor]:
    traced = trace(model, {"x": floats(*X.shape)})
    return {n: traced.graph.input(n).type for n in traced.parameter_names}


def test_the_result_is_that_of_the_layers_put_together() -> None:
    inner = {"s.scale": "scale"}
    whole = ml.compile(composed(), ml.NumpyBackend())
    params = whole.randomize_params(seed=1)
    expected, slopes = whole.evaluate(params, {"x": X}, {"y": G})
    for mesh in (ml.Mesh(), ml.Mesh(data=2, tensor=2)):
        backend = ml.NumpyBackend(mesh)
        compiled = ml.compile(in_model(Block(name="b")), backend)
        given = {f"b.{inner.get(n, n)}": p.numpy() for n, p in params.items()}
        x = backend.array(X, sharding=P("data") if mesh.size > 1 else P())
        found, gradients = compiled.evaluate(given, {"x": x}, {"y": G})
        close(found["y"].numpy(), expected["y"].numpy())
        for name, slope in slopes.items():
            close(gradients[f"b.{inner.get(name, name)}"].numpy(), slope.numpy())


def test_initial_values_follow_the_names() -> None:
    compiled = ml.compile(in_model(Block(name="b")), ml.NumpyBackend(), shapes={"x": X.shape})
    params = compiled.randomize_params(seed=3)
    np.testing.assert_array_equal(params["b.scale"].numpy(), np.full(8, 0.5))
    np.testing.assert_array_equal(params["b.layer_norm_0.weight"].numpy(), np.ones(8))
    bound = 1 / np.sqrt(32)  # of a Linear with 32 features
    weight = params["b.linear_0.weight"].numpy()
    assert weight.shape == (8, 32) and 0.8 * bound < abs(weight).max() <= bound


def test_shardings_reach_parameters_and_values_of_parts() -> None:
    model = in_model(Block(name="b"))
    model.shard({"b.linear_0.weight": P(None, "tensor"), "b.up": P("data", None, "tensor")})
    model.at_rest({"b.attn.*.weight": P("data")})
    backend = ml.NumpyBackend(ml.Mesh(data=2, tensor=2))
    shapes = {"x": ml.TensorSpec(X.shape, sharding=P("data"))}
    compiled = ml.compile(model, backend, shapes=shapes)
    params = compiled.randomize_params()
    assert params["b.up.weight"].sharding.spec == P("tensor", None)
    assert params["b.attn.q.weight"].sharding.spec == P("data", None)
    assert "tensor" in compiled.explain("b.up")
    reductions = [row for row in compiled.plan.collectives() if row.axes == ("tensor",)]
    assert any("b.linear_0" in row.cause.value for row in reductions)
    with pytest.raises(ml.ShardingError, match=r"linear_1"):
        wrong = in_model(Block(name="b"))
        wrong.shard({"b.linear_1.weight": P()})
        ml.compile(wrong, backend)


def test_a_repeat_stacks_the_parameters_of_parts() -> None:
    model = ml.Model()
    model |= ml.Repeat(Block(), 3, name="r")(input="x", output="y")
    results = []
    for mesh in (ml.Mesh(), ml.Mesh(data=2, tensor=2)):
        compiled = ml.compile(model, ml.NumpyBackend(mesh))
        assert compiled.parameters == tuple(f"r.{name}" for name in NAMES)
        params = compiled.randomize_params(seed=2)
        found, gradients = compiled.evaluate(params, {"x": X}, {"y": G})
        assert params["r.up.weight"].shape == (3, 32, 8)
        results.append((found["y"].numpy(), gradients["r.up.weight"].numpy()))
    assert params["r.up.weight"].sharding.spec == P(None, "tensor", None)
    close(results[1][0], results[0][0])
    close(results[1][1], results[0][1])


# ------------------------------------------------------------------ how they are called


@ml.layer
def Chain(x: Tensor, *, depth: int = 3) -> Tensor:  # noqa: N802
    shared = ml.Linear(8, name="shared")
    for i in range(depth):
        x = shared(ml.Linear(8)(x)) + ml.Linear(8, name=f"side_{i}")(input=x)
    return x


def test_loops_and_sharing() -> None:
    names = [f"{n}.{k}" for n in _chain(3) for k in ("weight", "bias")]
    assert Chain().parameters == tuple(names)
    assert Chain(depth=1).parameters == ("linear_0.weight", "linear_0.bias", "shared.weight",
                                         "shared.bias", "side_0.weight", "side_0.bias")  # fmt: skip
    compiled = ml.compile(Chain(depth=2), ml.NumpyBackend())
    params = compiled.randomize_params()
    x = found = X
    result, slopes = compiled.evaluate(params, {"x": X}, {"output": G})
    value = {n: p.numpy() for n, p in params.items()}

    def apply(name: str, x: np.ndarray) -> np.ndarray:
        return x @ value[f"{name}.weight"].T + value[f"{name}.bias"]

    for i in range(2):
        x = apply("shared", apply(f"linear_{i}", x)) + apply(f"side_{i}", x)
    close(result["output"].numpy(), x)
    assert slopes["shared.weight"].shape == (8, 8)
    assert found.shape == x.shape


def _chain(depth: int) -> list[str]:
    found = ["linear_0", "shared", "side_0"]
    for i in range(1, depth):
        found += [f"linear_{i}", f"side_{i}"]
    return found


def test_a_layer_used_twice_shares_its_parts() -> None:
    block = Chain(depth=1, name="c")
    model = ml.Model()
    model |= block(x="x", output="h")
    model |= block(x="h", output="y")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"x": X.shape})
    assert compiled.parameters == tuple(f"c.{n}" for n in block.parameters)


def test_layers_nest_in_sections_and_models() -> None:
    inner = ml.Model(name="net")
    inner |= ml.Linear(8)(input="a", output="h")
    inner |= ml.Relu()(input="h", output="b")

    @ml.layer
    def Outer(x: Tensor) -> dict[str, Tensor]:  # noqa: N802
        with ml.section("left"):
            x = Chain(depth=1)(x)
        return inner(a=ml.Linear(8)(x)) + ml.Add()(x, x) + ml.Add()(inputs=[x, x])

    expected = [f"left.chain_0.{n}" for n in Chain(depth=1).parameters]
    for name in ("linear_0", "net.linear_0"):
        expected += [f"{name}.weight", f"{name}.bias"]
    assert Outer().parameters == tuple(expected)
    compiled = ml.compile(in_model(Outer(name="o")), ml.NumpyBackend(), shapes={"x": X.shape})
    assert compiled.parameters == tuple(f"o.{n}" for n in expected)
    assert "o.left.chain_0.linear_0" in compiled.explain("o.left.chain_0.linear_0")


def test_options_may_be_layers_and_results_several() -> None:
    @ml.layer
    def Residual(x: Tensor, *, block: ml.Layer) -> Tensor:  # noqa: N802
        return x + block(x)

    @ml.layer(outputs=("low", "high"))
    def Both(x: Tensor) -> dict[str, Tensor]:  # noqa: N802
        return {"low": x - 1.0, "high": ml.Linear(8)(x)}

    @ml.layer
    def Uses(x: Tensor) -> Tensor:  # noqa: N802
        found = Both()(x)
        return found["low"] * found["high"]

    assert Residual(block=ml.Linear(8)).parameters == ("linear_0.weight", "linear_0.bias")
    assert Uses().parameters == ("both_0.linear_0.weight", "both_0.linear_0.bias")
    compiled = ml.compile(Uses(), ml.NumpyBackend())
    params = compiled.randomize_params()
    weight, bias = (params[name] for name in compiled.parameters)
    found = compiled.evaluate(params, {"x": X})["output"].numpy()
    close(found, (X - 1) * (X @ weight.numpy().T + bias.numpy()))


def test_random_layers_inside() -> None:
    @ml.layer
    def Noisy(x: Tensor) -> Tensor:  # noqa: N802
        return ml.Dropout(0.5)(ml.Dropout(0.5)(x))

    compiled = ml.compile(Noisy(), ml.NumpyBackend())
    first, again, other = (
        compiled.evaluate({}, {"x": X}, seed=s)["output"].numpy() for s in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    kept = (first != 0).mean()
    assert 0.1 < kept < 0.45  # two masks, not the same one twice
    still = ml.compile(Noisy(), ml.NumpyBackend(), inference=True)
    np.testing.assert_array_equal(still.evaluate({}, {"x": X})["output"].numpy(), X)


def test_a_checkpoint_and_a_loop_around_parts() -> None:
    from mithril import ops

    @ml.layer
    def Deep(x: Tensor) -> Tensor:  # noqa: N802
        linear = ml.Linear(8)
        x = ml.checkpoint(linear)(x)
        return ops.repeat(lambda h: mnp.tanh(linear(h)), x, count=3)

    compiled = ml.compile(Deep(), ml.NumpyBackend())
    params = compiled.randomize_params()
    result, slopes = compiled.evaluate(params, {"x": X}, {"output": G})
    weight, bias = (p.numpy() for p in params.values())
    x = X @ weight.T + bias
    for _ in range(3):
        x = np.tanh(x @ weight.T + bias)
    close(result["output"].numpy(), x)
    assert slopes["linear_0.weight"].shape == (8, 8)


# ------------------------------------------------------------------ functions


def test_layers_without_parameters_are_functions() -> None:
    @ml.layer
    def Soft(x: Tensor) -> Tensor:  # noqa: N802
        return ml.Softmax()(x) * ml.Add()(x, np.ones(8))

    def plain(x: Tensor) -> Tensor:
        return Soft()(x)

    backend = ml.NumpyBackend(ml.Mesh(data=2))
    x = backend.array(X, sharding=P("data"))
    expected = np.exp(X) / np.exp(X).sum(-1, keepdims=True) * (X + 1)
    close(ml.jit(plain)(x).numpy(), expected)
    close(ml.compile(Soft(), backend).evaluate({}, {"x": x})["output"].numpy(), expected)
    slope = ml.grad(lambda x: plain(x).sum())(x)
    assert slope.shape == X.shape and slope.sharding.spec == P("data", None, None)


def test_what_a_function_cannot_call() -> None:
    backend = ml.NumpyBackend()
    with pytest.raises(
        GraphError,
        match=r"Linear\(dimension=8\) is called in a function .* has parameters 'weight'",
    ):
        ml.jit(lambda x: 2.0 * ml.Linear(8)(x))(backend.array(X))
    with pytest.raises(
        GraphError, match=r"layer 'lambda.dropout' needs a seed, and is called in a function"
    ):
        ml.jit(lambda x: 2.0 * ml.Dropout(0.5)(x))(backend.array(X))


# ------------------------------------------------------------------ every layer


@quick(is_first_of_its_layer)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_layer_can_be_called(case: Case) -> None:
    """A layer in a body gives what it gives in a model, from the same parameters."""
    inner, arrays = case.layer, case.arrays("float32")

    def Body(*tensors: Tensor) -> Any:  # noqa: N802
        if inner.variadic_input:
            return inner(*tensors)
        return inner(**dict(zip(arrays, tensors, strict=True)))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    Body.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in arrays])
    body = ml.layer(outputs=inner.output_ports)(Body)
    model, backend = ml.Model(), ml.NumpyBackend(ml.Mesh(data=2))
    model |= body(name="b")(**{name: name for name in (*arrays, *inner.output_ports)})
    alone = ml.compile(case.model(), backend, inference=True)
    params = alone.randomize_params(seed=1)
    expected = alone.evaluate(params, arrays)
    compiled = ml.compile(model, backend, inference=True)
    (member,) = {name.split(".")[0] for name in alone.parameters} or {""}
    inside = {f"b.{member}.{n.partition('.')[2]}": p for n, p in params.items()}
    if not case.layer.given_name:
        assert set(compiled.parameters) == set(inside)
    found = compiled.evaluate(inside, arrays)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].numpy(), value.numpy(), rtol=RTOL, atol=ATOL)
