"""Copies of arrays and parameters are real ones; pickles are refused when they are written."""

from __future__ import annotations

import copy
import pickle

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.conformance.engines import BACKENDS, opened


@pytest.mark.slow
@pytest.mark.parametrize("name", ["numpy", *BACKENDS])
def test_a_deep_copy_has_values_of_its_own_where_the_array_lies(name: str) -> None:
    backend = opened(name, data=2)
    for spec in (P("data"), P()):
        x = backend.arange(5.0, sharding=spec)
        twin = copy.deepcopy({"x": [x]})["x"][0]
        assert twin is not x
        assert (twin.backend, twin.type, twin.sharding) == (backend, x.type, x.sharding)
        backend.multiply(x, 2.0, donate=0)
        assert twin.numpy().tolist() == [0, 1, 2, 3, 4]
        assert copy.copy(twin) is twin


@pytest.mark.parametrize("name", ["numpy", *BACKENDS])
def test_pickling_is_refused_when_it_is_written(name: str) -> None:
    backend = opened(name, data=2)
    compiled = ml.compile(ml.Linear(3), backend, shapes={"input": (2, 4)})
    remedy = r"its values lie on devices; save it by ml.save\(path, tree\) and read it by ml.load"
    for what, given in {
        "an array": backend.ones(2),
        "parameters": compiled.randomize_params(),
    }.items():
        with pytest.raises(ml.CheckpointError, match=f"cannot pickle {what}; {remedy}"):
            pickle.dumps({"inside": given})
    for given in (backend, compiled):
        with pytest.raises(
            ml.CheckpointError, match="; it stands for opened devices; open or comp"
        ):
            pickle.dumps(given)
        assert copy.copy(given) is copy.deepcopy([given])[0] is given


def test_copies_of_parameters() -> None:
    compiled = ml.compile(ml.Linear(3), ml.NumpyBackend(), shapes={"input": (2, 4)})
    params = compiled.randomize_params()
    for same in (params.copy(), copy.copy(params)):
        assert type(same) is type(params)
        assert same is not params
        assert all(same[name] is x for name, x in params.items())
    deep = copy.deepcopy(params)
    assert type(deep) is type(params)
    for name, x in params.items():
        assert deep[name] is not x
        np.testing.assert_array_equal(deep[name].numpy(), x.numpy())


def test_a_copy_of_what_has_no_size_gets_the_same_values() -> None:
    compiled = ml.compile(ml.Linear(3), ml.NumpyBackend())
    params = compiled.randomize_params(4)
    deep = copy.deepcopy(params)
    assert not deep["weight"].is_materialised
    for given in (params, deep):
        compiled.evaluate(given, {"input": np.ones((2, 5), np.float32)})
    np.testing.assert_array_equal(deep["weight"].numpy(), params["weight"].numpy())


def test_parameters_that_jax_made_are_copied_with_what_they_remember() -> None:
    jax = pytest.importorskip("jax")
    compiled = ml.compile(ml.Linear(3), opened("jax"), shapes={"input": (2, 4)})
    params = jax.tree.map(lambda x: x, compiled.randomize_params())
    assert jax.tree.structure(copy.deepcopy(params)) == jax.tree.structure(params)
    sizes = jax.tree.map(lambda x: x.size, params)
    assert jax.tree.structure(copy.copy(sizes)) == jax.tree.structure(params)
