"""What a tree may be made of, and what comes back of it."""

from __future__ import annotations

import math
from collections import OrderedDict
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.conformance.engines import opened


class State(NamedTuple):
    count: Any
    mu: Any


VALUES = {
    "step": 3, "rate": 0.1, "name": "adam", "done": True, "rest": None, "best": math.inf,
    "big": 2**70, "text": "\N{GREEK SMALL LETTER MU} \"x\" / \\", 7: "seven",
    "list": [1, (2.5, "x"), {}, [], ()],
}  # fmt: skip


def test_numbers_texts_and_containers_come_back(tmp_path: Path) -> None:
    ml.save(tmp_path, VALUES)
    assert ml.load(tmp_path) == VALUES
    like = {**VALUES, "step": 0, "rate": 0, "name": "", "done": False, "best": 0.0, "big": 1}
    assert ml.load(tmp_path, like=like) == VALUES
    assert list(tmp_path.glob("*.safetensors")) == []


def test_a_text_of_an_enum_comes_back_as_what_stands_in_it(tmp_path: Path) -> None:
    class Kind(str, Enum):  # noqa: UP042 - a StrEnum has no text of its own
        first = "a"

    ml.save(tmp_path, {"kind": Kind.first, "text": np.str_("b")})
    found = ml.load(tmp_path)
    assert found == {"kind": "a", "text": "b"}
    assert {type(text) for text in found.values()} == {str}


def test_nan_comes_back(tmp_path: Path) -> None:
    ml.save(tmp_path, [math.nan, -math.inf])
    first, second = ml.load(tmp_path)
    assert math.isnan(first)
    assert second == -math.inf


def test_arrays_come_back_as_what_stands_in_their_place(tmp_path: Path) -> None:
    backend = ml.NumpyBackend(ml.Mesh(a=2))
    tree = {
        "ours": backend.arange(4.0, sharding=P("a")), "host": np.arange(3), "scalar": np.float32(2),
        "state": State(np.int32(1), {"w": backend.ones(2)}), "none": None,
    }  # fmt: skip
    ml.save(str(tmp_path), tree)
    alone = ml.load(tmp_path)
    assert isinstance(alone["ours"], np.ndarray)
    assert alone["ours"].flags.writeable
    assert alone["state"] == {"count": 1, "mu": {"w": pytest.approx([1, 1])}}
    found = ml.load(tmp_path, like=tree)
    assert isinstance(found["ours"], ml.Array)
    assert isinstance(found["host"], np.ndarray)
    assert found["host"].dtype == np.int64
    assert type(found["scalar"]) is np.float32
    assert type(found["state"]) is State
    assert found["none"] is None
    swapped = {**tree, "ours": np.zeros(4, np.float32), "host": backend.zeros(3, dtype="int64")}
    found = ml.load(tmp_path, like=swapped)
    assert found["ours"].tolist() == [0, 1, 2, 3]
    assert found["host"].numpy().tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_mappings_keep_their_kind(kind: type, tmp_path: Path) -> None:
    tree = kind(a=np.ones(2), b=1)
    ml.save(tmp_path, tree)
    assert type(ml.load(tmp_path, like=tree)) is kind


def test_parameters_are_loaded_as_parameters(tmp_path: Path) -> None:
    compiled = compile_small(ml.NumpyBackend(ml.Mesh(tensor=2)))
    params = compiled.randomize_params(3)
    ml.save(tmp_path, params)
    assert set(ml.load(tmp_path)) == set(params)
    for found in (
        ml.load(tmp_path, like=compiled.randomize_params()),
        ml.load(tmp_path, compiled=compiled),
    ):
        assert type(found) is type(params)
        for name, x in found.items():
            assert x.sharding == params[name].sharding
            np.testing.assert_array_equal(x.numpy(), params[name].numpy())


def test_one_array_by_itself(tmp_path: Path) -> None:
    x = ml.NumpyBackend(ml.Mesh(a=2)).arange(4.0, sharding=P("a"))
    ml.save(tmp_path, x)
    np.testing.assert_array_equal(ml.load(tmp_path), x.numpy())
    np.testing.assert_array_equal(ml.load(tmp_path, like=x).numpy(), x.numpy())


