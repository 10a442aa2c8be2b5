"""The sharding of an array is taken wherever a spec is, unless it is of another mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.mesh import Sharding

B = ml.NumpyBackend(ml.Mesh(x=4))
X = B.array(np.arange(32, dtype=np.float32).reshape(8, 4))
SPLIT = B.ones(8, 4, sharding=P("x")).sharding
CUT = B.ones(8, 4, device_mesh=2).sharding
FOREIGN = ml.NumpyBackend(ml.Mesh(x=2, y=2)).ones(8, 4, sharding=P("x")).sharding


def double(x: Any) -> Any:
    return x * 2


def compiled(**options: Any) -> Any:
    model = ml.Model()
    model |= ml.Linear(4)(input="input", output="y")
    return ml.compile(model, B, **{"shapes": {"input": (8, 4)}, **options})


def run(given: Any) -> Any:
    made = compiled(**given)
    return made.evaluate(made.randomize_params(0), {"input": X})["y"]


WAYS: dict[str, Callable[[Sharding], Any]] = {
    "reshard": lambda s: ml.reshard(X, s),
    "reshard of a tree": lambda s: ml.reshard({"a": X}, {"a": s})["a"],
    "constrain": lambda s: ml.constrain(X, s),
    "reshard in a function": lambda s: ml.jit(lambda x: ml.reshard(x * 2, s))(X),
    "constrain in a function": lambda s: ml.jit(lambda x: ml.constrain(x * 2, s))(X),
    "in_shardings": lambda s: ml.jit(double, backend=B, in_shardings=s)(X),
    "in_shardings of each": lambda s: ml.jit(double, backend=B, in_shardings=(s,))(X),
    "out_shardings": lambda s: ml.jit(double, backend=B, out_shardings=s)(X),
    "out_shardings of a model": lambda s: run({"out_shardings": s}),
    "out_shardings by name": lambda s: run({"out_shardings": {"y": s}}),
    "in_shardings of a model": lambda s: run({"in_shardings": {"input": s}}),
    "TensorSpec": lambda s: run({"shapes": {"input": ml.TensorSpec((8, 4), sharding=s)}}),
}


@pytest.mark.parametrize("sharding", [SPLIT, CUT], ids=["an axis", "a part of an axis"])
@pytest.mark.parametrize("way", WAYS)
def test_the_sharding_of_an_array_is_taken(way: str, sharding: Sharding) -> None:
    assert WAYS[way](sharding).sharding == sharding


@pytest.mark.parametrize("way", WAYS)
def test_a_sharding_of_another_mesh_is_refused(way: str) -> None:
    with pytest.raises(
        ml.MeshError, match=r"is on Mesh\(x=2, y=2\), the backend on Mesh\(x=4\); use one mesh"
    ):
        WAYS[way](FOREIGN)


def test_a_function_is_planned_for_a_sharding() -> None:
    assert ml.jit(double, backend=B).plan(ml.TensorSpec((8, 4), sharding=SPLIT)) is not None
    with pytest.raises(ml.MeshError, match="the backend on"):
        ml.jit(double, backend=B).plan(ml.TensorSpec((8, 4), sharding=FOREIGN))
