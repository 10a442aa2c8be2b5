"""Arrays of values in the bodies of layers are constants of the graph, however they get there."""

from __future__ import annotations

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P
from mithril.ir import Tensor
from mithril.plan.serialize import plan_to_json

from tests.models.evaluate import random
from tests.tolerances import TOLERANCE

RTOL, ATOL = TOLERANCE["float32"]
X = random(8, 4)
ROW, COLUMN = random(4, seed=1), random(8, 1, seed=2)
SQUARE = random(4, 4, seed=3)
IDS = np.array([3, 0, 2, 1])
MESHES = [ml.Mesh(), ml.Mesh(data=2, tensor=2)]

BODIES = {
    "a vector of NumPy": (lambda x: x + ROW, X + ROW),
    "on the left": (lambda x: ROW * x, ROW * X),
    "float64": (lambda x: x + ROW.astype(np.float64), X + ROW),
    "split like the batch": (lambda x: x * COLUMN, X * COLUMN),
    "a product": (lambda x: x @ SQUARE, X @ SQUARE),
    "a list": (lambda x: x * [1.0, 2.0, 3.0, 4.0], X * [1.0, 2.0, 3.0, 4.0]),
    "a list of integers": (lambda x: [1, 2, 3, 4] - x, [1, 2, 3, 4] - X),
    "an index": (lambda x: x[:, IDS], X[:, IDS]),
    "take": (lambda x: mnp.take(x, IDS, axis=1), X[:, IDS]),
    "where": (lambda x: mnp.where(ROW > 0, x, 0.0), np.where(ROW > 0, X, 0.0)),
    "concatenate": (lambda x: mnp.concatenate([x, np.ones_like(X)]), np.r_[X, np.ones_like(X)]),
    "zeros": (lambda x: x + mnp.zeros((4,)), X),
    "zeros of its shape": (lambda x: x + mnp.zeros(x.shape), X),
    "ones": (lambda x: x + mnp.ones(4), X + 1),
    "ones_like": (lambda x: x + mnp.ones_like(x), X + 1),
    "full": (lambda x: x + mnp.full((8, 4), 0.5), X + 0.5),
    "arange": (lambda x: x * mnp.arange(4.0), X * np.arange(4)),
    "integers": (lambda x: x * mnp.arange(4).astype("float32"), X * np.arange(4)),
    "linspace": (lambda x: x + mnp.linspace(0, 1, 4), X + np.linspace(0, 1, 4)),
    "eye": (lambda x: x @ mnp.eye(4), X),
    "array": (lambda x: x + mnp.array([1.0, 2.0, 3.0, 4.0]), X + np.arange(1, 5)),
    "asarray": (lambda x: x + mnp.asarray(ROW), X + ROW),
    "a function of constants": (lambda x: x + mnp.exp(np.ones(4)), X + np.exp(np.ones(4))),
}


def layer_of(body):
    @ml.layer
    def Body(x: Tensor) -> Tensor:  # noqa: N802
        return body(x)

    return Body


def close(found, expected) -> None:
    np.testing.assert_allclose(found.numpy(), expected, rtol=RTOL, atol=ATOL)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", BODIES)
def test_values_in_a_body_are_constants(name: str, mesh: ml.Mesh) -> None:
    body, expected = BODIES[name]
    backend = ml.NumpyBackend(mesh)
    x = backend.array(X, sharding=P("data") if mesh.size > 1 else P())
    compiled = ml.compile(layer_of(body)(), backend)
    close(compiled.evaluate({}, {"x": x})["output"], expected)
    close(ml.jit(body)(x), expected)  # the same body


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_gradients_pass_by_constants(mesh: ml.Mesh) -> None:
    backend = ml.NumpyBackend(mesh)
    model = ml.Model()
    model |= ml.Linear(4, name="up")(input="x", output="h")
    model |= layer_of(lambda x: (x * COLUMN) @ SQUARE)()(x="h", output="y")
    compiled = ml.compile(model, backend)
    params = compiled.randomize_params()
    _, gradients = compiled.evaluate(params, {"x": X}, {"y": np.ones((8, 4))})
    slope = COLUMN * (np.ones((8, 4)) @ SQUARE.T)
    close(gradients["up.weight"], slope.T @ X)
    assert compiled.inputs == ("x",)


def test_a_constant_changes_no_signature() -> None:
    compiled = ml.compile(
        layer_of(BODIES["a product"][0])(), ml.NumpyBackend(), shapes={"x": (8, 4)}
    )
    first = compiled.evaluate({}, {"x": X})["output"]
    for _ in range(3):
        close(compiled.evaluate({}, {"x": X})["output"], first.numpy())
    assert compiled.recompiles == 2  # with gradients at compile(), without them here
    compiled.evaluate({}, {"x": X[:2]})
    assert compiled.recompiles == 3


