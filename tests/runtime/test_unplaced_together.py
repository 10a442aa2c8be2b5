"""Arrays that nobody placed, where they meet donation, captured arrays, copies and checkpoints."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P

from tests.tolerances import TOLERANCE

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)
BATCH = np.ones((8, 3), np.float32)


def split_linear() -> tuple[ml.Backend, ml.CompiledModel]:
    backend = ml.NumpyBackend(ml.Mesh(tensor=2))
    layer = ml.Linear(4, bias=False, sharding={"weight": P("tensor", None)})
    return backend, ml.compile(layer, backend, shapes={"input": (8, 3)})


def test_a_donated_array_that_nobody_placed_is_moved_and_given_up() -> None:
    backend, compiled = split_linear()
    params = {"weight": backend.array(WEIGHT)}
    made = compiled.recompiles
    (found,) = compiled.evaluate(params, {"input": BATCH}, donate="params").values()
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(found.numpy(), BATCH @ WEIGHT.T, rtol=rtol, atol=atol)
    with pytest.raises(ml.BackendError, match="was donated to evaluate\\(\\) as 'weight'"):
        params["weight"].numpy()
    compiled.evaluate({"weight": backend.array(WEIGHT)}, {"input": BATCH})
    compiled.evaluate({"weight": backend.array(WEIGHT)}, {"input": BATCH}, donate="params")
    assert compiled.recompiles <= made + 1  # the forward plan, whatever is given up


def test_a_function_takes_captured_values_as_they_were_and_where_it_wants_them() -> None:
    backend = ml.NumpyBackend(ml.Mesh(tensor=2))
    values, own = WEIGHT.copy(), backend.array(WEIGHT)
    scale = ml.jit(lambda x: x * values + own, backend=backend, out_shardings=P("tensor"))
    x = backend.ones((4, 3), sharding=P("tensor"))
    scale.plan(x)
    values[:] = 0  # after the trace
    np.testing.assert_array_equal(scale(x).numpy(), 2 * WEIGHT)
    assert own.sharding.spec == P("tensor") and not own.is_placed
    own_again = backend.reshard(own, P())
    assert own_again.is_placed
    np.testing.assert_array_equal((own_again + 0).numpy(), WEIGHT)


def test_a_captured_array_that_is_placed_stays_where_it_is() -> None:
    backend = ml.NumpyBackend(ml.Mesh(tensor=2))
    own = backend.array(WEIGHT, sharding=P())
    shift = ml.jit(lambda x: mnp.sum(x * own), backend=backend)
    found = shift(backend.ones((4, 3), sharding=P("tensor")))
    assert found.item() == WEIGHT.sum()
    assert own.sharding.spec == P() and own.is_placed and found.is_placed


@pytest.mark.parametrize("is_placed", [False, True])
def test_a_copy_is_placed_as_the_array_is(is_placed: bool) -> None:
    backend = ml.NumpyBackend(ml.Mesh(tensor=2))
    x = backend.array(WEIGHT, sharding=P("tensor") if is_placed else None)
    assert deepcopy(x).is_placed == is_placed


def test_a_loaded_array_is_placed_as_the_one_it_is_like(tmp_path: Path) -> None:
    backend, compiled = split_linear()
    ml.save(tmp_path / "saved", {"weight": WEIGHT})
    for like in (backend.zeros((4, 3)), backend.zeros((4, 3), sharding=P())):
        loaded = ml.load(tmp_path / "saved", like={"weight": like})
        assert loaded["weight"].is_placed == like.is_placed
    loaded = ml.load(tmp_path / "saved", compiled=compiled)
    assert not loaded["weight"].is_placed
    assert loaded["weight"].sharding == compiled.shardings["weight"]
    assert loaded["weight"].addressable_shards[1].data.shape == (2, 3)
