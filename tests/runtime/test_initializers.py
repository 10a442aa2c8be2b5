"""How parameters start: distributions, fans, rules by name, the same bits wherever they lie."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.models.initializers import fans
from mithril.runtime.inverse_normal import invert_normal
from mithril.runtime.sampling import Key

MESHES = [ml.Mesh(tensor=4), ml.Mesh(data=2, tensor=2), ml.Mesh(tensor=3)]


@dataclass(frozen=True)
class Signs(ml.Initializer):
    """One of the user's own: plus or minus a size."""

    size: float

    def draw(self, key, shape, box):
        return self.size * np.sign(key.normal(shape, box))


def ramp(key, shape, box):
    """Draw nothing: number the elements."""
    return np.arange(math.prod(shape)).reshape(shape)[box]


KINDS: dict[str, object] = {
    "normal": ml.Normal(0.02),
    "normal around 1": ml.Normal(0.1, mean=1.0),
    "truncated normal": ml.TruncatedNormal(0.5),
    "uniform": ml.Uniform(0.3),
    "xavier": ml.Xavier(),
    "xavier normal": ml.Xavier("normal", gain=2.0),
    "kaiming": ml.Kaiming(),
    "kaiming normal": ml.Kaiming("normal", mode="fan_out", nonlinearity="tanh"),
    "orthogonal": ml.Orthogonal(),
    "zeros": ml.Zeros(),
    "ones": ml.Ones(),
    "constant": ml.Constant(0.25),
    "a class of one's own": Signs(0.5),
    "a function": ramp,
}


