"""Initial parameters: the same bits on every mesh, drawn part by part, sized when sizes are known."""

from __future__ import annotations

import pickle

import mithril as ml
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mithril import P
from mithril.mesh import Sharding
from mithril.runtime.parameters import Parameters
from mithril.runtime.sampling import Key
from mithril.types import DType, TensorType

MESHES = [(), (4,), (2, 2), (8,)]


def block() -> ml.Model:
    model = ml.Model()
    model |= ml.Embedding(vocab_size=40, embedding_dim=32, name="embed")(input="tokens", output="x")
    model += ml.LayerNorm(name="norm")(input="x", output="n")
    model += ml.MultiHeadAttention(num_heads=8, name="attn")(input="n", output="seen")
    model += ml.FeedForward(hidden_dim=64, name="mlp")(input="seen", output="y")
    model += ml.Conv2d(filters=8, kernel_size=3, name="conv")(input="picture", output="c")
    return model


def split(model: ml.Model, mesh: tuple[int, ...]) -> ml.Model:
    """Split weights over the last mesh axis: columns of some, rows of others."""
    axis = ml.NumpyBackend(device_mesh=mesh or None).mesh.names[-1:]
    if axis:
        model.shard({"*.weight": P(axis[0]), "attn.o.weight": P(None, axis[0])})
        model.shard({"mlp.*.weight": P(None, axis[0]), "norm.weight": P()})
    return model


@pytest.mark.parametrize("mesh", MESHES[1:], ids=str)
def test_equal_seeds_give_equal_bits_on_every_mesh(mesh: tuple[int, ...]) -> None:
    def values(on: tuple[int, ...]) -> dict[str, np.ndarray]:
        backend = ml.NumpyBackend(device_mesh=on or None)
        shapes = {"tokens": ml.TensorSpec((8, 4), "int32"), "picture": (8, 3, 5, 5)}
        compiled = ml.compile(split(block(), on), backend, shapes=shapes)
        params = compiled.randomize_params(seed=7)
        if on:
            assert any(any(x.sharding.dims) for x in params.values()), "nothing was split"
        return {name: x.numpy() for name, x in params.items()}

    expected, found = values(()), values(mesh)
    assert set(expected) == set(found)
    for name, value in expected.items():
        assert value.tobytes() == found[name].tobytes(), name


def test_seeds_and_names_give_different_values() -> None:
    compiled = ml.compile(block(), ml.NumpyBackend(), shapes={
        "tokens": ml.TensorSpec((8, 4), "int32"), "picture": (8, 3, 5, 5),
    })  # fmt: skip
    one, two = compiled.randomize_params(0), compiled.randomize_params(1)
    assert not np.array_equal(one["embed.weight"].numpy(), two["embed.weight"].numpy())
    assert not np.array_equal(one["attn.q.weight"].numpy(), one["attn.k.weight"].numpy())


def test_distributions_are_those_of_pytorch() -> None:
    compiled = ml.compile(ml.Linear(400), ml.NumpyBackend(), shapes={"input": (2, 100)})
    weight = compiled.randomize_params()["weight"].numpy()
    assert abs(weight).max() <= 0.1
    assert abs(weight.mean()) < 1e-3
    assert abs(weight.std() - 0.1 / np.sqrt(3)) < 1e-3
    compiled = ml.compile(
        ml.Embedding(500, 100), ml.NumpyBackend(), shapes={"input": ml.TensorSpec((2,), "int32")}
    )
    table = compiled.randomize_params()["weight"].numpy()
    assert abs(table.mean()) < 0.02
    assert abs(table.std() - 1) < 0.02


def test_names_are_known_before_sizes_and_values_come_in_place() -> None:
    backend = ml.NumpyBackend(device_mesh=(2,))
    compiled = ml.compile(ml.Linear(4), backend)
    params = compiled.randomize_params()
    weight = params["weight"]
    assert list(params) == ["weight", "bias"]
    assert isinstance(params, dict)
    assert "size not known yet" in repr(params)
    compiled.evaluate(params, {"input": backend.ones(2, 3)})
    assert params["weight"] is weight
    assert weight.shape == (4, 3)
    compiled.evaluate(params, {"input": backend.ones(2, 3)})
    assert compiled.recompiles == 1


def test_get_parameters_is_the_same_and_always_new() -> None:
    compiled = ml.compile(ml.Linear(4), ml.NumpyBackend(), shapes={"input": (2, 3)})
    one, two = compiled.get_parameters(), compiled.randomize_params()
    assert one is not two
    np.testing.assert_array_equal(one["weight"].numpy(), two["weight"].numpy())


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[slice, ...]]:
    shape = tuple(draw(st.lists(st.integers(1, 40), min_size=0, max_size=3)))
    box = []
    for size in shape:
        start = draw(st.integers(0, size))
        box.append(slice(start, draw(st.integers(start, size))))
    return shape, tuple(box)


@given(boxes(), st.integers(0, 3))
def test_a_part_is_cut_from_the_whole(
    case: tuple[tuple[int, ...], tuple[slice, ...]], seed: int
) -> None:
    shape, box = case
    key, whole = Key(seed, "w"), tuple(slice(0, size) for size in shape)
    for draw in (key.uniform, key.normal):
        assert draw(shape, box).tobytes() == np.ascontiguousarray(draw(shape, whole)[box]).tobytes()


@pytest.mark.parametrize("word", [0, 2**64 - 1])
def test_the_first_and_the_last_word_are_drawn_as_any_other(
    word: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Key, "words", lambda key, shape, box: np.full(shape, word, np.uint64))
    whole = (slice(0, 3),)
    assert np.isfinite(Key(0, "w").normal((3,), whole)).all()
    uniform = Key(0, "w").uniform((3,), whole)
    assert (uniform >= 0).all()
    assert (uniform < 1).all()


def test_each_device_draws_its_own_part_only() -> None:
    backend = ml.NumpyBackend(device_mesh=(4,))
    asked = []

    def produce(box: tuple[slice, ...]) -> np.ndarray:
        asked.append(tuple(part.stop - part.start for part in box))
        return np.zeros(asked[-1])

    type = TensorType((8, 6), DType.float32)
    backend.place(type, Sharding.of(backend.mesh, P("data"), 2), produce)
    assert asked == [(2, 6)] * 4


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    params = ml.compile(ml.Linear(4), ml.NumpyBackend()).randomize_params()
    with pytest.raises(ml.UnknownNameError) as caught:
        params["wieght"]
    expected = "parameters have no 'wieght'; did you mean 'weight'?; names: 'weight', 'bias'"
    assert str(caught.value) == expected
    assert isinstance(caught.value, KeyError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == expected
    many = Parameters({f"layer{i}.weight": params["weight"] for i in range(20)})
    with pytest.raises(KeyError, match=r"did you mean 'layer7.weight'\?; names: 20 of them$"):
        many["layer7.wieght"]


def test_parameters_are_a_dict_all_the_same() -> None:
    params = ml.compile(ml.Linear(4), ml.NumpyBackend()).randomize_params()
    assert params == dict(params) == {**params}
    assert params.get("wieght") is None
    assert "wieght" not in params
    assert params.pop("wieght", 3) == 3


def test_no_parameters_have_no_attributes() -> None:
    with pytest.raises(AttributeError, match=r"^parameters have no attribute 'jax'$"):
        Parameters().jax()
