"""Two parameters that are one: a name, a gradient that adds, one sharding."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.tolerances import TOLERANCE

RTOL, ATOL = TOLERANCE["float32"]
IDS = np.arange(8, dtype=np.int32).reshape(4, 2) % 5
TARGETS = (IDS + 1) % 10
MESHES = [ml.Mesh(data=4), ml.Mesh(data=2, tensor=2)]


def language_model(*, tied: bool = True, head_first: bool = False) -> ml.Model:
    """Return embedding, layer and head; with `head_first` the head is added, and traced, first."""
    model = ml.Model()
    layers = [
        lambda: ml.Embedding(10, 6, name="embed")(input="ids", output="e"),
        lambda: ml.Linear(6, name="fc")(input="e", output="h"),
        lambda: ml.Linear(10, bias=False, name="head")(input="h", output="logits"),
        lambda: ml.CrossEntropy()(input="logits", target="targets", output="loss"),
    ]
    for make in reversed(layers) if head_first else layers:
        model |= make()
    if tied:
        model.tie("head.weight", "embed.weight")
    return model


def evaluate(model: ml.Model, mesh: ml.Mesh | None = None, table: np.ndarray | None = None):
    backend = ml.NumpyBackend(mesh)
    compiled = ml.compile(model, backend)
    params = compiled.randomize_params(2)
    if table is not None:
        params = {**params, **{n: table for n in ("embed.weight", "head.weight") if n in params}}
    inputs = {"ids": backend.array(IDS, sharding=P("data") if mesh else None), "targets": TARGETS}
    outputs, gradients = compiled.evaluate(params, inputs, {"loss": 1.0})
    return compiled, params, outputs["loss"].numpy(), {n: g.numpy() for n, g in gradients.items()}


@pytest.mark.parametrize("head_first", [False, True])
def test_the_gradients_of_both_uses_add(head_first: bool) -> None:
    table = np.random.default_rng(0).standard_normal((10, 6)).astype(np.float32)
    _, _, expected, apart = evaluate(language_model(tied=False), table=table)
    model = language_model(head_first=head_first)
    compiled, _, loss, gradients = evaluate(model, table=table)
    assert set(model.parameters) == {"embed.weight", "fc.weight", "fc.bias"}
    np.testing.assert_allclose(loss, expected, rtol=RTOL, atol=ATOL)
    both = apart["embed.weight"] + apart["head.weight"]
    np.testing.assert_allclose(gradients["embed.weight"], both, rtol=RTOL, atol=ATOL)
    assert "head.weight" not in gradients
    assert set(compiled.randomize_params()) == set(model.parameters)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", ["embed.weight", "head.weight"])
def test_it_is_split_by_either_name(mesh: ml.Mesh, name: str) -> None:
    axis = mesh.names[-1]
    _, first, expected, slopes = evaluate(language_model())
    for head_first in (False, True):
        model = language_model(head_first=head_first)
        model.shard({name: P(axis, None)})
        _, params, loss, gradients = evaluate(model, mesh)
        assert params["embed.weight"].sharding.spec == P(axis, None)
        assert params["embed.weight"].numpy().tobytes() == first["embed.weight"].numpy().tobytes()
        np.testing.assert_allclose(loss, expected, rtol=RTOL, atol=ATOL)
        for key, slope in slopes.items():
            np.testing.assert_allclose(gradients[key], slope, rtol=RTOL, atol=ATOL, err_msg=key)


def test_it_starts_as_the_kept_name_says_whichever_is_traced_first() -> None:
    for head_first in (False, True):
        _, params, _, _ = evaluate(language_model(head_first=head_first))
        assert 0.8 < params["embed.weight"].numpy().std() < 1.2  # Normal(1), not that of Linear
    model = language_model()
    model.initialize({"head.weight": ml.Constant(2.0)})
    assert (evaluate(model)[1]["embed.weight"].numpy() == 2.0).all()


def test_what_is_frozen_by_one_name_is_frozen() -> None:
    model = language_model()
    model.freeze("head.*")
    compiled = ml.compile(model, ml.NumpyBackend())
    assert compiled.trainable == ("fc.weight", "fc.bias")


def test_ties_in_nested_models_and_repeated_blocks() -> None:
    block = ml.Model(name="block")
    block |= ml.Linear(6, bias=False, name="q")(input="x", output="h")
    block += ml.Tanh()
    block += ml.Linear(6, bias=False, name="k")(output="y")
    block.tie("k.weight", "q.weight")
    model = ml.Model()
    model |= ml.Repeat(block, 2, name="loop")(input="x", output="h")
    model |= block(x="h", y="z")
    assert model.parameters == ("loop.q.weight", "block.q.weight")
    compiled = ml.compile(model, ml.NumpyBackend())
    params = compiled.randomize_params()
    x = np.ones((2, 6), np.float32)
    outputs, gradients = compiled.evaluate(params, {"x": x}, {"z": np.ones((2, 6), np.float32)})
    q, last = params["loop.q.weight"].numpy(), params["block.q.weight"].numpy()
    assert q.shape == (2, 6, 6)
    for weight in (*q, last):
        x = np.tanh(x @ weight.T) @ weight.T
    np.testing.assert_allclose(outputs["z"].numpy(), x, rtol=RTOL, atol=ATOL)
    assert list(gradients) == ["loop.q.weight", "block.q.weight"]


def test_a_chain_of_ties_and_its_summary() -> None:
    model = ml.Model()
    for name in "abc":
        model += ml.Linear(4, bias=False, name=name)
    model.tie("a.weight", "b.weight")
    model.tie("b.weight", "c.weight")
    assert model.parameters == ("c.weight",)
    text = model.summary({"input": (2, 4)})
    assert "16 numbers to learn" in text
    assert text.splitlines()[-2:] == ["tie a.weight: b.weight", "tie b.weight: c.weight"]


def test_at_rest_by_either_name() -> None:
    model = language_model()
    model.at_rest({"head.weight": P("data")})
    _, params, _, gradients = evaluate(model, ml.Mesh(data=2))
    assert params["embed.weight"].sharding.spec == P("data")
    _, _, _, slopes = evaluate(language_model())
    np.testing.assert_allclose(
        gradients["embed.weight"], slopes["embed.weight"], rtol=RTOL, atol=ATOL
    )


def test_what_is_said_of_both_names_may_be_said_otherwise_of_one() -> None:
    model = language_model()
    model.shard({"*.weight": P("tensor", None), "embed.weight": P(None, "tensor")})
    model.at_rest({"*": P("tensor"), "head.weight": P(None, "tensor")})
    model.initialize({"*.weight": ml.Zeros(), "head.weight": ml.Ones()})
    model.trainable({"*": False, "head.weight": True})
    _, params, _, gradients = evaluate(model, ml.Mesh(data=1, tensor=2))
    assert list(gradients) == ["embed.weight"]
    assert params["embed.weight"].sharding.spec == P(None, "tensor")
    assert (params["embed.weight"].numpy() == 1).all()
    assert (params["fc.weight"].numpy() == 0).all()


# ------------------------------------------------------------------ what is refused


def test_both_names_may_not_say_different_things() -> None:
    backend = ml.NumpyBackend(ml.Mesh(tensor=2))
    model = language_model()
    model.shard({"head.weight": P("tensor", None), "embed.weight": P(None, "tensor")})
    with pytest.raises(
        ml.ShardingError,
        match=r"parameters '\w+.weight' and '\w+.weight' are tied, and one is split as P\(.*, the "
        r"other as P\(.*; say it of one of them, or the same of both",
    ):
        ml.compile(model, backend)
    model = language_model()
    model.shard({"*.weight": P(None, "tensor")})
    ml.compile(model, backend)
    model.at_rest({"head.weight": P("tensor"), "embed.weight": P(None, "tensor")})
    with pytest.raises(ml.ShardingError, match="are tied, and one rests as P"):
        ml.compile(model, backend)
    model = language_model()
    model.trainable({"head.weight": False, "embed.weight": True})
    with pytest.raises(ml.GraphError, match="are tied, and one is trained as "):
        ml.compile(model, backend)
    model = language_model()
    model.initialize({"head.weight": ml.Zeros(), "embed.weight": ml.Ones()})
    with pytest.raises(ml.GraphError, match=r"are tied, and one starts as Zeros\(\), the other as"):
        ml.compile(model, backend)


def test_shapes_must_agree() -> None:
    model = ml.Model()
    model |= ml.Embedding(10, 6, name="embed")(input="ids", output="e")
    model += ml.Linear(12, bias=False, name="head")
    model.tie("head.weight", "embed.weight")
    with pytest.raises(
        ml.ShapeError,
        match=r"parameters 'head.weight' float32\[12, 6\] and 'embed.weight' float32\[10, 6\] are "
        r"tied and differ; give both one shape and dtype",
    ):
        ml.compile(model, ml.NumpyBackend(), shapes={"ids": ml.TensorSpec((2,), "int32")})


def test_names_must_be_parameters() -> None:
    model = language_model()
    with pytest.raises(
        ml.GraphError,
        match=r"model.tie names 'fc.wieght' \(test_tied_parameters.py:\d+\), which is no parameter"
        r"; did you mean 'fc.weight'\?; parameters: 'embed.weight', 'fc.weight', 'fc.bias'",
    ):
        model.tie("fc.wieght", "embed.weight")
    with pytest.raises(ml.GraphError, match=r"model.tie names 'head.weight' .*no parameter"):
        model.tie("head.weight", "fc.weight")  # it is tied already
    with pytest.raises(ml.GraphError, match=r"model.tie gets 'fc.weight' twice \(.*; give two"):
        model.tie("fc.weight", "fc.weight")
