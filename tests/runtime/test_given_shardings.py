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
ONE = ml.NumpyBackend()
X = B.array(np.arange(32, dtype=np.float32).reshape(8, 4))
SPLIT = B.ones(8, 4, sharding=P("x")).sharding
CUT = B.ones(8, 4, device_mesh=2).sharding
FOREIGN = ml.NumpyBackend(ml.Mesh(x=2, y=2)).ones(8, 4, sharding=P("x")).sharding
REFUSED = r"is on Mesh\(x=2, y=2\), the backend on Mesh\(x=4\); use one mesh"


def double(x: Any) -> Any:
    return x * 2


def compiled(rule: str = "", said: Any = None, layer: Any = None, **options: Any) -> Any:
    """Compile a layer whose weight is of (8, 4), and say how it lies by a method of the model."""
    model = ml.Model()
    model |= ml.Linear(8, bias=False, name="l", **(layer or {}))(input="input", output="y")
    if rule:
        getattr(model, rule)({"l.weight": said})
    return ml.compile(model, B, **{"shapes": {"input": (8, 4)}, **options})


def run(given: Any) -> Any:
    model = ml.Model()
    model |= ml.Linear(4)(input="input", output="y")
    made = ml.compile(model, B, **{"shapes": {"input": (8, 4)}, **given})
    return made.evaluate(made.randomize_params(0), {"input": X})["y"]


def weigh(*given: Any, **options: Any) -> Any:
    """Return the weight of a compiled layer, after a run."""
    made = compiled(*given, **options)
    params = made.randomize_params(0)
    found = made.evaluate(params, {"input": X})["y"].numpy()
    np.testing.assert_allclose(found, X.numpy() @ params["l.weight"].numpy().T, rtol=1e-5)
    return params["l.weight"]


def constrained(s: Sharding) -> Any:
    return weigh(auto_partition=True, partition_constraints={"shardings": {"l.weight": s}})


def port(function: ml.Function) -> Any:
    (found,) = function.plan(X).inputs
    return found


def inside(function: ml.Function) -> Any:
    """Run a function inside another one."""
    return ml.jit(lambda x: function(x * 2))(X)


WAYS: dict[str, Callable[[Sharding], Any]] = {
    "reshard": lambda s: ml.reshard(X, s),
    "reshard of a tree": lambda s: ml.reshard({"a": X}, {"a": s})["a"],
    "constrain": lambda s: ml.constrain(X, s),
    "reshard in a function": lambda s: ml.jit(lambda x: ml.reshard(x * 2, s))(X),
    "constrain in a function": lambda s: ml.jit(lambda x: ml.constrain(x * 2, s))(X),
    "in_shardings": lambda s: ml.jit(double, backend=B, in_shardings=s)(X),
    "in_shardings of each": lambda s: ml.jit(double, backend=B, in_shardings=(s,))(X),
    "in_shardings inside": lambda s: inside(ml.jit(lambda x: x, in_shardings=s)),
    "out_shardings": lambda s: ml.jit(double, backend=B, out_shardings=s)(X),
    "out_shardings inside": lambda s: inside(ml.jit(double, out_shardings=s)),
    "at_rest": lambda s: port(ml.jit(double, backend=B, at_rest=s)),
    "at_rest by name": lambda s: port(ml.jit(double, backend=B, at_rest={"x": s})),
    "out_shardings of a model": lambda s: run({"out_shardings": s}),
    "out_shardings by name": lambda s: run({"out_shardings": {"y": s}}),
    "in_shardings of a model": lambda s: run({"in_shardings": {"input": s}}),
    "at_rest of compile": lambda s: weigh(at_rest=s),
    "at_rest of compile by name": lambda s: weigh(at_rest={"*.weight": s}),
    "model.shard": lambda s: weigh("shard", s),
    "model.at_rest": lambda s: weigh("at_rest", s),
    "sharding of a layer": lambda s: weigh(layer={"sharding": {"weight": s}}),
    "at_rest of a layer": lambda s: weigh(layer={"at_rest": s}),
    "at_rest of a layer by name": lambda s: weigh(layer={"at_rest": {"weight": s}}),
    "partition_constraints": constrained,
    "TensorSpec": lambda s: run({"shapes": {"input": ml.TensorSpec((8, 4), sharding=s)}}),
}