def values(
    start: object, backend: ml.Backend | None = None, spec: P | None = None
) -> dict[str, np.ndarray]:
    """Return the first parameters of a model that has a matrix, a kernel and a stack of matrices."""
    model = ml.Model()
    model |= ml.Linear(12, name="fc")(input="x", output="h")
    model |= ml.Conv2d(6, 3, name="conv")(input="picture", output="seen")
    model |= ml.Repeat(ml.Linear(12, name="fc"), 3, name="loop")(input="h", output="y")
    model.initialize({"*weight": start})
    if spec is not None:
        model.shard({"*weight": spec})
    shapes = {"x": (4, 9), "picture": (2, 4, 5, 5)}
    compiled = ml.compile(model, backend or ml.NumpyBackend(), shapes=shapes)
    params = compiled.randomize_params(seed=11)
    if spec is not None:
        assert any(any(x.sharding.dims) for x in params.values()), "nothing was split"
    return {name: x.numpy() for name, x in params.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_the_bits_are_those_of_one_device_on_every_mesh(kind: str) -> None:
    expected = values(KINDS[kind])
    for mesh in MESHES:
        for spec in (P("tensor"), P(None, "tensor")):
            found = values(KINDS[kind], ml.NumpyBackend(mesh), spec)
            for name, value in expected.items():
                assert value.tobytes() == found[name].tobytes(), (name, mesh, spec)


def of(layer: ml.Layer, shape: tuple[int, ...], dtype: str = "float32") -> dict[str, np.ndarray]:
    """Return the first parameters of a layer."""
    shapes = {"input": ml.TensorSpec(shape, dtype)}
    params = ml.compile(layer, ml.NumpyBackend(), shapes=shapes).randomize_params(5)
    return {name: x.numpy() for name, x in params.items()}


# ------------------------------------------------------------------ distributions


def test_normal_and_truncated_normal() -> None:
    drawn = of(ml.Linear(400, initializer=ml.Normal(0.02, mean=0.1)), (1, 300))["weight"]
    assert abs(drawn.mean() - 0.1) < 3e-4
    assert abs(drawn.std() - 0.02) < 2e-4
    drawn = of(ml.Linear(400, initializer=ml.TruncatedNormal(0.5, mean=1.0)), (1, 300))["weight"]
    assert drawn.min() >= 0.0
    assert drawn.max() <= 2.0
    # of a standard normal cut at 2: 1 - 2 * 2 * density(2) / (1 - 2 * tail(2)), Johnson et al., 1994
    normal = statistics.NormalDist()
    variance = 1 - 4 * normal.pdf(2) / (normal.cdf(2) - normal.cdf(-2))
    assert abs(drawn.mean() - 1) < 3e-3
    assert abs(drawn.std() - 0.5 * math.sqrt(variance)) < 3e-3
    lopsided = of(ml.Linear(40, initializer=ml.TruncatedNormal(1.0, low=1.0, high=1.5)), (1, 30))
    assert lopsided["weight"].min() >= 1.0
    assert lopsided["weight"].max() <= 1.5


def test_the_inverse_of_the_normal_distribution() -> None:
    chances = np.concatenate([np.linspace(0, 1, 2002)[1:-1], [1e-300, 1e-20, 1e-9, 1 - 1e-9]])
    normal = statistics.NormalDist()
    expected = np.array([normal.inv_cdf(chance) for chance in chances])
    np.testing.assert_allclose(invert_normal(chances), expected, rtol=1e-14, atol=1e-15)
    far = Key(0, "w").normal_between((2000,), (slice(0, 2000),), 8.0, 50.0)
    assert np.isfinite(far).all()
    assert far.min() >= 8.0


@pytest.mark.parametrize(
    ("start", "variance"),
    [
        (ml.Xavier(), 2 / (300 + 200)),
        (ml.Xavier("normal", gain=3.0), 9 * 2 / (300 + 200)),
        (ml.Kaiming(), 2 / 300),
        (ml.Kaiming("normal", mode="fan_out"), 2 / 200),
        (ml.Kaiming(nonlinearity="tanh"), (5 / 3) ** 2 / 300),
        (ml.Kaiming(nonlinearity="linear"), 1 / 300),
        (ml.Kaiming("normal", nonlinearity="leaky_relu", slope=0.5), 2 / 1.25 / 300),
    ],
    ids=str,
)
def test_variances_of_a_linear_layer(start: ml.Initializer, variance: float) -> None:
    drawn = of(ml.Linear(200, initializer=start), (1, 300))["weight"]
    assert abs(drawn.var() / variance - 1) < 0.02
    if start.distribution == "uniform":
        assert abs(drawn).max() <= math.sqrt(3 * variance) * (1 + 1e-6)
        assert abs(drawn).max() > math.sqrt(3 * variance) * 0.999


def test_fans_of_kernels_stacks_and_experts() -> None:
    bound = abs(
        of(ml.Conv2d(8, 5, initializer=ml.Kaiming(nonlinearity="linear")), (1, 4, 9, 9))["weight"]
    )
    assert 0.98 < bound.max() / math.sqrt(3 / (4 * 25)) <= 1
    bound = abs(
        of(ml.Repeat(ml.Linear(50), 7, initializer={"weight": ml.Xavier()}), (1, 50))["weight"]
    )
    assert 0.99 < bound.max() / math.sqrt(6 / 100) <= 1
    moe = of(ml.MoE(4, 64, initializer={"experts.*.weight": ml.Xavier()}), (8, 32))
    assert moe["experts.in.weight"].shape == (4, 64, 32)
    assert 0.99 < abs(moe["experts.in.weight"]).max() / math.sqrt(6 / 96) <= 1
    assert fans(ml.Xavier(), "w", (8, 3, 5, 7)) == (3 * 35, 8 * 35)


def test_orthogonal_rows_or_columns() -> None:
    for out, features in ((6, 10), (10, 6), (7, 7)):
        w = of(ml.Linear(out, initializer=ml.Orthogonal(gain=2.0)), (1, features))["weight"]
        product = w @ w.T if out <= features else w.T @ w
        np.testing.assert_allclose(product, 4 * np.eye(len(product)), atol=1e-5)
    kernel = of(ml.Conv2d(6, 3, initializer=ml.Orthogonal()), (1, 4, 5, 5))["weight"]
    rows = kernel.reshape(6, -1)
    np.testing.assert_allclose(rows @ rows.T, np.eye(6), atol=1e-5)
    stack = values(ml.Orthogonal())["loop.weight"]
    for w in stack:
        np.testing.assert_allclose(w @ w.T, np.eye(12), atol=1e-5)
    assert not np.array_equal(stack[0], stack[1])


# ------------------------------------------------------------------ who says so


def test_a_lone_initializer_is_for_the_weights() -> None:
    drawn = of(ml.Linear(3, initializer=ml.Ones()), (1, 4))
    assert (drawn["weight"] == 1).all()
    assert not (drawn["bias"] == 1).any()
    drawn = of(ml.FeedForward(hidden_dim=8, initializer=ml.Ones()), (1, 4))
    assert (drawn["up.weight"] == 1).all() and (drawn["down.weight"] == 1).all()
    assert not (drawn["up.bias"] == 1).any()
    drawn = of(Shift(initializer=ml.Constant(3.0)), (1, 4))
    assert (drawn["offset"] == 3).all()


@ml.layer(parameters=("offset",))
def Shift(input):  # noqa: N802
    """Add a learned number to each feature."""
    return input + ml.parameter("offset", input.shape[-1:], ramp)


def test_a_layer_may_start_its_parameter_by_a_function() -> None:
    np.testing.assert_array_equal(of(Shift(), (1, 4))["offset"], np.arange(4))


@pytest.mark.parametrize("row", [0, 4, -1])
@pytest.mark.parametrize("spec", [P("tensor"), P(None, "tensor"), P(("data", "tensor")), P()])
def test_the_row_of_padding_starts_at_zeros(row: int, spec: P) -> None:
    mesh = ml.Mesh(data=2, tensor=2)
    ids = ml.TensorSpec((2, 3), "int32")
    plain, padded = ml.Embedding(7, 4, name="e"), ml.Embedding(7, 4, padding_idx=row, name="e")
    starts = []
    for table, backend in ((plain, ml.NumpyBackend()), (padded, ml.NumpyBackend(mesh))):
        model = ml.Model()
        model |= table(input="ids", output="y")
        if backend.mesh.size > 1:
            model.shard({"e.weight": spec})
        compiled = ml.compile(model, backend, shapes={"ids": ids})
        starts.append(compiled.randomize_params(3)["e.weight"].numpy())
    starts[0][row] = 0
    np.testing.assert_array_equal(*starts)


def test_the_row_of_padding_of_repeated_tables_and_of_a_start_of_ones_own() -> None:
    block = ml.Model()
    block |= ml.Embedding(5, 4, padding_idx=1, name="e")(input="ids", output="y")
    model = ml.Model()
    model |= ml.Repeat(block, 3, carry={}, stacked=("ids",), name="r")(ids="ids", y="y")
    model.shard({"r.e.weight": P("data", "tensor")})
    compiled = ml.compile(model, ml.NumpyBackend(ml.Mesh(data=2, tensor=2)))
    compiled.plan_for({"ids": ml.TensorSpec((3, 2), "int32")})
    weight = compiled.randomize_params(0)["r.e.weight"].numpy()
    assert not weight[:, 1].any()
    assert np.abs(weight[:, [0, 2, 3, 4]]).min() > 0
    said = ml.compile(
        ml.Embedding(5, 4, padding_idx=1, initializer=ml.Ones()), ml.NumpyBackend(),
        shapes={"input": ml.TensorSpec((2,), "int32")},
    )  # fmt: skip
    np.testing.assert_array_equal(said.randomize_params()["weight"].numpy(), np.ones((5, 4)))


def test_patterns_of_a_layer_and_its_repr() -> None:
    layer = ml.FeedForward(hidden_dim=8, initializer={"*.bias": ml.Zeros(), "up.weight": ml.Ones()})
    drawn = of(layer, (1, 4))
    assert (drawn["up.bias"] == 0).all() and (drawn["down.bias"] == 0).all()
    assert (drawn["up.weight"] == 1).all()
    assert "initializer={'up.bias': Zeros(), 'down.bias': Zeros(), 'up.weight': Ones()}" in repr(
        layer
    )


def test_the_model_has_the_last_word_and_the_outer_one_before_the_inner() -> None:
    inner, model = ml.Model(name="block"), ml.Model()
    inner += ml.Linear(4, name="a", initializer=ml.Constant(1.0))
    inner += ml.Linear(4, name="b", initializer=ml.Constant(1.0))
    inner += ml.Linear(4, name="c", initializer=ml.Constant(1.0))
    inner.initialize({"[bc].weight": ml.Constant(2.0)})
    model += inner
    model.initialize({"*.c.*": ml.Constant(3.0)})
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": (1, 4)})
    params = compiled.randomize_params()
    assert [float(params[f"block.{n}.weight"].numpy()[0, 0]) for n in "abc"] == [1, 2, 3]
    assert (params["block.c.bias"].numpy() == 3).all()
    assert str(model).splitlines()[-1] == "initialize *.c.*: Constant(value=3.0)"


def test_rules_of_a_repeated_block() -> None:
    block = ml.Model()
    block += ml.Linear(4, name="fc")
    block.initialize({"fc.weight": ml.Ones()})
    model = ml.Model()
    model |= ml.Repeat(block, 2, name="loop")(input="x", output="y")
    params = ml.compile(model, ml.NumpyBackend(), shapes={"x": (1, 4)}).randomize_params()
    assert (params["loop.fc.weight"].numpy() == 1).all()


def test_models_as_they_were_start_as_they_did() -> None:
    drawn = of(ml.Linear(3), (1, 4))["weight"]
    expected = Key(5, "weight").uniform((3, 4), (slice(0, 3), slice(0, 4)), -0.5, 0.5)
    np.testing.assert_array_equal(drawn, expected.astype(np.float32))


# ------------------------------------------------------------------ what is refused


def initialize(rules: object) -> Callable[[], object]:
    def make() -> object:
        model = ml.Model()
        model |= ml.Linear(4, name="fc")(input="x", output="y")
        model.initialize(rules)
        compiled = ml.compile(model, ml.NumpyBackend(), shapes={"x": (2, 3)})
        return compiled.randomize_params()

    return make


def flat(key, shape, box):
    return np.zeros(3)


REFUSED: dict[str, tuple[Callable[[], object], type[ml.MithrilError], str]] = {
    "a pattern that matches nothing": (
        initialize({"*.wieght": ml.Ones()}), ml.GraphError,
        r"pattern '\*.wieght' of model.initialize \(test_initializers.py:\d+\) matches no "
        r"parameter; near names: 'fc.weight'",
    ),
    "no mapping": (
        initialize(ml.Ones()), ml.OptionError,
        r"model.initialize got Ones\(\) \(.*\); give a mapping from name patterns",
    ),
    "no initializer": (
        initialize({"*": 0.5}), ml.OptionError,
        r"model.initialize of '\*' \(.*\) is 0.5, a float; give an initializer, such as ml.Normal",
    ),
    "a class": (
        initialize({"*": ml.Zeros}), ml.OptionError,
        r"is the class Zeros; make one of it, such as ml.Zeros\(…\)",
    ),
    "fans of a bias": (
        initialize({"*": ml.Xavier()}), ml.ShapeError,
        r"Xavier\(.*\) needs a weight \(out, in, …\) and 'fc.bias' is \[4\]; give it to weights only",
    ),
    "an orthogonal bias": (
        initialize({"*.bias": ml.Orthogonal()}), ml.ShapeError,
        r"Orthogonal\(gain=1.0\) needs a weight",
    ),
    "a function that draws other sizes": (
        initialize({"*.weight": flat}), ml.ShapeError,
        r"of 'fc.weight' drew \[3\] for a box of \[4, 3\]; return an array with the sizes of the",
    ),
    "a function that draws texts": (
        initialize({"*.weight": lambda key, shape, box: np.full((4, 3), "a")}), ml.ShapeError,
        r"of 'fc.weight' drew values of type <U1; return an array of numbers",
    ),
    "a function of the shape alone": (
        initialize({"*": lambda shape: np.zeros(shape) + 1}), ml.OptionError,
        r"of '\*' \(.*\) is a function of \(shape\), and is called with 3 arguments: key, shape and "
        r"box; take these",
    ),
    "a layer's function of too much": (
        lambda: ml.Linear(4, initializer=lambda key, shape, box, scale: 0), ml.OptionError,
        r"Linear option initializer is a function of \(key, shape, box, scale\), and is called with",
    ),
    "None": (
        initialize({"*": None}), ml.OptionError,
        r"model.initialize of '\*' \(.*\) is None; give an initializer, such as",
    ),
    "a class without draw": (
        initialize({"*": ml.Initializer()}), ml.OptionError,
        r"has no method 'draw'; write draw\(self, key, shape, box\)",
    ),
    "an initializer of a layer's own of an unknown kind": (
        lambda: of(Odd(), (1, 2)), ml.OptionError,
        r"initializer of parameter 'w' is 'ones', a str; give an initializer",
    ),
    "a layer without parameters": (
        lambda: ml.Relu(initializer=ml.Ones()), ml.OptionError,
        r"Relu has no parameters to initialize; remove initializer=Ones\(\)",
    ),
    "a layer's pattern that matches nothing": (
        lambda: ml.Linear(3, initializer={"wieght": ml.Ones()}), ml.OptionError,
        r"Linear option initializer names 'wieght', which matches no parameter; parameters: "
        r"'weight', 'bias'; did you mean 'weight'\?",
    ),
    "a number below its least": (
        lambda: ml.Normal(-1), ml.OptionError,
        r"Normal option standard_deviation is -1; give a number of 0 or more",
    ),
    "no number": (
        lambda: ml.Constant("a"), ml.OptionError, r"Constant option value is 'a'; give a number$",
    ),
    "nothing between two ends": (
        lambda: ml.TruncatedNormal(1.0, low=2.0), ml.OptionError,
        r"TruncatedNormal keeps numbers from low=2.0 to high=2.0; give a low below high",
    ),
    "an unknown nonlinearity": (
        lambda: ml.Kaiming(nonlinearity="rleu"), ml.OptionError,
        r"Kaiming option nonlinearity is 'rleu'; give one of .*; did you mean 'relu'\?",
    ),
    "a slope that does nothing": (
        lambda: ml.Kaiming(slope=0.1), ml.OptionError,
        r"Kaiming option slope=0.1 has no effect with nonlinearity='relu'; give nonlinearity='leaky",
    ),
}  # fmt: skip


@ml.layer(parameters=("w",))
def Odd(input):  # noqa: N802
    """Multiply by a parameter that starts as nobody knows."""
    return input * ml.parameter("w", input.shape[-1:], "ones")


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused(case: str) -> None:
    make, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        make()