def test_an_array_used_twice_is_one_input() -> None:
    compiled = ml.compile(
        layer_of(lambda x: x @ SQUARE + SQUARE[0] + (x @ SQUARE))(), ml.NumpyBackend(),
        shapes={"x": (8, 4)}, inference=True,
    )  # fmt: skip
    names = [port.name for port in compiled.plan.inputs]
    assert names == ["x", "captured.0", "captured.1"]
    assert list(compiled.captured) == names[1:]


def test_a_large_constant_is_not_printed() -> None:
    table = np.random.default_rng(0).normal(size=(512, 512))
    compiled = ml.compile(
        layer_of(lambda x: x @ table)(), ml.NumpyBackend(ml.Mesh(data=2)),
        shapes={"x": ml.TensorSpec((4, 512), sharding=P("data"))},
    )  # fmt: skip
    assert len(plan_to_json(compiled.plan)) < 20_000
    for text in (str(compiled.plan), compiled.summary(), compiled.explain(), repr(compiled)):
        assert len(text) < 5_000


def test_constants_in_a_loop_and_in_stages() -> None:
    block = ml.Model()
    block += ml.Linear(4)
    block += layer_of(lambda x: mnp.tanh(x) * ROW + mnp.full((4,), 0.5))()
    whole = ml.compile(ml.Repeat(block, 3), ml.NumpyBackend())
    params = whole.randomize_params(seed=1)
    expected = whole.evaluate(params, {"input": X})["output"].numpy()
    x = X
    for i in range(3):
        weight, bias = (params[f"linear_0.{name}"].numpy()[i] for name in ("weight", "bias"))
        x = np.tanh(x @ weight.T + bias) * ROW + 0.5
    np.testing.assert_allclose(expected, x, rtol=RTOL, atol=ATOL)
    split = ml.compile(ml.Repeat(block, 3), ml.NumpyBackend(ml.Mesh(data=2, tensor=2)))
    again = split.evaluate({n: p.numpy() for n, p in params.items()}, {"input": X})["output"]
    close(again, expected)


@pytest.mark.parametrize("mesh", [ml.Mesh(pipeline=2), ml.Mesh(data=2, pipeline=2)], ids=str)
def test_micro_batches_cut_a_constant_that_belongs_to_the_batch(mesh: ml.Mesh) -> None:
    model = ml.Model()
    model |= ml.Linear(4, name="a")(input="x", output="h")
    model |= layer_of(lambda x: x * COLUMN + ROW)(name="r")(x="h", output="k")
    model |= ml.Linear(4, name="b")(input="k", output="y")
    gradient = {"y": np.ones((8, 4))}
    whole = ml.compile(model, ml.NumpyBackend())
    params = dict(whole.randomize_params())
    wanted = whole.evaluate(params, {"x": X}, gradient)
    for name, stage in (("a", 0), ("r", 0), ("b", 1)):
        model.stage(name, stage)
    options = ml.PipelineOptions(microbatch_size=2, axis="pipeline")
    cut = ml.compile(model, ml.NumpyBackend(mesh), pipeline=options)
    given = {n: p.numpy() for n, p in params.items()}
    found = cut.evaluate(given, {"x": X}, gradient)
    close(found[0]["y"], wanted[0]["y"].numpy())
    for name in params:
        close(found[1][name], wanted[1][name].numpy())


def test_arrays_of_the_backend_are_taken_as_they_lie() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=4))
    column = backend.array(COLUMN, sharding=P("data"))
    model = layer_of(lambda x: x * column)()
    compiled = ml.compile(model, backend, shapes={"x": (8, 4)})
    close(compiled.evaluate({}, {"x": X})["output"], X * COLUMN)
    (port,) = [port for port in compiled.plan.inputs if port.name == "captured.0"]
    assert port.sharding.spec == P("data", None)
    with pytest.raises(ml.BackendError, match=r"array used by a layer belongs to another backend"):
        ml.compile(model, ml.NumpyBackend(), shapes={"x": (8, 4)})
    assert "float32[8, 4]" in str(_in_model(model).summary({"x": (8, 4)}))


def _in_model(layer: ml.Layer) -> ml.Model:
    model = ml.Model()
    model |= layer(x="x", output="y")
    return model


def test_constants_follow_the_precision() -> None:
    model = layer_of(lambda x: x * ROW + mnp.full((4,), 0.1) + ROW.astype(np.float64))()
    for options, dtype in (
        ({"compute_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float64"}, "float64"),
        ({}, "float32"),
    ):
        compiled = ml.compile(model, ml.NumpyBackend(**options))
        assert compiled.evaluate({}, {"x": X})["output"].dtype == dtype
    precise = ml.compile(model, ml.NumpyBackend(dtype="float64"))
    row = ROW.astype(np.float64)
    found = precise.evaluate({}, {"x": X})["output"].numpy()
    np.testing.assert_allclose(found, X.astype(np.float64) * row + 0.1 + row, rtol=1e-12)


def test_what_holds_no_values_is_refused() -> None:
    with pytest.raises(ml.ShapeError, match="cannot compute with an object here"):
        ml.compile(layer_of(lambda x: x + object())(), ml.NumpyBackend(), shapes={"x": (8, 4)})
