"""constrain and reshard: where values and their gradients lie."""

from __future__ import annotations

from collections.abc import Callable

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P
from mithril.ir import Builder, Phase
from mithril.types import DType, TensorType

from tests.functional.backends import close, every_backend, floats, opened


def moves(f: ml.Function, *args: object) -> list[tuple[str, str]]:
    return [(row.kind, row.phase) for row in f.plan(*args).collectives()]


@every_backend
def test_a_value_lies_as_it_is_constrained(name: str) -> None:
    backend = opened(name, x=4, y=2)
    x = backend.array(floats(8, 16), sharding=P("x", "y"))
    for spec in (P("y", "x"), P(("y", "x")), P(None, ("x", "y")), P()):
        f = ml.jit(lambda x, s=spec: ml.constrain(x * 2, s))
        assert f(x).sharding.spec == spec
        close(f(x), 2 * floats(8, 16))


def test_partial_sums_are_reduced_where_it_is_said() -> None:
    backend = opened("numpy", x=4)
    a = backend.array(floats(64, 64), sharding=P(None, "x"))
    b = backend.array(floats(64, 64, seed=1), sharding=P("x"))
    scattered = ml.jit(lambda a, b: ml.constrain(a @ b, P("x")) + 1)
    assert moves(scattered, a, b) == [("reduce_scatter", "forward")]
    close(scattered(a, b), floats(64, 64) @ floats(64, 64, seed=1) + 1)
    whole = ml.jit(lambda a, b: ml.constrain(a @ b, P()) + 1)
    assert moves(whole, a, b) == [("all_reduce", "forward")]


def test_the_gradient_of_a_constrained_value_lies_so_too() -> None:
    backend = opened("numpy", x=4)
    w = backend.array(floats(64, 64), sharding=P())
    x = backend.array(floats(512, 64, seed=1) / 8, sharding=P("x"))

    def loss(place: object) -> ml.Function:
        return ml.jit(ml.grad(lambda w: ((x @ place(w)) ** 2).sum()))

    plain = loss(lambda w: w)
    split = loss(lambda w: ml.constrain(w, P(None, "x")))
    moved = loss(lambda w: ml.reshard(w, P(None, "x")))
    assert ("reduce_scatter", "backward") not in moves(plain, w)
    assert ("reduce_scatter", "backward") in moves(split, w)
    for f in (split, moved):
        close(f(w), plain(w).numpy())
        assert f(w).sharding.is_replicated


@pytest.mark.parametrize(("place", "is_constrained"), [(ml.constrain, True), (ml.reshard, False)])
def test_only_a_constraint_says_where_the_gradient_lies(
    place: Callable, is_constrained: bool
) -> None:
    from mithril.transform import differentiate

    builder = Builder()
    x = builder.input(TensorType((4,), DType.float32), "x")
    graph = differentiate(builder.build({"y": place(x * 2, P("x"))}), ["y"], ["x"])
    constrained = [node.phase for node in graph.nodes if node.op.name == "constrain"]
    assert constrained == [Phase.forward, Phase.backward][: 1 + is_constrained]


def test_a_constraint_leaves_nothing_in_the_program() -> None:
    backend = opened("numpy", x=4)
    x = backend.array(floats(8, 4), sharding=P("x"))
    f = ml.jit(lambda x: ml.constrain(x + 1, P("x")) * 2)
    names = [node.op.name for node in f.plan(x).stages[0].program.graph.nodes]
    assert "constrain" not in names
    assert "add" in names
    whole = f.plan(x).whole
    (cast,) = [node for node in whole.graph.nodes if node.op.name == "cast"]
    assert whole.homes[cast.outputs[0]].spec == P("x")


def test_trees_and_arrays_and_prefixes() -> None:
    backend = opened("numpy", x=2)
    tree = {"w": backend.ones(4, 2), "rest": [backend.ones(2), None]}
    specs = {"w": P(None, "x"), "rest": None}
    found = ml.jit(lambda t: ml.constrain(t, specs))(tree)
    now = ml.constrain(tree, specs)
    for result in (found, now):
        assert result["w"].sharding.spec == P(None, "x")
        assert result["rest"][0].sharding.is_replicated
    assert now["rest"][0] is tree["rest"][0]
    moved = ml.reshard(tree, P("x"))
    assert [x.sharding.spec for x in (moved["w"], moved["rest"][0])] == [P("x"), P("x")]
    one = opened("numpy", x=1).ones(3)
    assert ml.reshard(one, P("rows")) is one


@pytest.mark.parametrize("size", [1, 3, 5, 9])
def test_constraints_on_sizes_that_do_not_divide(size: int) -> None:
    backend = opened("numpy", x=4)
    f = ml.jit(
        ml.value_and_grad(lambda x: (mnp.cos(ml.constrain(x, P("x"))) * x).sum()), backend=backend
    )
    host = floats(size)
    value, gradient = f(host)
    close(value, (np.cos(host) * host).sum())
    close(gradient, np.cos(host) - host * np.sin(host))


def test_loops_keep_to_what_their_body_says() -> None:
    from mithril import ops

    backend = opened("numpy", x=4)
    host = floats(64, 64) / 8
    x = backend.array(host)
    f = ml.jit(lambda x: ops.repeat(lambda h: ml.constrain(h @ x, P("x")), x, count=3))
    close(f(x), np.linalg.matrix_power(host.astype(float), 4))
    assert f(x).sharding.spec == P("x")
    assert not f.plan(x).collectives()


def test_an_engine_may_run_the_whole_graph() -> None:
    """The strategy of JAX that leaves collectives to XLA meets constraints, in loops too."""
    pytest.importorskip("mithril_jax")
    from mithril import ops

    backend = ml.open_backend("jax", ml.Mesh(x=4), pjit_lowering_strategy="gspmd")
    host = floats(8, 8) / 4

    def f(x: object) -> object:
        h = ops.repeat(ml.checkpoint(lambda h: ml.constrain(mnp.tanh(h @ x), P("x"))), x, count=2)
        return (ml.constrain(h, P(None, "x")) ** 2).sum()

    x = backend.array(host, sharding=P("x"))
    close(ml.grad(f)(x), ml.grad(f)(opened("numpy", x=1).array(host)).numpy())