def test_a_subtree_is_loaded_by_its_path(tmp_path: Path) -> None:
    compiled = compile_small(ml.NumpyBackend(ml.Mesh(tensor=2)))
    params = compiled.randomize_params(3)
    ml.save(tmp_path, {"model": {"params": params, "a/b": [1, 2]}, "step": 3})
    found = ml.load(tmp_path, compiled=compiled, subtree="model/params")
    np.testing.assert_array_equal(found["up.weight"].numpy(), params["up.weight"].numpy())
    assert ml.load(tmp_path, subtree="step") == 3
    assert ml.load(tmp_path, subtree="model/a/b/1") == 2
    assert ml.load(tmp_path, subtree="model/a/b") == [1, 2]
    with pytest.raises(
        ml.CheckpointError, match=r"no subtree 'modle'; did you mean 'model'\?; there"
    ):
        ml.load(tmp_path, subtree="modle")


def compile_small(backend: ml.Backend) -> ml.CompiledModel:
    model = ml.Model()
    model |= ml.Linear(8, name="up")(input="x", output="h")
    model |= ml.Linear(4, name="down", bias=False)(input="h", output="y")
    model.shard({"up.weight": P("tensor", None), "down.weight": P(None, "tensor")})
    return ml.compile(model, backend, shapes={"x": (2, 6)})


# ------------------------------------------------------------------ arrays of frameworks


@pytest.mark.slow
def test_state_of_optax(tmp_path: Path) -> None:
    optax, jax = pytest.importorskip("optax"), pytest.importorskip("jax")
    compiled = compile_small(opened("jax", tensor=2))
    params = compiled.randomize_params(1)
    optimizer = optax.adam(1e-3)
    for tree in (params, params.jax()):
        _, state = optimizer.update(tree, optimizer.init(tree), tree)
        ml.save(tmp_path, {"params": tree, "state": state})
        fresh = jax.tree.map(lambda x: x * 0, {"params": tree, "state": state})
        found = ml.load(tmp_path, like=fresh)
        assert jax.tree.structure(found) == jax.tree.structure(fresh)
        assert jax.tree.all(jax.tree.map(np.array_equal, found, {"params": tree, "state": state}))
        assert type(found["state"][0]) is type(state[0])
        mu, was = (made["state"][0].mu["up.weight"] for made in (found, fresh))
        assert type(mu) is type(was)
        laid_out = [x if isinstance(x, jax.Array) else x.jax() for x in (mu, was)]
        assert laid_out[0].sharding.is_equivalent_to(laid_out[1].sharding, 2)
        assert not laid_out[0].sharding.is_fully_replicated


def test_arrays_of_jax_stay_on_the_mesh_they_lie_on(tmp_path: Path) -> None:
    """Whatever other backends are open: here one of a single device, opened later, and a larger one."""
    jax = pytest.importorskip("jax")
    wide, backend, single = opened("jax", data=8), opened("jax", tensor=2), opened("jax")
    spec = P("tensor")
    weights = [backend.ones(4, 2, sharding=spec), wide.ones(4, sharding=P("data")), single.ones(3)]
    assert [x.backend.mesh.size for x in weights] == [2, 8, 1]
    tree = {"w": [x.jax() for x in weights], "count": jax.numpy.zeros([], "int32")}
    ml.save(tmp_path, tree)
    found = ml.load(tmp_path, like=tree)
    for x, was in zip(found["w"], tree["w"], strict=True):
        assert x.sharding.is_equivalent_to(was.sharding, x.ndim)
    largest = found["w"][0]
    together = jax.jit(lambda w, n: w * (n + 1))(largest, found["count"])
    assert together.sharding.is_equivalent_to(largest.sharding, 2)


def test_state_of_a_torch_optimizer(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    opened("torch")
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    ml.save(tmp_path, {"state": optimizer.state_dict(), "weight": weight.detach()})
    found = ml.load(tmp_path, like={"state": optimizer.state_dict(), "weight": weight.detach()})
    assert torch.equal(found["weight"], weight)
    optimizer.load_state_dict(found["state"])
    state = found["state"]["state"][0]
    assert state["exp_avg"].dtype == torch.bfloat16
    assert torch.equal(state["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])


def test_arrays_of_mlx(tmp_path: Path) -> None:
    mx = pytest.importorskip("mlx.core")
    opened("mlx")
    tree = {"w": mx.arange(4, dtype=mx.float32), "b": mx.ones((2,), dtype=mx.bfloat16)}
    ml.save(tmp_path, tree)
    found = ml.load(tmp_path, like=tree)
    assert all(type(x) is mx.array for x in found.values())
    assert found["w"].tolist() == [0, 1, 2, 3]
    assert found["b"].dtype == mx.bfloat16