@pytest.mark.parametrize("sharding", [SPLIT, CUT], ids=["an axis", "a part of an axis"])
@pytest.mark.parametrize("way", WAYS)
def test_the_sharding_of_an_array_is_taken(way: str, sharding: Sharding) -> None:
    assert WAYS[way](sharding).sharding == sharding


@pytest.mark.parametrize("way", WAYS)
def test_a_sharding_of_another_mesh_is_refused(way: str) -> None:
    with pytest.raises(ml.MeshError, match=REFUSED):
        WAYS[way](FOREIGN)


def test_a_function_is_planned_for_a_sharding() -> None:
    assert ml.jit(double, backend=B).plan(ml.TensorSpec((8, 4), sharding=SPLIT)) is not None
    with pytest.raises(ml.MeshError, match="the backend on"):
        ml.jit(double, backend=B).plan(ml.TensorSpec((8, 4), sharding=FOREIGN))


@pytest.mark.parametrize("sharding", [SPLIT, CUT], ids=["an axis", "a part of an axis"])
def test_an_op_keeps_an_argument_as_another_array_lies(sharding: Sharding) -> None:
    for _ in range(2):  # what is refused is not kept, nor found for what is not
        with pytest.raises(ml.MeshError, match=REFUSED):
            B.add(X, X, at_rest={"x": FOREIGN})
        found = B.add(X, X, at_rest={"x": sharding})
        np.testing.assert_array_equal(found.numpy(), 2 * X.numpy())
    assert found.sharding == B.add(X, X, at_rest={"x": sharding.spec}).sharding


@pytest.mark.parametrize("rule", ["shard", "at_rest"])
@pytest.mark.parametrize("sharding", [SPLIT, CUT], ids=["an axis", "a part of an axis"])
def test_a_block_that_repeats_is_split_as_another_array_is(rule: str, sharding: Sharding) -> None:
    def compile_block(said: Sharding) -> ml.CompiledModel:
        block = ml.Model()
        block |= ml.Linear(4, bias=False, name="l")(input="input", output="y")
        getattr(block, rule)({"l.weight": said})
        return ml.compile(ml.Repeat(block, 2), B, shapes={"input": (8, 4)})

    (found,) = compile_block(sharding).shardings.values()
    assert found == Sharding.of(sharding.mesh, P(None, *sharding.spec.entries), 3)
    with pytest.raises(ml.MeshError, match=REFUSED):
        compile_block(FOREIGN)


def test_loops_and_gradients_inside_a_function_take_no_other_mesh() -> None:
    foreign = ml.jit(double, in_shardings=FOREIGN)
    for function in (
        ml.grad(lambda v: foreign(v).sum()),
        ml.grad(lambda v: ml.constrain(v, FOREIGN).sum()),
        lambda x: ml.scan(lambda total, row: (total + foreign(row), None), x[0], x)[0],
    ):
        with pytest.raises(ml.MeshError, match=REFUSED):
            ml.jit(function)(X)


def test_one_device_takes_no_other_mesh() -> None:
    x = ONE.ones(8, 4)
    for options in ({"in_shardings": FOREIGN}, {"out_shardings": FOREIGN}, {"at_rest": FOREIGN}):
        with pytest.raises(ml.MeshError, match=r"on Mesh\(x=2, y=2\), the backend on Mesh\(\)"):
            ml.jit(double, **options)(x)
    for place in (ml.reshard, ml.constrain, lambda x, s: ml.jit(lambda v: ml.constrain(v, s))(x)):
        with pytest.raises(ml.MeshError, match=r"on Mesh\(x=2, y=2\), the backend on Mesh\(\)"):
            place(x, FOREIGN)
    with pytest.raises(ml.MeshError, match=r"on Mesh\(x=2, y=2\), the backend on Mesh\(\)"):
        ml.jit(double, backend=ONE).plan(ml.TensorSpec((8, 4), sharding=FOREIGN))
